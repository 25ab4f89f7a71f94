//! Readiness: which stages are unhealthy, and why. Each stage reports its own state under its own
//! name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The stage that readiness reports while a gap is open.
pub const GAP: &str = "gap";

/// The unhealthy stages with their reasons. Shared by the stages, which write it, and by `/readyz`,
/// which reads it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Health {
    /// Records that `stage` is unhealthy, and replaces an earlier reason.
    pub fn report_unhealthy(&self, stage: &'static str, reason: impl Into<String>) {
        self.0.lock().insert(stage, reason.into());
    }

    /// Records that `stage` is healthy again.
    pub fn report_healthy(&self, stage: &'static str) {
        self.0.lock().remove(stage);
    }

    pub fn is_unhealthy(&self, stage: &'static str) -> bool {
        self.0.lock().contains_key(stage)
    }

    /// One line per unhealthy stage: its name and the reason.
    pub fn reasons(&self) -> Vec<String> {
        let unhealthy = self.0.lock();
        unhealthy
            .iter()
            .map(|(stage, reason)| format!("{stage}: {reason}"))
            .collect()
    }
}
