//! The types that all stages share: changes, events, webhooks and deliveries. No I/O, no clock, no
//! randomness.

pub mod about;
pub mod addons;
pub mod backoff;
pub mod change;
pub mod delivery;
pub mod disablement;
pub mod durations;
pub mod event;
pub mod extra;
pub mod gap;
pub mod headers;
pub mod ledger;
pub mod lsn;
pub mod members;
mod named;
pub mod notice;
pub mod ordering;
pub mod position;
pub mod publication;
pub mod read_pages;
mod reserved;
pub mod response;
pub mod sealed;
pub mod sequence;
pub mod settings;
pub mod signing;
pub mod subject;
pub mod survey;
pub mod table;
pub mod text;
pub mod time;
pub mod trace;
pub mod webhook;
pub mod window;
