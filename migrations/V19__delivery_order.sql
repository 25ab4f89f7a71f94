alter table walhook.delivery
    -- The delivery's number within its webhook. Null for deliveries that builds without this column made.
    add column sequence bigint,
    -- Deliveries of one webhook with the same key are delivered one after the other, in the order of their numbers. All but the first
    -- are parked: due at infinity. Null for a delivery that neither waits for others nor makes them wait.
    add column order_key bigint;
-- The first delivery of a key, and the last. The scan takes a moment: the table holds pending deliveries only.
create index delivery_order on walhook.delivery (webhook_id, order_key, sequence) where order_key is not null;
