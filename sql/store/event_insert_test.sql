-- $1 id, $2 user, $3 event, $4 the time of the event, $5 data
insert into walhook.event (id, user_id, kind, occurred_at, data)
values ($1, $2, $3, $4, $5::text::json)
