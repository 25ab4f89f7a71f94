-- What is needed to derive an event again: its change, and what the store or the primary said.
alter table walhook.unrouted_event
    add column detail text not null default '',
    add column change json,
    alter column commit_lsn drop not null;
