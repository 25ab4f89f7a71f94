//! What an operator sees of a running sidecar: its log, its traces and its metrics.

mod collector;
mod logs;
mod metrics;
mod readiness;
mod traces;
