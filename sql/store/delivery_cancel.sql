-- Cancels and logs pending deliveries of a webhook that is inactive or was deleted, and notes the attempts in flight. Does nothing for an
-- active webhook. Returns how many deliveries were removed, and how many of them were logged: events may have been removed by age.
-- All parts see the same moment: what is pending while the webhook is inactive belongs to the time before, because a webhook is
-- activated only when nothing of it is pending. Rows that another transaction has locked are skipped, so this waits for nobody.
-- Log ids are UUIDv7: the current milliseconds, then random bits, with two bits turning version 4 into 7.
-- $1 webhook, $2 deliveries at most
with inactive as materialized (
    select webhook.id is not null as exists,
        case
            when webhook.id is null then 'the webhook was deleted'
            when webhook.disabled_at is null then 'the webhook was switched off'
            else 'the webhook was disabled automatically'
        end as reason
    from (select $1::uuid as id) as wanted
    left join walhook.webhook on webhook.id = wanted.id
    where webhook.active is not true
),
fresh as materialized (
    select id from walhook.delivery
    where webhook_id = $1 and attempt = 1 and exists (select from inactive)
    order by due_at
    limit $2
    for update skip locked
),
retries as materialized (
    select id from walhook.delivery
    where webhook_id = $1 and attempt > 1 and exists (select from inactive)
    order by due_at
    limit $2 - (select count(*) from fresh)
    for update skip locked
),
gone as (
    -- The array makes this an index scan, whatever number of rows the planner expects.
    delete from walhook.delivery
    where id = any (array(select id from fresh union all select id from retries))
    returning id, event_id, round, attempt, lease, sequence
),
noted as (
    -- Nothing is logged later for a webhook that does not exist.
    insert into walhook.superseded_attempt (delivery_id, lease)
    select gone.id, gone.lease from gone cross join inactive where gone.lease is not null and inactive.exists
    on conflict do nothing
),
logged as (
    insert into walhook.attempt
        (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome, error_kind, error_message,
         sequence)
    select encode(
               set_bit(set_bit(overlay(
                   uuid_send(gen_random_uuid())
                   placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                   from 1 for 6
               ), 52, 1), 53, 1),
               'hex'
           )::uuid,
           $1, gone.id, gone.event_id, event.kind, gone.round, gone.attempt,
           date_trunc('milliseconds', clock_timestamp()), 'cancelled', 'webhook_inactive', inactive.reason,
           gone.sequence
    from gone
    cross join inactive
    -- One lookup by id for each, never a join over the daily partitions.
    join lateral (select kind from walhook.event where event.id = gone.event_id offset 0) as event on true
    returning delivery_id
)
select (select count(*) from gone) as removed, (select count(*) from logged) as logged
