-- Sets when the webhook was last called. The row stays locked, so that the webhook cannot be deleted before the commit.
-- $1 webhook, $2 the time, or null
update walhook.webhook set last_triggered_at = greatest(last_triggered_at, $2) where id = $1 returning id
