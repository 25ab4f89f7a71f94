-- The events that a replay skips because the webhook has had a delivery of them. The rows are removed after the replay has ended.
create table walhook.replay_exclusion (
    replay_id uuid not null,
    event_id  uuid not null,
    primary key (replay_id, event_id)
);
