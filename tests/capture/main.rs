//! Capture against a real Postgres: what streams out, what survives, and what setup and teardown leave behind.

#[path = "../support/mod.rs"]
mod support;

mod catalog;
mod chaos;
mod connections;
mod crash;
mod drift;
mod equivalence;
mod events;
mod facts;
mod failover;
mod fencing;
mod giant;
mod identity;
mod mapping;
mod names;
mod partitions;
mod prepare;
mod repair;
mod silence;
mod stage;
mod stream;
mod triggers;
mod versions;
mod visibility;
