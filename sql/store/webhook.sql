-- name: find_deleted_of_user
-- The ids of a user's deleted webhooks, found by the rows that remain of them. Each distinct id is
-- one index lookup; the event of any one row names the user. $1 user
with recursive logged (webhook_id) as (
    (select webhook_id from walhook.attempt order by webhook_id limit 1)
    union all
    select (select webhook_id from walhook.attempt where webhook_id > logged.webhook_id order by webhook_id limit 1)
    from logged
    where logged.webhook_id is not null
),
missing (webhook_id) as (
    (select webhook_id from walhook.missed_event order by webhook_id limit 1)
    union all
    select (select webhook_id from walhook.missed_event where webhook_id > missing.webhook_id order by webhook_id limit 1)
    from missing
    where missing.webhook_id is not null
)
select subject_id as id from walhook.audit where user_id = $1 and action like 'webhook.%'
union
select webhook_id
from logged
where not exists (select from walhook.webhook where id = logged.webhook_id)
    and $1 = (
        select event.user_id
        from walhook.attempt
        join walhook.event on event.id = attempt.event_id
        where attempt.webhook_id = logged.webhook_id
        limit 1)
union
select webhook_id
from missing
where not exists (select from walhook.webhook where id = missing.webhook_id)
    and $1 = (
        select event.user_id
        from walhook.missed_event
        join walhook.event on event.id = missed_event.event_id
        where missed_event.webhook_id = missing.webhook_id
        limit 1)

-- name: find_of_user
-- $1 user
delete from walhook.webhook where user_id = $1 returning id

-- name: public_keys
-- The public keys that verify signatures, in their own order, which reveals nothing about webhooks.
-- $1 how many at most
select id, public_key, expires_at
from (
    select id, public_key, null::timestamptz as expires_at from walhook.webhook where public_key is not null
    union all
    select id, previous_public_key, previous_expires_at
    from walhook.webhook
    where previous_public_key is not null and previous_expires_at > now()
) as keys
order by public_key
limit $1::bigint

-- name: master_keys
-- How many values are encrypted under each key
select key_id, count(*)
from (
    select secret_key_id as key_id from walhook.webhook
    union all
    select headers_key_id from walhook.webhook where headers_key_id is not null
    union all
    select private_key_key_id from walhook.webhook where private_key_key_id is not null
    union all
    select previous_secret_key_id from walhook.webhook where previous_secret_key_id is not null
    union all
    select previous_private_key_key_id from walhook.webhook where previous_private_key_key_id is not null
    union all
    select key_id from walhook.idempotency where key_id is not null
) sealed
group by key_id
order by key_id

-- name: reseal
-- Replaces a webhook's encrypted secret, unless it was regenerated in the meantime.
-- $1 webhook, $2 the old value, $3 the new value, $4 its key
update walhook.webhook
set secret = $3, secret_key_id = $4
where id = $1 and secret = $2

-- name: sealed
-- Secrets that are encrypted under other keys than $1, of webhooks after the id $2, at most $3
select id, secret as sealed, secret_key_id as key_id
from walhook.webhook
where id > $2 and secret_key_id <> $1
order by id
limit $3

-- name: subscriptions
-- The webhooks of these users, with everything that a delivery needs. Of webhooks that may get a
-- delivery, also the number of the last one. Those numbers stay locked until the commit: in order
-- of id, so that no two transactions that number deliveries can deadlock. Nothing is locked for a
-- webhook that is inactive or subscribed to none of these events. $1 user ids, $2 events
with held as materialized (
    select webhook_id, last
    from walhook.webhook_sequence
    where webhook_id = any (array(
        select id from walhook.webhook where user_id = any ($1::text[]) and active and events && $2::text[]
    ))
    order by webhook_id
    for update
)
select webhook.id, webhook.user_id, webhook.events, webhook.active, webhook.url, webhook.secret, webhook.secret_key_id,
    webhook.ordering, webhook.headers, webhook.headers_key_id, webhook.filter, held.last, webhook.activation,
    webhook.private_key, webhook.private_key_key_id, webhook.previous_secret, webhook.previous_secret_key_id,
    webhook.previous_private_key, webhook.previous_private_key_key_id, webhook.previous_expires_at
from walhook.webhook
left join held on held.webhook_id = webhook.id
where webhook.user_id = any ($1::text[])

-- name: count
-- Adds to the webhooks' counters and returns their new values. The rows are locked in order of id,
-- so that two replicas that count for the same webhooks cannot deadlock. Runs of failures are timed
-- by this clock alone: those of replicas may differ. $1 webhooks, $2 successes, $3 failures, $4
-- failures after the last success, $5 last triggered
with counted as materialized (
    select webhook.id, successes, failures, recent, triggered
    from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[])
        as tally (id, successes, failures, recent, triggered)
    join walhook.webhook on webhook.id = tally.id
    order by webhook.id
    for no key update of webhook
)
update walhook.webhook
set success_count = success_count + successes,
    failure_count = failure_count + failures,
    consecutive_failures = case when successes > 0 then recent else consecutive_failures + recent end,
    failing_since = case
        when recent = 0 then case when successes = 0 then failing_since end
        when successes > 0 then now()
        else coalesce(failing_since, now())
    end,
    last_triggered_at = greatest(last_triggered_at, triggered)
from counted
where webhook.id = counted.id
returning webhook.id, active, failure_count, consecutive_failures, failing_since, warned_at, now() as counted_at

-- name: delete
-- $1 user, $2 id
delete from walhook.webhook
where user_id = $1 and id = $2

-- name: disable_by_operator
-- Does nothing for a webhook that is inactive. $1 user, $2 id, $3 the reason that it shows
update walhook.webhook
set active = false, disabled_at = now(), disabled_reason = $3, updated_at = now()
where user_id = $1 and id = $2 and active
returning id

-- name: disable
-- Disables a webhook and inserts a notice for its owner, who is returned. $1 webhook, $2 the
-- failure, described, $3 its kind in the log or `gone`, $4 the notice's id, $5 failures, $6 the
-- threshold, $7 the reason that the webhook shows
with disabled as (
    update walhook.webhook
    set active = false,
        disabled_at = now(),
        disabled_reason = $7::text,
        updated_at = now()
    where id = $1::uuid and active
    returning id, user_id, name, url, failing_since
)
insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind, failures, threshold, failing_since)
select $4::uuid, 'disabled', id, user_id, name, url, $2::text, $3::text, $5::bigint, $6::bigint, failing_since
from disabled
returning user_id

-- name: forget_previous
-- Removes the keys whose overlap has ended. Skips webhooks that are locked: the next run removes
-- theirs.
update walhook.webhook
set previous_secret = null,
    previous_secret_key_id = null,
    previous_private_key = null,
    previous_private_key_key_id = null,
    previous_public_key = null,
    previous_expires_at = null
where id = any (array(
    select id from walhook.webhook where previous_expires_at <= now() order by id for update skip locked
))

-- name: get
-- A user's webhooks, by id. $1 user, $2 the first id, $3 the last id, $4 how many at most
select id, to_json(settings) as settings, headers_changed_at, success_count, failure_count,
       consecutive_failures, failing_since, last_triggered_at, disabled_at, disabled_reason, created_at, updated_at, public_key,
       case when previous_expires_at > now() then previous_expires_at end as previous_secret_expires_at
from walhook.webhook
cross join lateral (
    select name, url, events, active, ordering, signing, description, metadata, header_names, filter
) as settings
where user_id = $1 and id between $2 and $3
order by id
limit $4

-- name: lock
-- Locks webhooks against deletion and returns those that exist. $1 webhooks
select id from walhook.webhook where id = any ($1::uuid[]) order by id for key share

-- name: insert
-- Inserts a webhook unless the user has too many, and returns its id. $1 user, $2 id, $3 the
-- settings by column, $4 the most webhooks of the user, $5 secret, $6 its key id, $7 the encrypted
-- headers or null, $8 their key id, $9 private key or null, $10 its key id, $11 public key
insert into walhook.webhook (user_id, id, name, url, events, active, ordering, signing, description, metadata,
    header_names, filter, secret, secret_key_id, headers, headers_key_id, headers_changed_at, private_key,
    private_key_key_id, public_key)
select $1, $2, name, url, events, active, ordering, signing, description, metadata,
    header_names, filter, $5, $6, $7, $8, case when $7::bytea is not null then clock_timestamp() end, $9, $10, $11
from jsonb_populate_record(null::walhook.webhook, $3)
where (select count(*) from walhook.webhook where user_id = $1) < $4::bigint
returning id

-- name: find_by_name
-- The first of a user's webhooks with this name. $1 user, $2 name
select id from walhook.webhook where user_id = $1 and name = $2 order by id limit 10

-- name: lock_user
-- Serializes the creation of a user's webhooks, so that the limit holds. $1 user
select pg_advisory_xact_lock(hashtextextended('walhook webhooks of ' || $1::text, 0))

-- name: list_states
-- The states of webhooks in the order of their ids. $1 webhook after which to start, $2 webhooks to
-- read at most, $3 user or null for all
select id, user_id, active, disabled_at is not null as disabled, consecutive_failures
from walhook.webhook
where id > $1 and ($3::text is null or user_id = $3)
order by id limit $2

-- name: owner
-- $1 webhook
select user_id from walhook.webhook where id = $1

-- name: ordering
-- $1 webhook
select ordering from walhook.webhook where id = $1

-- name: set_secret
-- Replaces a webhook's secret, and its key pair if it has one. The old ones stay valid for the
-- overlap; without one they are removed, as are those of an earlier overlap. Sessions that show the
-- old secret stop showing it: only the session that requested the change may show the new one. $1
-- user, $2 id, $3 secret, $4 key id, $5 private key, $6 its key id, $7 public key, $8 the overlap
-- in seconds, or 0 for none
with hidden as (
    update walhook.session set reveals = null where user_id = $1 and reveals = $2
)
update walhook.webhook
set secret = $3,
    secret_key_id = $4,
    private_key = case when private_key is not null then $5::bytea end,
    private_key_key_id = case when private_key is not null then $6::text end,
    public_key = case when private_key is not null then $7::bytea end,
    previous_secret = case when $8::float8 > 0 then secret end,
    previous_secret_key_id = case when $8 > 0 then secret_key_id end,
    previous_private_key = case when $8 > 0 then private_key end,
    previous_private_key_key_id = case when $8 > 0 then private_key_key_id end,
    previous_public_key = case when $8 > 0 then public_key end,
    previous_expires_at = case when $8 > 0 then now() + make_interval(secs => $8) end,
    updated_at = now()
where user_id = $1 and id = $2
returning public_key, previous_expires_at

-- name: states
-- Counts webhooks in the order of their ids: how many are active, deactivated by their owners, and
-- disabled, how many of the active ones are failing, and the last one. $1 webhook after which to start, $2 webhooks to count
-- at most
with counted as materialized (
    select id, active, disabled_at, consecutive_failures from walhook.webhook where id > $1 order by id limit $2
)
select
    count(*) filter (where active) as active,
    count(*) filter (where not active and disabled_at is null) as inactive,
    count(*) filter (where disabled_at is not null) as disabled,
    count(*) filter (where active and consecutive_failures > 0) as failing,
    (select id from counted order by id desc limit 1) as last
from counted

-- name: targets
-- $1 webhooks
select id, url, active, secret, secret_key_id, headers, headers_key_id, activation,
       private_key, private_key_key_id,
       previous_secret, previous_secret_key_id, previous_private_key, previous_private_key_key_id, previous_expires_at
from walhook.webhook
where id = any ($1::uuid[])

-- name: triggered
-- Sets when the webhook was last called. The row stays locked, so that the webhook cannot be
-- deleted before the commit. $1 webhook, $2 the time, or null
update walhook.webhook set last_triggered_at = greatest(last_triggered_at, $2) where id = $1 returning id

-- name: update
-- $1 user, $2 id, $3 the settings by column, $4 whether to reset the failures of an automatic
-- disablement, $5 whether to replace the custom headers by $6, encrypted or null, $7 their key id;
-- for a webhook without a key pair that gets one: $8 private key, $9 its key id, $10 public key
update walhook.webhook
set name = wanted.name,
    url = wanted.url,
    events = wanted.events,
    active = wanted.active,
    ordering = wanted.ordering,
    signing = wanted.signing,
    description = wanted.description,
    metadata = wanted.metadata,
    header_names = wanted.header_names,
    filter = wanted.filter,
    headers = case when $5::bool then $6 else webhook.headers end,
    headers_key_id = case when $5 then $7 else webhook.headers_key_id end,
    headers_changed_at = case when $5 then clock_timestamp() else webhook.headers_changed_at end,
    activation = webhook.activation + (wanted.active and not webhook.active)::integer,
    failure_count = case when $4::bool then 0 else webhook.failure_count end,
    consecutive_failures = case when $4 then 0 else webhook.consecutive_failures end,
    failing_since = case when $4 then null else webhook.failing_since end,
    disabled_at = case when $4 then null else webhook.disabled_at end,
    disabled_reason = case when $4 then null else webhook.disabled_reason end,
    private_key = case when wanted.signing <> 'hmac' then coalesce(webhook.private_key, $8::bytea) end,
    private_key_key_id = case when wanted.signing <> 'hmac' then coalesce(webhook.private_key_key_id, $9::text) end,
    public_key = case when wanted.signing <> 'hmac' then coalesce(webhook.public_key, $10::bytea) end,
    previous_private_key = case when wanted.signing <> 'hmac' then webhook.previous_private_key end,
    previous_private_key_key_id = case when wanted.signing <> 'hmac' then webhook.previous_private_key_key_id end,
    previous_public_key = case when wanted.signing <> 'hmac' then webhook.previous_public_key end,
    updated_at = now()
from jsonb_populate_record(null::walhook.webhook, $3) as wanted
where webhook.user_id = $1 and webhook.id = $2

-- name: warn
-- Inserts a warning for a webhook's owner. $1 webhook, $2 the failure, described, $3 its kind in
-- the log, $4 the notice's id, $5 failures, $6 the threshold
with warned as (
    update walhook.webhook set warned_at = now() where id = $1::uuid
    returning id, user_id, name, url
)
insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind, failures, threshold)
select $4::uuid, 'warning', id, user_id, name, url, $2::text, $3::text, $5::bigint, $6::bigint
from warned
returning user_id
