insert into walhook_capture.outbox (relation, operation, muted, old, new)
    select
        '{table}', written.operation::"char", coalesce(current_setting('walhook.mute', true), '') = 'on',
        case when written.operation in ('U', 'D') then {old} end,
        case when written.operation in ('U', 'I') then {new} end
    -- A row whose key changed is two: one that went, and another that came.
    from unnest(case when {operation} = 'U' and ({rekeyed}) then array['D', 'I'] else array[{operation}] end) written (operation)
