-- $1 up to how many to count
select count(*) from (select from walhook.notice where ended_at is null limit $1) as pending
