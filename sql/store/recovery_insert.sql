-- $1 id, $2 user, $3 webhook, $4 since, $5 until, $6 outcomes, $7 whether to deliver missed events, $8 expected deliveries,
-- $9 the most unfinished jobs
insert into walhook.recovery (id, webhook_id, since, until, outcomes, missed, total)
select $1, webhook.id, $4, $5, $6, $7, $8
from walhook.webhook
where webhook.user_id = $2 and webhook.id = $3
    and (select count(*) from walhook.recovery where finished_at is null and webhook_id = $3) < $9::bigint
