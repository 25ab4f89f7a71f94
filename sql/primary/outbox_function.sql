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
    -- Most updates change nothing that events need. They cost no transaction id: nothing is written.
    if tg_op = 'UPDATE' and not ({changed}) then
        return null;
    end if;
    if current_setting('walhook.outbox_locked', true) = 'on' then
        raise lock_not_available using message = 'the outbox was locked at an earlier row of the transaction';
    end if;
    {write};
    return null;
-- Never the application's transaction. A cancelled statement is not among these: it stays cancelled.
exception when others then
    state := sqlstate;
    reason := sqlerrm;
    if state = '42804' then
        -- The session has plans from before the type of a column was altered. This statement is planned each time.
        begin
            execute {inner}{planned}{inner} using left(tg_op, 1), old, new;
            return null;
        exception when others then
            state := sqlstate;
            reason := sqlerrm;
        end;
    end if;
    if state = '55P03' then
        -- The other rows of the transaction do not wait for the lock again.
        perform set_config('walhook.outbox_locked', 'on', true);
    end if;
    -- A sequence needs no space and is not rolled back: it moves whatever else fails.
    begin
        failure := nextval('walhook_capture.failures');
    exception when others then
        null;
    end;
    if failure <= 100 or failure % 1000 = 0 then
        begin
            insert into walhook_capture.failure (id, relation, operation, state, message)
            values (failure, '{table}', tg_op, state, reason);
        exception when others then
            null;
        end;
        raise log 'walhook: % of {table} was not captured: % (%)', lower(tg_op), reason, state;
    end if;
    return null;
end
{quote};
-- Who creates a partition creates its triggers, and PostgreSQL checks this right. Without usage of the schema, it allows nothing else.
grant execute on function walhook_capture.{function}() to public;
