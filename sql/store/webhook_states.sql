-- Counts webhooks in the order of their ids: how many are active, deactivated by their owners, and disabled automatically, and the last one.
-- $1 webhook after which to start, $2 webhooks to count at most
with counted as materialized (
    select id, active, disabled_at from walhook.webhook where id > $1 order by id limit $2
)
select
    count(*) filter (where active) as active,
    count(*) filter (where not active and disabled_at is null) as inactive,
    count(*) filter (where disabled_at is not null) as disabled,
    (select id from counted order by id desc limit 1) as last
from counted
