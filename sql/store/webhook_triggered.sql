-- $1 webhook, $2 when it was called, or null: keeps the row locked, so that nobody deletes the webhook before the commit
update walhook.webhook set last_triggered_at = greatest(last_triggered_at, $2) where id = $1 returning id
