-- When the failures began that disabled a webhook last. $1 webhook
select coalesce(failing_since, at) as failing_since
from walhook.notice
where webhook_id = $1 and kind = 'disabled'
order by at desc
limit 1
