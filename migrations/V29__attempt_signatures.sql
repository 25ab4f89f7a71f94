-- The other signatures in the header webhook-signature, concatenated: 32 bytes with the previous secret, then 64 bytes for each ed25519
-- key. Null if there are none.
alter table walhook.attempt add column more_signatures bytea;
