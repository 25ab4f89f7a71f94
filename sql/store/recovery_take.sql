-- Locks the job that has been due longest; those of the users $1 come after all others. Other replicas skip it until the transaction
-- ends. The replays of a webhook run one after the other: each sees which deliveries the one before it has created.
select job.id, job.webhook_id, job.kind, job.since, job.until, job.outcomes, job.missed, job.phase, job.position,
    job.events, job.label_ids, job.last_sequence, job.sequence, job.chunk, job.chunk_size,
    extract(epoch from clock_timestamp() - job.chunk_at)::double precision as chunk_age,
    webhook.active is true as active, coalesce(webhook.user_id, '') as user_id
from walhook.recovery as job
left join walhook.webhook on webhook.id = job.webhook_id
where job.finished_at is null and least(job.due_at, job.replay_due_at) <= now()
    and (job.kind = 'recover' or job.kind = 'replay' and not exists (
        select from walhook.recovery as earlier
        where earlier.webhook_id = job.webhook_id and earlier.id < job.id and earlier.kind = 'replay'
            and earlier.finished_at is null))
order by coalesce(webhook.user_id, '') = any($1::text[]), least(job.due_at, job.replay_due_at)
limit 1
for update of job skip locked
