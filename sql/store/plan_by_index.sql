-- Makes every statement on deliveries use an index. The table is empty at one time and has a million rows at another, and a cached plan
-- for the empty table would read all of the rows.
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    -- The plan does not depend on the parameters, so each statement is planned only once.
    set_config('plan_cache_mode', 'force_generic_plan', true)
