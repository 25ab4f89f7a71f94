-- The time after which no replica stores events without a number: a day after the migration that added numbers. Replicas of earlier
-- builds are replaced within that day.
select applied_on::timestamptz + interval '1 day' from walhook.refinery_schema_history where version = 15
