-- Removes old notices, and returns how many were never sent. A warning that could not be sent for a day is outdated: if the webhook keeps
-- failing, there is a newer one.
-- $1 how many days the others are kept
with gone as (
    delete from walhook.notice
    where at < now() - make_interval(days => $1::int)
       or at < now() - interval '1 day' and kind = 'warning' and ended_at is null
    returning ended_at
)
select count(*) from gone where ended_at is null
