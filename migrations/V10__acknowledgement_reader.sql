-- The connection that moves the limit: one that another has replaced changes nothing any more.
alter table walhook.acknowledgement add column reader uuid;
