-- Counts pending deliveries: first attempts and retries of the webhook, up to a limit each, and first attempts of the last chunk.
-- $1 webhook, $2 the last chunk, $3 the limit of first attempts, $4 the limit of retries
select
    (select count(*) from (select from walhook.delivery where webhook_id = $1 and attempt = 1 limit $3) as pending) as first_attempts,
    (select count(*) from (select from walhook.delivery where webhook_id = $1 and attempt > 1 limit $4) as pending) as retries,
    (select count(*) from walhook.delivery where id = any ($2::uuid[]) and attempt = 1) as of_chunk
