-- Inserts a webhook unless the user has too many, and returns its id.
-- $1 user, $2 id, $3 name, $4 url, $5 events, $6 active, $7 secret, $8 key id, $9 the most webhooks of the user,
-- $10 description, $11 metadata, $12 filter, $13 names of the custom headers, $14 the encrypted headers or null, $15 their key id, $16 ordering,
-- $17 signing, $18 private key, or null, $19 its key id, $20 public key
insert into walhook.webhook (user_id, id, name, url, events, active, secret, secret_key_id,
    description, metadata, filter, header_names, headers, headers_key_id, headers_changed_at, ordering,
    signing, private_key, private_key_key_id, public_key)
select $1, $2, $3, $4, $5, $6, $7, $8,
    $10, $11::text::jsonb, $12::text::jsonb, $13, $14, $15, case when $14::bytea is not null then clock_timestamp() end, $16,
    $17, $18, $19, $20
where (select count(*) from walhook.webhook where user_id = $1) < $9::bigint
returning id
