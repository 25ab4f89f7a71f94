//! Why a process is not ready, told by the stages themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The name for changes that were lost and are not repaired.
pub const GAP: &str = "gap";

/// Shared by the stages and by whoever asks. Each stage speaks for itself under its own name.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Health {
    pub fn ail(&self, stage: &'static str, reason: impl Into<String>) {
        self.0.lock().expect("no holder of this lock panics").insert(stage, reason.into());
    }

    pub fn recover(&self, stage: &'static str) {
        self.0.lock().expect("no holder of this lock panics").remove(stage);
    }

    pub fn is_ailing(&self, stage: &'static str) -> bool {
        self.0.lock().expect("no holder of this lock panics").contains_key(stage)
    }

    /// One line a stage that ails.
    pub fn reasons(&self) -> Vec<String> {
        let ailing = self.0.lock().expect("no holder of this lock panics");
        ailing.iter().map(|(stage, reason)| format!("{stage}: {reason}")).collect()
    }
}
