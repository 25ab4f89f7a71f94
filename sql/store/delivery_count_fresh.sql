-- $1 webhook, $2 up to how many to count: first attempts that wait or are under way
select count(*) from (select from walhook.delivery where webhook_id = $1 and attempt = 1 limit $2) as pending
