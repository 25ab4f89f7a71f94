-- How often the webhook was switched on again. A delivery that was claimed under an earlier activation has been cancelled since.
alter table walhook.webhook add column activation integer not null default 0;
