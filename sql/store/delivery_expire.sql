-- Cancels pending deliveries of events that are about to be removed because of their age, and logs them. Returns how many, by webhook, and
-- their order keys.
-- A delivery's id begins with the time of its event.
-- $1 the lowest id to keep, $2 deliveries at most
with picked as materialized (
    select id from walhook.delivery where id < $1 order by id limit $2 for update
),
gone as (
    delete from walhook.delivery
    where id = any (array(select id from picked))
    returning id, webhook_id, event_id, round, attempt, lease, sequence, order_key
),
noted as (
    insert into walhook.superseded_attempt (delivery_id, lease)
    select id, lease from gone where lease is not null
    on conflict do nothing
),
logged as (
    insert into walhook.attempt
        (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome, error_kind, error_message,
         sequence)
    -- A UUIDv7, made as in delivery_cancel.sql.
    select encode(
               set_bit(set_bit(overlay(
                   uuid_send(gen_random_uuid())
                   placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                   from 1 for 6
               ), 52, 1), 53, 1),
               'hex'
           )::uuid,
           gone.webhook_id, gone.id, gone.event_id, event.kind, gone.round, gone.attempt,
           date_trunc('milliseconds', clock_timestamp()), 'cancelled', 'event_expired',
           'the event became older than events are kept', gone.sequence
    from gone
    join lateral (select kind from walhook.event where event.id = gone.event_id offset 0) as event on true
    returning webhook_id
)
select gone.webhook_id, count(*) as removed, (select count(*) from logged where logged.webhook_id = gone.webhook_id) as logged,
    coalesce(array_agg(distinct gone.order_key) filter (where gone.order_key is not null), '{}') as keys
from gone
group by gone.webhook_id
order by gone.webhook_id
