-- Uses an index for every statement on deliveries. The table is empty at one time and has a million rows at another, and a plan that
-- was made for the empty table, and kept, would read all of them.
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    -- The plan does not depend on the parameters, so it is not made again each time.
    set_config('plan_cache_mode', 'force_generic_plan', true)
