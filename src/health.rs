//! Why a process is not ready, told by the stages themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

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

    /// One line a stage that ails.
    pub fn reasons(&self) -> Vec<String> {
        let ailing = self.0.lock().expect("no holder of this lock panics");
        ailing.iter().map(|(stage, reason)| format!("{stage}: {reason}")).collect()
    }
}
