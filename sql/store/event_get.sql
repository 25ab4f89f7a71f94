-- Reads an event. Tests are not events of the feed: no commit raised them. $1 user, $2 the event
select id, kind, occurred_at, label_id, data::text as data, coalesce(sequence, 0) as sequence
from walhook.event
where user_id = $1 and id = $2 and ordinal is not null
