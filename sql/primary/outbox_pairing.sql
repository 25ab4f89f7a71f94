-- A row that is inserted by the transaction that deleted the row with its key is the same row, moved to another partition or written
-- again: the outbox has it as one update.
create index if not exists outbox_deleted on walhook_capture.outbox (xid, relation, (old[1])) where operation = 'D';

create or replace function walhook_capture.outbox_paired() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    -- The outbox is mostly small when this is planned, and may be large when it runs.
    set enable_seqscan = off
as $walhook$
declare
    deleted walhook_capture.outbox;
begin
    if new.operation = 'D' then
        -- Only behind this is anything looked for: see the trigger.
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
