//! Walhook runs beside the Postgres of a music-distribution platform, reads what the platform
//! commits, derives events from row transitions, and delivers them as signed webhooks.
//!
//! # Data flow
//!
//! ```text
//! capture ─changes─▶ enqueue ─fresh deliveries─▶ deliver ─answers─▶ record
//!                      │ lookup                     ▲ claims           │
//!                      └──────────── store ─────────┴──────────────────┘
//! ```
//!
//! - [`capture`] streams committed transactions from a replication slot, or reads the triggers'
//!   outbox, and gives every change its position;
//! - [`enqueue`] applies the rules of [`events`] to each change, with facts from [`lookup`], and
//!   stores the events, their deliveries and the checkpoint in one transaction;
//! - [`deliver`] receives fresh deliveries through [`handoff`], claims all others when they are
//!   due, and serves webhooks fairly;
//! - [`record`] stores the outcomes of attempts;
//! - [`jobs`] redelivers time ranges and replays events in the background; [`notify`] sends owners
//!   an e-mail when their webhooks keep failing;
//! - [`primary`] prepares and inspects the platform's database; [`repair`] detects gaps and finds
//!   the transitions that they hid;
//! - [`propose`] derives a configuration from a survey of the platform's schema, for `walhook init`;
//! - [`manage`] holds the use cases of webhooks' owners; [`api`] is the management API and [`ui`]
//!   the web UI on top of it;
//! - [`http`] holds the listener, its limits and middleware; [`auth`] verifies tokens and sessions;
//! - [`store`] holds every statement on Walhook's own tables, and maintains their partitions;
//! - [`app`] builds the stages and connects them by channels, because they do not use each other;
//!   [`cli`] holds the subcommands;
//! - [`domain`] holds the shared types, [`config`] the settings, [`telemetry`] logs, metrics, spans
//!   and readiness.
//!
//! # Five promises
//!
//! 1. **An event exists if and only if the platform's transaction committed.** Nothing is lost and
//!    nothing is stored twice, whichever process is killed at any time. Delivery is at least once,
//!    under an id that never changes: it is derived from the webhook and the event's position.
//! 2. **Checkpoint before acknowledgement.** WAL is acknowledged to the server only when everything
//!    in it is durable in the store. After a restart, changes at or before the stored position are
//!    skipped.
//! 3. **A tenant sees only its own data.** An event reaches only webhooks of the user who owns the
//!    label; every statement of the API is scoped by user.
//! 4. **A slow or dead receiver delays nobody else.** Its requests in flight and its deliveries in
//!    memory are bounded; retries have a budget of their own.
//! 5. **The platform's database is never put at risk.** Changes to it are few, explicit, short, and
//!    undone by `teardown`; the WAL that the slot retains is measured.

#![forbid(unsafe_code)]

pub mod api;
pub mod app;
pub mod auth;
pub mod capture;
pub mod cli;
pub mod clock;
pub mod config;
pub mod deliver;
pub mod domain;
pub mod enqueue;
pub mod events;
pub mod failpoint;
pub mod handoff;
pub mod http;
mod io;
pub mod jobs;
pub mod lookup;
pub mod manage;
pub mod notify;
pub mod postgres;
pub mod primary;
pub mod private_postgres;
pub mod propose;
pub mod record;
pub mod repair;
pub mod retry;
pub mod sql;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod ui;
pub mod vault;
