-- How many webhooks are active, deactivated by their owners, and disabled automatically.
select
    count(*) filter (where active) as active,
    count(*) filter (where not active and disabled_at is null) as inactive,
    count(*) filter (where disabled_at is not null) as disabled
from walhook.webhook
