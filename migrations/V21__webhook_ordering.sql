-- Which deliveries of the webhook wait for each other: none, those of one release, or all (strict).
alter table walhook.webhook add column ordering text not null default 'none';
