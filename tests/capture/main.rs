//! Capture against a real Postgres: what streams out, what survives, and what setup and teardown leave behind.

#[path = "../support/mod.rs"]
mod support;

mod catalog;
mod chaos;
mod connections;
mod drift;
mod failover;
mod identity;
mod names;
mod prepare;
mod stage;
mod stream;
mod versions;
