-- Returns the attempts that were superseded while they were in flight, each only once.
-- $1 deliveries, $2 leases
delete from walhook.superseded_attempt
where delivery_id = any ($1::uuid[])
  and (delivery_id, lease) in (select * from unnest($1::uuid[], $2::uuid[]))
returning delivery_id, lease
