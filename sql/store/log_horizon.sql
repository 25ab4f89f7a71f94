-- Returns the id of the last entry that one filtered page examines. No row if there are fewer entries.
-- $1 user, $2 webhook, $3 and $4 the bounds of ids, $5 the number of entries to skip: one less than to examine
select attempt.id
from walhook.attempt
where attempt.webhook_id = $2
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
  and attempt.id >= $3
  and attempt.id < $4
order by attempt.id desc
offset $5
limit 1
