//! Pure types: what a change, an event, a webhook and a delivery are. No I/O, no clock of its own, no randomness of its own.

pub mod backoff;
pub mod change;
pub mod delivery;
pub mod disablement;
pub mod durations;
pub mod event;
pub mod gap;
pub mod ledger;
pub mod lsn;
pub mod notice;
pub mod table;
pub mod time;
pub mod trace;
pub mod webhook;
pub mod window;
