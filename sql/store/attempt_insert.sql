insert into walhook.attempt (
    id, webhook_id, delivery_id, event_id, event_kind, round, attempt, test, started_at, duration_ms, outcome,
    response_status, error_kind, error_message, url, signature, standard_signature, response_body
)
select *
from unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::smallint[], $7::smallint[], $8::boolean[],
    $9::timestamptz[], $10::integer[], $11::text[], $12::smallint[], $13::text[], $14::text[], $15::text[], $16::bytea[],
    $17::bytea[], $18::bytea[]
)
