-- What the feed needs: events in the order of their commits, by label.
alter table walhook.event
    -- Null for tests, and for events that builds without this column stored.
    add column sequence bigint,
    -- Null for events that belong to no label.
    add column label_id bigint;
-- Without `only`, this would scan every partition while writes wait. Partitions of later days get the index when they are made.
create index event_feed on only walhook.event (user_id, sequence) where sequence is not null;
create index event_default_feed on walhook.event_default (user_id, sequence) where sequence is not null;
alter index walhook.event_feed attach partition walhook.event_default_feed;
