//! Walhook stands beside a music-distribution platform's Postgres, reads what the platform commits, derives events from row
//! transitions and delivers them as signed webhooks.

pub mod api;
pub mod app;
pub mod capture;
pub mod cli;
pub mod clock;
pub mod config;
pub mod deliver;
pub mod domain;
pub mod enqueue;
pub mod events;
pub mod handoff;
pub mod health;
pub mod lookup;
pub mod postgres;
pub mod private_postgres;
pub mod record;
pub mod store;
pub mod telemetry;
pub mod vault;
