//! Readiness: which stages are unhealthy, and why. Each stage reports its own state under its own
//! name.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex};

use crate::telemetry::Activity;

/// The stage that readiness reports while a gap is open.
pub const GAP: &str = "gap";

/// The unhealthy stages with their reasons. Shared by the stages, which write it, and by `/readyz`,
/// which reads it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Health {
    /// Records that `stage` is unhealthy, and replaces an earlier reason.
    pub fn report_unhealthy(&self, stage: &'static str, reason: impl Into<String>) {
        self.0
            .lock()
            .expect("no holder of this lock panics")
            .insert(stage, reason.into());
    }

    /// Records that `stage` is healthy again.
    pub fn report_healthy(&self, stage: &'static str) {
        self.0
            .lock()
            .expect("no holder of this lock panics")
            .remove(stage);
    }

    /// Returns a handle by which `stage` reports whether `activity` succeeds.
    pub fn stage(&self, stage: &'static str, activity: &'static str) -> StageHealth {
        StageHealth {
            health: self.clone(),
            stage,
            activity: Activity::new(activity),
        }
    }

    pub fn is_unhealthy(&self, stage: &'static str) -> bool {
        self.0
            .lock()
            .expect("no holder of this lock panics")
            .contains_key(stage)
    }

    /// One line per unhealthy stage: its name and the reason.
    pub fn reasons(&self) -> Vec<String> {
        let unhealthy = self.0.lock().expect("no holder of this lock panics");
        unhealthy
            .iter()
            .map(|(stage, reason)| format!("{stage}: {reason}"))
            .collect()
    }
}

/// Reports a stage to readiness and to the log: unhealthy while its activity fails.
#[derive(Debug)]
pub struct StageHealth {
    health: Health,
    stage: &'static str,
    activity: Activity,
}

impl StageHealth {
    /// Reports `reason` to readiness, which anybody may read, and logs `error` if the activity had
    /// succeeded before.
    pub fn failing(&self, reason: impl Into<String>, error: &impl Display) {
        self.health.report_unhealthy(self.stage, reason);
        self.activity.failed(error);
    }

    /// Like [`StageHealth::failing`], for callers that log the warning themselves if this returns
    /// true.
    pub fn starts_failing(&self, reason: impl Into<String>) -> bool {
        self.health.report_unhealthy(self.stage, reason);
        self.activity.starts_failing()
    }

    /// Reports the stage healthy, and logs that the activity works again if it had failed before.
    pub fn working(&self) {
        self.health.report_healthy(self.stage);
        self.activity.succeeded();
    }

    /// Logs `error` as [`StageHealth::failing`] does, and leaves readiness as it is.
    pub fn log_failure(&self, error: &impl Display) {
        self.activity.failed(error);
    }
}
