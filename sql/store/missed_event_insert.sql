-- $1 webhooks, $2 events
insert into walhook.missed_event (webhook_id, event_id)
select * from unnest($1::uuid[], $2::uuid[])
