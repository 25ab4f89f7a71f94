-- $1 user, $2 webhook, $3 the lowest id to look at, $4 how many entries to look at: the newest, by the kind of failure
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
