-- $1 user, $2 webhook, $3 the lowest id, $4 the number of entries to examine, newest first
select recent.error_kind, count(*) as count
from (
    select attempt.error_kind
    from walhook.attempt
    where attempt.webhook_id = $2
      and exists (select from walhook.webhook where user_id = $1 and id = $2)
      and attempt.id >= $3
      and not attempt.test
    order by attempt.id desc
    limit $4
) as recent
where recent.error_kind is not null
group by recent.error_kind
order by count desc, recent.error_kind
