-- The number of the last delivery of each webhook. Not in `webhook`, whose rows change with every recorded batch: storing events locks
-- these rows until the commit, and would wait for it. A webhook without a row gets one with its first delivery: builds without this
-- table do not insert any.
create table walhook.webhook_sequence (
    webhook_id uuid primary key,
    last       bigint not null
) with (fillfactor = 50); -- changes with every batch: updated in place
insert into walhook.webhook_sequence (webhook_id, last) select id, 0 from walhook.webhook;
