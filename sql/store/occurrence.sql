-- name: erase
-- Removes a user from the items of occurrences. $1 user, $2 rows at most
update walhook.occurrence
set data = json_build_object(
    'count', data -> 'count',
    'items', (
        select coalesce(json_agg(item), '[]')
        from json_array_elements(data -> 'items') as item
        where item ->> 'user_id' is distinct from $1::text
    )
)
where (id, url) in (
    select id, url
    from walhook.occurrence
    where exists (select from json_array_elements(data -> 'items') as item where item ->> 'user_id' = $1)
    limit $2
)

-- name: begin_search
-- Takes the turn to look for occurrences, if it is due. Another process that tries meanwhile waits
-- for the commit, and finds that it is not. While many wait to be delivered, turns are rare. $1
-- seconds until the next turn, $2 how many are many, $3 seconds until the next turn in that case
update walhook.occurrence_search
set due_at = now() + make_interval(secs => case
    when (select count(*) from (select from walhook.occurrence limit $2) as waiting) < $2::bigint then $1::float8
    else $3::float8
end)
where due_at <= now()
returning is_only

-- name: take_notices
-- Warnings or disablements that are not reported yet. $1 rows at most, $2 items at most, $3 the
-- kind of notice
with taken as (
    update walhook.notice set is_reported = true
    where id in (
        select id from walhook.notice where not is_reported and kind = $3 order by id limit $1 for update skip locked
    )
    returning id, webhook_id, user_id, name, reason, failures, threshold, at
),
items as (
    select webhook_id, user_id, name, reason, failures, threshold, at from taken order by id limit $2
)
select (select count(*) from taken) as count, (select json_agg(items)::text from items) as items

-- name: take_failures
-- Deliveries that failed permanently, by webhook. $1 rows at most, $2 items at most
with taken as (
    update walhook.webhook_hour as counted
    set reported_failed = counted.permanently_failed
    from (
        select webhook_id, hour, reported_failed
        from walhook.webhook_hour
        where permanently_failed > reported_failed
        order by hour
        limit $1
        for update skip locked
    ) as before
    where counted.webhook_id = before.webhook_id and counted.hour = before.hour
    returning counted.webhook_id, counted.permanently_failed - before.reported_failed as deliveries
),
summed as (
    select webhook_id, sum(deliveries)::bigint as deliveries from taken group by webhook_id
),
items as (
    select summed.webhook_id, webhook.user_id, webhook.name, summed.deliveries
    from summed
    left join walhook.webhook on webhook.id = summed.webhook_id
    order by summed.deliveries desc, summed.webhook_id
    limit $2
)
select coalesce((select sum(deliveries) from summed), 0)::bigint as count,
    (select json_agg(items)::text from items) as items

-- name: take_gaps
-- $1 rows at most, $2 items at most
with taken as (
    update walhook.gap set is_reported = true
    where id in (select id from walhook.gap where not is_reported order by id limit $1 for update skip locked)
    returning id, slot, reason, detail, found_at
),
items as (
    select slot, reason, detail, found_at from taken order by id limit $2
)
select (select count(*) from taken) as count, (select json_agg(items)::text from items) as items

-- name: take_repairs
-- $1 rows at most, $2 items at most
with taken as (
    update walhook.gap set is_repair_reported = true
    where id in (
        select id from walhook.gap
        where repaired_at is not null and not is_repair_reported
        order by id
        limit $1
        for update skip locked
    )
    returning id, slot, reason, found_at, repaired_at
),
items as (
    select slot, reason, found_at, repaired_at from taken order by id limit $2
)
select (select count(*) from taken) as count, (select json_agg(items)::text from items) as items

-- name: take_unrouted
-- Unrouted events, by type and reason. $1 rows at most, $2 items at most
with taken as (
    update walhook.unrouted_event set is_reported = true
    where id in (
        select id from walhook.unrouted_event where not is_reported order by id limit $1 for update skip locked
    )
    returning kind, reason
),
items as (
    select kind as event, reason, count(*) as events from taken group by kind, reason order by count(*) desc, kind, reason limit $2
)
select (select count(*) from taken) as count, (select json_agg(items)::text from items) as items

-- name: insert
-- $1 id, $2 kind, $3 data, $4 URLs
insert into walhook.occurrence (id, url, kind, data)
select $1, url, $2, $3::text::json from unnest($4::text[]) as url

-- name: claim
-- Leases the occurrence of a URL that has been due longest. $1 URL, $2 lease, $3 seconds until it
-- ends
update walhook.occurrence
set lease = $2::uuid, due_at = now() + make_interval(secs => $3)
where url = $1 and id = (
    select id from walhook.occurrence
    where url = $1 and due_at <= now()
    order by due_at
    limit 1
    for update skip locked
)
returning id, kind, at, data::text as data, attempt, lease

-- name: retry
-- Releases an occurrence, unless another process has leased it since. $1 id, $2 URL, $3 lease, $4
-- seconds until the next attempt
update walhook.occurrence
set due_at = now() + make_interval(secs => $4), attempt = attempt + 1, lease = null
where id = $1 and url = $2 and lease = $3

-- name: remove
-- $1 id, $2 URL
delete from walhook.occurrence where id = $1 and url = $2

-- name: expire
-- Removes occurrences of URLs that are not configured any more. $1 URLs, $2 days after which
delete from walhook.occurrence where url <> all ($1::text[]) and at < now() - make_interval(days => $2::int)
