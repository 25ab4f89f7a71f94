-- $1 where counting ends
select count(*) from (select from walhook.notice where ended_at is null limit $1) as pending
