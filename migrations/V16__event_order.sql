-- Finds the newest events of all users: by it, open streams learn which users have new events.
-- Without `only`, this would scan every partition while writes wait. Partitions of later days get the index when they are made, and
-- maintenance builds it for the others.
create index event_order on only walhook.event (sequence) where sequence is not null;
create index event_default_order on walhook.event_default (sequence) where sequence is not null;
alter index walhook.event_order attach partition walhook.event_default_order;
