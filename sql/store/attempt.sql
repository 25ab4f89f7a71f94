-- name: insert
insert into walhook.attempt (
    id, webhook_id, delivery_id, event_id, event_kind, round, attempt, test, started_at, duration_ms, outcome,
    response_status, error_kind, error_message, url, signature, standard_signature, response_body, sequence, more_signatures,
    response_headers, dns_ms, connect_ms, tls_ms, wait_ms
)
-- One `unnest` per column in the select list: as a table function, all arrays would be materialized
-- before the first row is inserted.
select unnest($1::uuid[]), unnest($2::uuid[]), unnest($3::uuid[]), unnest($4::uuid[]), unnest($5::text[]),
    unnest($6::smallint[]), unnest($7::smallint[]), unnest($8::boolean[]), unnest($9::timestamptz[]), unnest($10::integer[]),
    unnest($11::text[]), unnest($12::smallint[]), unnest($13::text[]), unnest($14::text[]), unnest($15::text[]),
    unnest($16::bytea[]), unnest($17::bytea[]), unnest($18::bytea[]), unnest($19::bigint[]),
    unnest($20::bytea[]), unnest($21::bytea[]), unnest($22::integer[]), unnest($23::integer[]), unnest($24::integer[]),
    unnest($25::integer[])

-- name: erase
-- $1 webhook, $2 rows at most
with picked as materialized (
    select id, delivery_id from walhook.attempt where webhook_id = $1 order by id limit $2
),
rounds as (
    delete from walhook.delivery_round where delivery_id in (select delivery_id from picked)
)
delete from walhook.attempt where webhook_id = $1 and id = any (array(select id from picked))

-- name: list_errors
-- $1 user, $2 webhook, $3 the lowest id, $4 the number of entries to examine, newest first
select recent.error_kind, count(*) as count
from (
    select attempt.error_kind
    from walhook.attempt
    where attempt.webhook_id = $2
      and exists (select from walhook.webhook where user_id = $1 and id = $2)
      and attempt.id >= $3
      and not attempt.test
    order by attempt.id desc
    limit $4
) as recent
where recent.error_kind is not null
group by recent.error_kind
order by count desc, recent.error_kind

-- name: get
-- $1 user, $2 webhook, $3 the attempt. Its event may have expired before it.
select attempt.id, attempt.webhook_id, attempt.delivery_id, attempt.event_kind, attempt.round, attempt.attempt, attempt.test,
       attempt.started_at, attempt.duration_ms, attempt.outcome, attempt.response_status,
       attempt.error_kind, attempt.error_message,
       attempt.event_id, attempt.sequence, attempt.url, attempt.signature, attempt.standard_signature, attempt.more_signatures,
       attempt.response_headers, attempt.response_body, attempt.dns_ms, attempt.connect_ms, attempt.tls_ms, attempt.wait_ms,
       coalesce(event.repaired, false) as repaired, event.occurred_at, event.data::text as data,
       walhook.about(event.data) as about,
       -- The custom headers of the request, if they have not changed since.
       coalesce((select header_names from walhook.webhook where id = $2 and headers_changed_at <= attempt.started_at), '{}')
           as custom_headers
from walhook.attempt
-- A lateral join, so that the event is read by its index: for a plain join, the planner may scan
-- small partitions.
left join lateral (
    select repaired, occurred_at, data
    from walhook.event
    where event.id = attempt.event_id
    limit 1
) event on true
where attempt.webhook_id = $2
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
  and attempt.id = $3

-- name: entries
-- The newest entries of each webhook within bounds. `is_last` marks the last one of a webhook of which
-- as many as allowed were read: there may be more below it. $1 user, $2 webhooks, $3 and $4 the bounds
-- of ids, $5 entries to read of each webhook. The bounds are never null, so that they are bounds of
-- the index and choose partitions. The placeholder is a condition that an index has, or `true`.
select entry.*
from walhook.webhook
cross join lateral (
    select attempt.*, row_number() over (order by attempt.id desc) = $5 as is_last
    from walhook.attempt
    where attempt.webhook_id = webhook.id
      and attempt.id >= $3
      and attempt.id < $4
      and {subset}
    order by attempt.id desc
    limit $5
) as entry
where webhook.user_id = $1 and webhook.id = any ($2::uuid[])

-- name: entries_of_events
-- The newest entries of some events, otherwise like `entries`. $6 events
select entry.*, row_number() over (order by entry.id desc) = $5 as is_last
from unnest($6::uuid[]) as wanted (event_id)
-- One lookup per event, never a join over the daily partitions.
cross join lateral (
    select attempt.*
    from walhook.attempt
    where attempt.event_id = wanted.event_id
      and attempt.id >= $3
      and attempt.id < $4
      and attempt.webhook_id = any ($2::uuid[])
    order by attempt.id desc
    limit $5
) as entry
where exists (select from walhook.webhook where webhook.user_id = $1 and webhook.id = entry.webhook_id)
order by entry.id desc
limit $5

-- name: list
-- Returns the entries that match, and those that are the last of their kind: the search continues
-- below the highest of these. The placeholder is one of the statements above, with $1 to $6. $7 event type,
-- $8 outcome, $9 since, $10 until, $11 the status or its first digit (0: no response), $12 kind of
-- error, $13 outlet in lower case, $14 delivery, $15 entries to return at most
select examined.*,
       -- An expired event counts as not repaired.
       coalesce(event.repaired, false) as repaired, walhook.about(event.data) as about
from (
    select attempt.id, attempt.webhook_id, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.event_kind,
           attempt.round, attempt.attempt, attempt.test, attempt.started_at, attempt.duration_ms, attempt.outcome,
           attempt.response_status, attempt.error_kind, attempt.error_message, attempt.is_last,
           ($6::uuid[] is null or attempt.event_id = any ($6))
           and ($7::text is null or attempt.event_kind = $7)
           and ($8::text is null or attempt.outcome = $8)
           and ($9::timestamptz is null or attempt.started_at >= $9)
           and ($10::timestamptz is null or attempt.started_at < $10)
           and ($11::smallint is null
                or case when attempt.response_status is null then $11 = 0
                        else $11 in (attempt.response_status, attempt.response_status / 100) end)
           and ($12::text is null or attempt.error_kind = $12)
           and ($13::text is null or (
                select $13 in (outlet_id, lower(outlet_name), lower(dsp))
                from walhook.event
                cross join json_to_record(data) as named (outlet_id text, outlet_name text, dsp text)
                where event.id = attempt.event_id
                limit 1) is true)
           and ($14::uuid is null or attempt.delivery_id = $14) as is_match
    from ({entries}) as attempt
) as examined
left join lateral (
    select repaired, data
    from walhook.event
    where event.id = examined.event_id
    limit 1
) as event on true
where examined.is_match or examined.is_last
order by examined.id desc
limit $15

-- name: list_of_delivery
-- Lists the newest attempts of a delivery. $1 user, $2 webhook, $3 delivery, $4 its event, $5 the
-- lowest id, $6 rows at most
select attempt.id, attempt.webhook_id, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.event_kind,
       attempt.round, attempt.attempt, attempt.test, attempt.started_at, attempt.duration_ms, attempt.outcome,
       attempt.response_status, attempt.error_kind, attempt.error_message, null::text[] as about, attempt.dns_ms, attempt.connect_ms, attempt.tls_ms, attempt.wait_ms,
       coalesce((select event.repaired from walhook.event where event.id = $4), false) as repaired
from walhook.attempt
where attempt.event_id = $4
  and attempt.id >= $5
  and attempt.webhook_id = $2
  and attempt.delivery_id = $3
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
order by attempt.id desc
limit $6

-- name: find_redelivery
-- Finds the delivery of an attempt, and whether it can be redelivered. $1 user, $2 webhook, $3 the
-- attempt
select webhook.active, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.test,
    (select true from walhook.event where event.id = attempt.event_id) is true as kept
from walhook.webhook
join walhook.attempt on attempt.webhook_id = webhook.id
where webhook.user_id = $1 and webhook.id = $2 and attempt.id = $3
