//! Decides whether capture waits until transactions are visible on the primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::AwaitVisibility;

/// The setting, and whether the server's commits wait for a standby. Clones share the latter.
#[derive(Clone, Debug)]
pub(super) struct VisibilityPolicy {
    setting: AwaitVisibility,
    synchronous: Arc<AtomicBool>,
}

impl VisibilityPolicy {
    pub fn new(setting: AwaitVisibility) -> VisibilityPolicy {
        VisibilityPolicy {
            setting,
            synchronous: Arc::default(),
        }
    }

    /// Records whether the server's commits wait for a standby.
    pub fn set_synchronous(&self, synchronous: bool) {
        self.synchronous.store(synchronous, Ordering::Relaxed);
    }

    /// Returns whether capture waits for visibility.
    pub fn waits(&self) -> bool {
        match self.setting {
            AwaitVisibility::Auto => self.synchronous.load(Ordering::Relaxed),
            AwaitVisibility::Always => true,
            AwaitVisibility::Never => false,
        }
    }
}
