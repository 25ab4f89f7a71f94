-- How often triggers have failed, and the last failure whose reason was recorded
select
    failures.last_value as count,
    (
        select failure.operation || ' of ' || failure.relation || ': ' || failure.message || ' (' || failure.state || ')'
        from walhook_capture.failure order by id desc limit 1
    ) as last
from walhook_capture.failures
where failures.is_called
