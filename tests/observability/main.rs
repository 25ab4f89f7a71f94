//! What an operator sees of a running sidecar: its log and its metrics.

#[path = "../support/mod.rs"]
mod support;

mod logs;
mod metrics;
mod readiness;
