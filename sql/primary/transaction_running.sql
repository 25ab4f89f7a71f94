-- Whether a transaction holds its own lock still: until it has none, its effects may not be visible. $1 its number's lower half
select exists (
    select from pg_catalog.pg_locks where locktype = 'transactionid' and transactionid = $1::text::xid
)
