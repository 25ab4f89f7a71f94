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
       -- The custom headers of the request, if they have not changed since.
       coalesce((select header_names from walhook.webhook where id = $2 and headers_changed_at <= attempt.started_at), '{}')
           as custom_headers
from walhook.attempt
-- A lateral join, so that the event is read by its index: for a plain join, the planner may scan
-- small partitions.
left join lateral (
    select event.repaired, event.occurred_at, event.data from walhook.event where event.id = attempt.event_id limit 1
) event on true
where attempt.webhook_id = $2
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
  and attempt.id = $3

-- name: list
-- Examines the newest entries within bounds and returns those that match, and the last one if as
-- many as allowed were examined: the search continues below it. $1 user, $2 webhook, $3 and $4 the
-- bounds of ids, $5 event, $6 outcome, $7 since, $8 until, $9 the status's first digit (0: no
-- response), $10 entries to examine at most, $11 entries to return at most. The bounds are never
-- null, so that they are bounds of the index and choose partitions.
select examined.*,
       -- An expired event counts as not repaired.
       coalesce((select event.repaired from walhook.event where event.id = examined.event_id), false) as repaired
from (
    select attempt.id, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.event_kind, attempt.round, attempt.attempt,
           attempt.test, attempt.started_at, attempt.duration_ms, attempt.outcome, attempt.response_status,
           attempt.error_kind, attempt.error_message,
           ($5::text is null or attempt.event_kind = $5)
           and ($6::text is null or attempt.outcome = $6)
           and ($7::timestamptz is null or attempt.started_at >= $7)
           and ($8::timestamptz is null or attempt.started_at < $8)
           and ($9::smallint is null
                or case when attempt.response_status is null then $9 = 0 else attempt.response_status / 100 = $9 end) as is_match,
           row_number() over (order by attempt.id desc) = $10 as is_last
    from walhook.attempt
    where attempt.webhook_id = $2
      and exists (select from walhook.webhook where user_id = $1 and id = $2)
      and attempt.id >= $3
      and attempt.id < $4
    order by attempt.id desc
    limit $10
) as examined
where examined.is_match or examined.is_last
order by examined.id desc
limit $11

-- name: list_of_delivery
-- Lists the newest attempts of a delivery. $1 user, $2 webhook, $3 delivery, $4 its event, $5 the
-- lowest id, $6 rows at most
select attempt.id, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.event_kind, attempt.round, attempt.attempt,
       attempt.test, attempt.started_at, attempt.duration_ms, attempt.outcome, attempt.response_status,
       attempt.error_kind, attempt.error_message, attempt.dns_ms, attempt.connect_ms, attempt.tls_ms, attempt.wait_ms,
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
