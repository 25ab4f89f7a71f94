-- $1 id, $2 user, $3 event, $4 when, $5 data: an event that no commit raised
insert into walhook.event (id, user_id, kind, occurred_at, data)
values ($1, $2, $3, $4, $5::text::json)
