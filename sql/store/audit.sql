-- name: insert
-- Inserts a row, or counts the change in the row $10 if the user has as many rows of this day as
-- allowed. $1 id, $2 user, $3 via, $4 API token of the request, $5 action, $6 webhook or token, $7
-- names of changed fields, $8 the lowest id of this day, $9 the most rows, $10 the id of the row
-- that counts further changes
insert into walhook.audit (id, user_id, via, token_id, action, subject_id, changed)
select
    case
        when (select count(*) from (select from walhook.audit where user_id = $2 and id >= $8 limit $9) as today) < $9 then $1::uuid
        else $10::uuid
    end,
    $2, $3, $4::uuid, $5, $6::uuid, $7::text[]
on conflict (id) do update
set count = audit.count + 1, last_at = clock_timestamp(),
    via = excluded.via, token_id = excluded.token_id, subject_id = excluded.subject_id, changed = excluded.changed

-- name: list
-- A user's records, newest first, with the names of the webhooks and tokens that still exist. What
-- identifies a session is not shown. $1 user, $2 the id before which to start, $3 the webhook or
-- token, or null for all, $4 the action, or null for all, $5 how many at most
select audit.id, audit.at, audit.via, audit.token_id, token.name as token_name, audit.action,
    case when audit.action <> 'user.signed_in' then audit.subject_id end as subject,
    coalesce(webhook.name, subject.name) as subject_name, audit.changed, audit.count, audit.last_at
from walhook.audit
left join walhook.api_token as token on token.id = audit.token_id and token.user_id = audit.user_id
left join walhook.api_token as subject on subject.id = audit.subject_id and subject.user_id = audit.user_id
left join walhook.webhook on webhook.id = audit.subject_id and webhook.user_id = audit.user_id
where audit.user_id = $1
    and audit.id < $2
    and ($3::uuid is null or audit.subject_id = $3)
    and ($4::text is null or audit.action = $4)
order by audit.id desc
limit $5

-- name: remove
-- $1 the retention period in days
delete from walhook.audit
where at < now() - make_interval(days => $1::int)

-- name: erase
-- $1 user, $2 rows at most
delete from walhook.audit where id in (select id from walhook.audit where user_id = $1 limit $2)
