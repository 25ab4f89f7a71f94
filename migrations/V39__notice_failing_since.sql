-- When the first of the failures was recorded that led to the notice.
alter table walhook.notice add column failing_since timestamptz;
create index notice_disabled on walhook.notice (webhook_id, at) where kind = 'disabled';
