-- Removes missed events, and returns those that no concurrent recovery removed first.
-- $1 webhook, $2 events
delete from walhook.missed_event where webhook_id = $1 and event_id = any ($2::uuid[]) returning event_id
