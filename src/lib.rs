//! Walhook stands beside a music-distribution platform's Postgres, reads what the platform commits, derives events from row
//! transitions and delivers them as signed webhooks.
//!
//! # The way of the data
//!
//! ```text
//! capture ─changes─▶ enqueue ─fresh deliveries─▶ deliver ─answers─▶ record
//!                      │ asks lookup                ▲ claims           │
//!                      └──────────── store ─────────┴──────────────────┘
//! ```
//!
//! - [`capture`] streams committed transactions from a replication slot and gives every change its place in the log;
//! - [`enqueue`] lets the rules of [`events`] judge each change, with facts from [`lookup`], and stores what they raise, the
//!   deliveries and the checkpoint in one transaction;
//! - [`deliver`] takes fresh deliveries through [`handoff`] and claims everything else that is due, in fair turns;
//! - [`record`] writes down what attempts ended in;
//! - [`notify`] tells owners by e-mail when their webhooks keep failing;
//! - [`api`] is how users manage their webhooks and read the log;
//! - [`ui`] is the same as pages, by the same functions;
//! - [`traces`] takes what enqueue, deliver and record tell of an event's way to a collector;
//! - [`app`] builds all of them and joins them by channels: they do not know each other;
//! - [`domain`] holds the types they share, [`store`] every statement on Walhook's own tables.
//!
//! # Five promises
//!
//! 1. **An event exists if and only if the platform's transaction committed.** Nothing is lost and nothing is stored twice,
//!    whichever process is killed at whatever moment. Delivery is at least once, under an id that never changes: it is made
//!    from the event's place in the log and the webhook.
//! 2. **Checkpoint before acknowledgement.** The server hears that it may forget a stretch of its log only when everything in
//!    it is durable in the store. After a restart, what lies at or before the stored position is skipped.
//! 3. **A tenant sees only its own.** An event reaches the webhooks of the user who owns the label and no others; every
//!    statement of the API names the user it works for.
//! 4. **A slow or dead receiver delays nobody else.** It has a bounded share of the requests under way and of the room in
//!    memory; retries have a budget apart from fresh deliveries.
//! 5. **The platform's database is never put at risk.** Changes of it are few, explicit, short and undone by `teardown`; the
//!    log that the slot holds back is measured.

#![forbid(unsafe_code)]

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
pub mod manage;
pub mod notify;
pub mod observe;
pub mod postgres;
pub mod private_postgres;
pub mod record;
pub mod recover;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod traces;
pub mod ui;
pub mod vault;
