//! What is said of what keeps capture from reading: one warning, until changes are read again. An outage has many faces, which
//! are told once each and warn nobody anew; what does not pass by itself does.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

use super::CaptureError;

#[derive(Default)]
pub(super) struct Faults {
    told: HashSet<Discriminant<CaptureError>>,
    stands_by: bool,
}

impl Faults {
    pub fn tell(&mut self, error: &CaptureError) {
        if matches!(error, CaptureError::SlotActive(_) | CaptureError::LeaseHeld(_)) {
            // What one of several replicas is for.
            if !self.stands_by {
                tracing::info!(reason = %error, "standing by");
            }
            *self = Faults { stands_by: true, told: HashSet::new() };
            return;
        }
        let (is_first, is_new) = (self.told.is_empty(), self.told.insert(discriminant(error)));
        if is_first || (is_new && !error.is_transient()) {
            tracing::warn!(%error, "changes cannot be read now; trying again until they can");
        } else if is_new {
            tracing::info!(%error, "changes still cannot be read");
        }
    }

    /// Changes are read.
    pub fn are_over(&mut self) {
        *self = Faults::default();
    }
}
