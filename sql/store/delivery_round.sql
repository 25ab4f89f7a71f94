-- name: expire
-- $1 the lowest id to keep: the events of deliveries below it were removed
delete from walhook.delivery_round where delivery_id < $1
