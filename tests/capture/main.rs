//! Capture against a real Postgres: what streams out, what survives, and what setup and teardown leave behind.

#[path = "../support/mod.rs"]
mod support;

mod prepare;
mod stage;
mod stream;
