-- Jobs are recoveries and replays. A replay delivers stored events to a webhook that never had them.
alter table walhook.recovery
    -- recover or replay.
    add column kind          text not null default 'recover',
    -- The deliveries that were expected when the job was requested. Null for recoveries that builds without this column began.
    add column total         bigint,
    -- When the job ended early: `finished_at` is set too, so that builds without this column leave it alone.
    add column cancelled_at  timestamptz,
    -- The other columns are those of replays. Their `due_at` is infinity: builds without replays take jobs by that column.
    add column replay_due_at timestamptz,
    add column events        text[],
    -- Null for every label.
    add column label_ids     bigint[],
    -- The number of the last event that was stored when the replay was requested.
    add column last_sequence bigint not null default 0,
    -- The number of the last event that was read.
    add column sequence      bigint not null default 0,
    -- The deliveries that were created last, when, and how many at most.
    add column chunk         uuid[] not null default '{}',
    add column chunk_at      timestamptz,
    add column chunk_size    integer not null default 0,
    -- Replays have other phases.
    drop constraint recovery_phase_check;
create index recovery_webhook on walhook.recovery (webhook_id, id);
