-- Counts pending first attempts, up to a limit. $1 webhook, $2 the limit, $3 whether to count those that wait for others too
select count(*)
from (
    select from walhook.delivery
    -- A bound of the index: a million deliveries that wait are not read.
    where webhook_id = $1 and attempt = 1 and due_at <= case when $3::boolean then 'infinity' else now() + interval '1 year' end
    limit $2
) as pending
