//! The shared types: changes, events, webhooks and deliveries, with their state machines. No I/O, no clock, no randomness.

pub mod backoff;
pub mod change;
pub mod delivery;
pub mod disablement;
pub mod durations;
pub mod event;
pub mod ledger;
pub mod lsn;
mod named;
pub mod notice;
pub mod table;
pub mod time;
pub mod trace;
pub mod webhook;
pub mod window;
