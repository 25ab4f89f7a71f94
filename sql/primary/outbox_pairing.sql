-- A row that a transaction deletes and inserts again under the same key is the same row, moved to another partition or replaced. The
-- outbox gets one update instead of a deletion and an insertion.
create index if not exists outbox_deleted on walhook_capture.outbox (xid, relation, (old[1])) where operation = 'D';

create or replace function walhook_capture.outbox_paired() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    -- The plan is cached, often made while the outbox is empty: a sequential scan would be slow once it is large.
    set enable_seqscan = off
as $walhook$
declare
    deleted walhook_capture.outbox;
begin
    if new.operation = 'D' then
        -- From here on, the trigger fires for this transaction's insertions.
        perform set_config('walhook.deleted', 'on', true);
        return new;
    end if;
    select * into deleted
    from walhook_capture.outbox gone
    where gone.xid = new.xid and gone.relation = new.relation and gone.operation = 'D' and gone.old[1] = new.new[1]
    limit 1;
    if found then
        delete from walhook_capture.outbox where seq = deleted.seq;
        new.operation := 'U';
        new.old := deleted.old;
    end if;
    return new;
end
$walhook$;
create or replace trigger paired before insert on walhook_capture.outbox
    for each row when (
        (new.operation = 'I' and current_setting('walhook.deleted', true) = 'on')
        or (new.operation = 'D' and current_setting('walhook.deleted', true) is distinct from 'on')
    ) execute function walhook_capture.outbox_paired();
