-- name: erase
-- Waits for a recovery that a replica is running: the deliveries that it starts are pending
-- afterwards. $1 webhook, $2 rows at most
delete from walhook.recovery
where id in (select id from walhook.recovery where webhook_id = $1 limit $2)

-- name: end
-- Ends a job early. Returns how many deliveries it has created, or no row if it has ended before.
-- $1 id
update walhook.recovery set finished_at = now(), cancelled_at = now(), chunk = array[]::uuid[]
where id = $1 and finished_at is null
returning recovered

-- name: list
-- The jobs of a webhook, newest first. $1 user, $2 webhook, $3 null or the only job, $4 null or the
-- job after which to continue, $5 jobs at most
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

-- name: expire
-- $1 since when finished recoveries are kept
delete from walhook.recovery where finished_at < $1

-- name: insert
-- $1 id, $2 user, $3 webhook, $4 kind, $5 phase, $6 since, $7 until, $8 outcomes and $9 whether to
-- deliver missed events, for a recovery, $10 events and $11 labels, for a replay, $12 expected
-- deliveries, $13 the most unfinished jobs
insert into walhook.recovery
    (id, webhook_id, kind, phase, since, until, outcomes, missed, events, label_ids, total, last_sequence)
select $1, webhook.id, $4, $5, $6, $7, $8, $9, $10, $11, $12, (select last from walhook.event_sequence)
from walhook.webhook
where webhook.user_id = $2 and webhook.id = $3
    and (select count(*) from walhook.recovery where finished_at is null and webhook_id = $3) < $13::bigint

-- name: move
-- $1 id, $2 phase, $3 position, $4 the number of the last event that was read, $5 deliveries
-- started, $6 those that a replay created, $7 how many at most, $8 whether it is finished, $9
-- seconds until the next step
update walhook.recovery
set phase = $2, position = $3, sequence = $4, recovered = recovered + $5,
    chunk = case when $8::boolean then array[]::uuid[] when cardinality($6::uuid[]) > 0 then $6 else chunk end,
    chunk_at = case when cardinality($6) > 0 then clock_timestamp() else chunk_at end,
    chunk_size = $7,
    finished_at = case when $8 then clock_timestamp() end,
    due_at = clock_timestamp() + make_interval(secs => $9)
where id = $1
returning recovered

-- name: scan_attempts
-- Reads the next rows of a webhook's attempt log, and returns the deliveries whose last outcome is
-- one of those in $8. Any outcome but `failed` ends its round, and is the last outcome if no later
-- round was started. `failed` is the last outcome while the retry is pending. A delivery that was
-- cancelled during an attempt which then succeeded is left out: it was delivered. $1 webhook, $2
-- and $3 the ids between which to read, $4 since, $5 until, $6 rows to read, $7 whether to return
-- the deliveries or only to count them, $8 outcomes, $9 milliseconds by which the id of an attempt
-- may differ from that of the cancellation
with examined as materialized (
    select id, delivery_id, event_id, round, attempt, outcome, test, started_at, sequence
    from walhook.attempt
    where webhook_id = $1 and id > $2 and id < $3
    order by id
    limit $6
),
matching as materialized (
    select delivery_id, event_id, round, attempt, outcome, sequence,
        (extract(epoch from started_at) * 1000)::bigint as millis
    from examined
    where outcome = any ($8::text[]) and not test and started_at >= $4 and started_at < $5
),
-- One index lookup per row: scalar subqueries are never turned into joins over the daily
-- partitions.
found as (
    select distinct on (delivery_id) delivery_id, event_id, round, sequence
    from matching
    where round = coalesce(
            (select last.round from walhook.delivery_round as last where last.delivery_id = matching.delivery_id), 1)
        and (outcome <> 'failed' or (
            select pending.round = matching.round and pending.attempt = matching.attempt + 1
            from walhook.delivery as pending where pending.id = matching.delivery_id))
        and (outcome <> 'cancelled' or (
            select true from walhook.attempt as success
            where success.event_id = matching.event_id and success.webhook_id = $1
                and success.delivery_id = matching.delivery_id and success.round = matching.round
                and success.outcome = 'delivered' and not success.test
                -- For the partitions to read. An id begins with milliseconds.
                and success.id > rpad(lpad(to_hex(matching.millis - $9::bigint), 12, '0'), 32, '0')::uuid
                and success.id < rpad(lpad(to_hex(matching.millis + $9::bigint), 12, '0'), 32, '0')::uuid
            limit 1
        ) is null)
        and (select true from walhook.event where event.id = matching.event_id)
)
select (select count(*) from examined) as examined,
    (select id from examined order by id desc limit 1) as last,
    count(*) as found,
    coalesce(array_agg(delivery_id order by delivery_id) filter (where $7::boolean), '{}') as deliveries,
    coalesce(array_agg(event_id order by delivery_id) filter (where $7::boolean), '{}') as events,
    coalesce(array_agg(round order by delivery_id) filter (where $7::boolean), '{}') as rounds,
    coalesce(array_agg(sequence order by delivery_id) filter (where $7::boolean), '{}') as sequences
from found

-- name: take
-- Locks the job that has been due longest; those of the users $1 come after all others. Other
-- replicas skip it until the transaction ends. The replays of a webhook run one after the other:
-- each sees which deliveries the one before it has created.
select job.id, job.webhook_id, job.kind, job.since, job.until, job.outcomes, job.missed, job.phase, job.position,
    job.events, job.label_ids, job.last_sequence, job.sequence, job.chunk, job.chunk_size,
    extract(epoch from clock_timestamp() - job.chunk_at)::double precision as chunk_age,
    webhook.active is true as active, coalesce(webhook.user_id, '') as user_id
from walhook.recovery as job
left join walhook.webhook on webhook.id = job.webhook_id
where job.finished_at is null and job.due_at <= now()
    and (job.kind = 'recover' or job.kind = 'replay' and not exists (
        select from walhook.recovery as earlier
        where earlier.webhook_id = job.webhook_id and earlier.id < job.id and earlier.kind = 'replay'
            and earlier.finished_at is null))
order by coalesce(webhook.user_id, '') = any($1::text[]), job.due_at
limit 1
for update of job skip locked

-- name: count_replay
-- Counts what a replay would deliver, among a limited number of events and of rows of the attempt
-- log. `except` is never planned as a nested loop. $1 user, $2 webhook, $3 and $4 the ids of
-- events, $5 the id after which the attempts are, $6 events, $7 labels, $8 since, $9 until, $10 rows
-- to read of each, $11 whether to return the events that were found, for a filter
with events as materialized (
    select id, sequence, kind, label_id, occurred_at
    from walhook.event
    where user_id = $1 and sequence > 0 and id > $3 and id < $4
    order by sequence
    limit $10
),
logged as materialized (
    select event_id from walhook.attempt where webhook_id = $2 and id > $5 order by id limit $10
),
pending as materialized (
    select event_id from walhook.pending where webhook_id = $2 and (attempt = 1 or attempt > 1) limit $10
),
found as (
    select id
    from events
    where kind = any ($6::text[]) and ($7::bigint[] is null or label_id = any ($7)) and occurred_at >= $8 and occurred_at < $9
    except
    select event_id from (select event_id from logged union all select event_id from pending) as had
),
returned as (
    select event.kind, event.label_id, event.data::text as data
    from found
    -- An index lookup for each event.
    cross join lateral (select kind, label_id, data from walhook.event where event.id = found.id offset 0) as event
    where $11::boolean
)
select (select count(*) from found) as found,
    (select count(*) from events) as events,
    greatest((select count(*) from logged), (select count(*) from pending)) as others,
    (select min(sequence) from events) as first,
    (select max(sequence) from events) as last,
    -- Of the last event that might be delivered.
    (select sequence from walhook.event where user_id = $1 and sequence > 0 and id > $3 and id < $4 order by sequence desc limit 1)
        as highest,
    returned.kinds, returned.labels, returned.data
from (
    select coalesce(array_agg(kind), '{}') as kinds, coalesce(array_agg(label_id), '{}') as labels,
        coalesce(array_agg(data), '{}') as data
    from returned
) as returned
