//! What an operator observes of a running sidecar: server log, traces and metrics.

mod logs;
mod metrics;
mod readiness;
mod traces;
