create or replace function walhook_capture.{function}() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '1s'
    set datestyle = 'ISO'
    set timezone = 'UTC'
    set intervalstyle = 'postgres'
    set extra_float_digits = 1
    set bytea_output = 'hex'
as {quote}
declare
    failure bigint := 0;
    state text;
    reason text;
begin
    if tg_op = 'INSERT' then
        insert into walhook_capture.outbox (relation, operation, muted, new)
        select '{table}', 'I', coalesce(current_setting('walhook.mute', true), '') = 'on', {new}
        from new_rows n;
    elsif tg_op = 'DELETE' then
        insert into walhook_capture.outbox (relation, operation, muted, old)
        select '{table}', 'D', coalesce(current_setting('walhook.mute', true), '') = 'on', {old}
        from old_rows o;
    elsif tg_op = 'UPDATE' then
        -- A row whose key changed has no partner: it went, and another came.
        insert into walhook_capture.outbox (relation, operation, muted, old, new)
        select
            '{table}',
            case when n.walhook_row is null then 'D' when o.walhook_row is null then 'I' else 'U' end,
            coalesce(current_setting('walhook.mute', true), '') = 'on',
            case when o.walhook_row then {old} end,
            case when n.walhook_row then {new} end
        from (select true as walhook_row, * from old_rows) o
        full join (select true as walhook_row, * from new_rows) n on {paired}
        where o.walhook_row is null or n.walhook_row is null or {changed}{order};
    else
        insert into walhook_capture.outbox (relation, operation, muted)
        values ('{table}', 'T', coalesce(current_setting('walhook.mute', true), '') = 'on');
    end if;
    return null;
-- Never the application's transaction. A cancelled statement is not among these: it stays cancelled.
exception when others then
    state := sqlstate;
    reason := sqlerrm;
    -- A sequence needs no space and is not rolled back: it moves whatever else fails.
    begin
        failure := nextval('walhook_capture.failures');
    exception when others then
        null;
    end;
    begin
        if failure <= 100 or failure % 1000 = 0 then
            insert into walhook_capture.failure (id, relation, operation, state, message)
            values (failure, '{table}', tg_op, state, reason);
        end if;
    exception when others then
        null;
    end;
    raise log 'walhook: % of {table} was not captured: % (%)', lower(tg_op), reason, state;
    return null;
end
{quote};
