-- Counts pending first attempts, up to a limit. $1 webhook, $2 the limit
select count(*) from (select from walhook.delivery where webhook_id = $1 and attempt = 1 limit $2) as pending
