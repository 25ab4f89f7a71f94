-- Cancels and logs every pending delivery of a webhook, and notes the attempts in flight.
-- The condition names both halves of the attempts for the two partial indexes.
-- Log ids are UUIDv7: the current milliseconds, then random bits, with two bits turning version 4 into 7.
-- $1 webhook, $2 the reason, for the log
with gone as (
    delete from walhook.delivery
    where webhook_id = $1 and (attempt = 1 or attempt > 1)
    returning id, event_id, round, attempt, lease, sequence
),
noted as (
    insert into walhook.superseded_attempt (delivery_id, lease)
    select id, lease from gone where lease is not null
    on conflict do nothing
)
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
       date_trunc('milliseconds', clock_timestamp()), 'cancelled', 'webhook_inactive', $2::text,
       gone.sequence
from gone
join walhook.event on event.id = gone.event_id
