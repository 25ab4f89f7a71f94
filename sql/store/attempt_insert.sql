insert into walhook.attempt (
    id, webhook_id, delivery_id, event_id, event_kind, round, attempt, test, started_at, duration_ms, outcome,
    response_status, error_kind, error_message, url, signature, standard_signature, response_body, sequence, more_signatures
)
-- One `unnest` per column in the select list: as a table function, all arrays would be materialized before the first row is inserted.
select unnest($1::uuid[]), unnest($2::uuid[]), unnest($3::uuid[]), unnest($4::uuid[]), unnest($5::text[]),
    unnest($6::smallint[]), unnest($7::smallint[]), unnest($8::boolean[]), unnest($9::timestamptz[]), unnest($10::integer[]),
    unnest($11::text[]), unnest($12::smallint[]), unnest($13::text[]), unnest($14::text[]), unnest($15::text[]),
    unnest($16::bytea[]), unnest($17::bytea[]), unnest($18::bytea[]), unnest($19::bigint[]),
    unnest($20::bytea[])
