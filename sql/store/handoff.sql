-- name: count
-- Counts deliveries that were handed off and not recorded yet.
select coalesce(sum(bit_count(open)), 0)::bigint from walhook.handoff

-- name: insert
-- $1 ids, $2 webhooks, $3 events, $4 numbers, $5 lease, $6 its length in seconds
insert into walhook.handoff (lease, due_at, open, ids, webhooks, events, sequences)
values ($5::uuid, now() + make_interval(secs => $6), repeat('1', cardinality($1::uuid[]))::bit varying,
    $1, $2::uuid[], $3::uuid[], $4::bigint[])

-- name: record
-- Clears the bits of deliveries whose attempts are recorded, and returns, for each lease, which of
-- them were set. The others were unpacked, or recorded before. Locks in order of lease, like every
-- transaction. $1 leases, $2 bits to clear
with held as materialized (
    select handoff.lease, handoff.open & recorded.bits as bits
    from unnest($1::uuid[], $2::text[]::bit varying[]) as recorded (lease, bits)
    join walhook.handoff on handoff.lease = recorded.lease
    order by handoff.lease
    for update of handoff
)
update walhook.handoff set open = handoff.open # held.bits
from held
where handoff.lease = held.lease
returning handoff.lease, held.bits::text

-- name: remove_recorded
-- $1 leases
delete from walhook.handoff where lease = any ($1::uuid[]) and bit_count(open) = 0

-- name: unpack
-- Makes rows of the deliveries that have not been recorded. They keep their lease. Skips hand-offs
-- that another transaction has locked; without `skip locked`, it waits for them. The removal returns
-- the newest version of each: the statement's snapshot lacks what was recorded while it waited. Each
-- condition applies unless it is null: $1 age in seconds, $2 webhook, $3 leases. $4 hand-offs at
-- most
with picked as materialized (
    select lease
    from walhook.handoff
    where ($1::double precision is null or stored_at < now() - make_interval(secs => $1))
        and ($2::uuid is null or $2 = any (webhooks))
        and ($3::uuid[] is null or lease = any ($3))
    order by lease
    limit $4
    for update skip locked
),
gone as (
    delete from walhook.handoff where lease = any (array(select lease from picked)) returning *
)
insert into walhook.delivery (id, webhook_id, event_id, sequence, due_at, lease)
select each.id, each.webhook_id, each.event_id, each.sequence, gone.due_at, gone.lease
from gone
cross join lateral unnest(ids, webhooks, events, sequences) with ordinality as each (id, webhook_id, event_id, sequence, number)
where get_bit(gone.open, each.number::integer - 1) = 1
on conflict (id) do nothing
