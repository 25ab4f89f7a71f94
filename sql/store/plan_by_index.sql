-- The table of deliveries is empty at one time and has a million rows at another. A plan made for the former reads the whole
-- table, and is kept for the latter: every statement on it has an index, so have it used.
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    -- However many rows there are, the plan is the same: it need not be made each time.
    set_config('plan_cache_mode', 'force_generic_plan', true)
