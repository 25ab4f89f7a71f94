-- How many webhooks are active, switched off by their owners, and disabled automatically.
select
    count(*) filter (where active),
    count(*) filter (where not active and disabled_at is null),
    count(*) filter (where disabled_at is not null)
from walhook.webhook
