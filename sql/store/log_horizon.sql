-- How far down one filtered page of the log looks: the id of the last of so many entries, if there are as many.
-- $1 user, $2 webhook, $3 and $4 the ids between which to look, $5 how many entries to skip: one less than to look at
select attempt.id
from walhook.attempt
where attempt.webhook_id = $2
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
  and attempt.id >= $3
  and attempt.id < $4
order by attempt.id desc
offset $5
limit 1
