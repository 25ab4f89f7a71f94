-- The jobs of a webhook, newest first. $1 user, $2 webhook, $3 null or the only job, $4 null or the job after which to continue,
-- $5 jobs at most
select recovery.id, recovery.kind, recovery.recovered as done, recovery.created_at, recovery.finished_at,
    case when recovery.cancelled_at is not null then 'cancelled'
        when recovery.finished_at is not null then 'finished'
        when recovery.recovered = 0 and recovery.phase in ('log', 'pending')
            and recovery.position = '00000000-0000-0000-0000-000000000000' then 'queued'
        else 'running' end as state,
    -- The total is an estimate until the job has finished.
    case when recovery.finished_at is not null and recovery.cancelled_at is null then recovery.recovered
        else greatest(recovery.total, recovery.recovered) end as total
from walhook.webhook
join walhook.recovery on recovery.webhook_id = webhook.id
where webhook.user_id = $1 and webhook.id = $2
    and ($3::uuid is null or recovery.id = $3) and ($4::uuid is null or recovery.id < $4)
order by recovery.id desc
limit $5
