-- Whether a transaction still holds the lock on its own id. Until it releases the lock, its effects may not be visible. $1 the
-- lower 32 bits of its id
select exists (
    select from pg_catalog.pg_locks where locktype = 'transactionid' and transactionid = $1::text::xid
)
