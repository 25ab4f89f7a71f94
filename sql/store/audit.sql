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

-- name: remove
-- $1 the retention period in days
delete from walhook.audit
where at < now() - make_interval(days => $1::int)

-- name: erase
-- $1 user, $2 rows at most
delete from walhook.audit where id in (select id from walhook.audit where user_id = $1 limit $2)
