-- Reads a user's events in the order of their commits. Always returns at least one row: `last`, the number of the last event of all users.
-- It belongs to the same snapshot as the events, so every event up to this number was visible to this statement.
-- $1 user, $2 the number after which to start, $3 the highest number to consider, $4 events, $5 label, $6 rows at most,
-- $7 bytes of data after which the page ends
select counter.last, page.id, page.kind, page.occurred_at, page.label_id, page.data, page.sequence, page.matching
from walhook.event_sequence as counter
left join lateral (
    select id, kind, occurred_at, label_id, data, sequence, count(*) over () as matching,
        sum(octet_length(data)) over (order by sequence rows between unbounded preceding and 1 preceding) as before
    from (
        select id, kind, occurred_at, label_id, data::text as data, sequence
        from walhook.event
        where user_id = $1 and sequence > $2 and sequence <= $3
          and ($4::text[] is null or kind = any ($4))
          and ($5::bigint is null or label_id = $5)
        order by sequence
        limit $6
    ) as matches
    -- The first one has none before it, and is returned whatever its length is.
) as page on coalesce(page.before, 0) < $7::bigint
order by page.sequence
