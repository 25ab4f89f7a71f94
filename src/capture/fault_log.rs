//! Logs why changes cannot be read: one warning per outage. Further errors of the same outage are
//! logged once each, as a warning only if a retry cannot succeed.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

use super::error::CaptureError;
use crate::primary::error::PrimaryError;

/// Kinds of errors, which are logged once each.
type Kind = (
    Discriminant<CaptureError>,
    Option<Discriminant<PrimaryError>>,
);

#[derive(Default)]
pub(super) struct FaultLog {
    logged: HashSet<Kind>,
    stands_by: bool,
}

impl FaultLog {
    pub fn log(&mut self, error: &CaptureError) {
        if matches!(
            error,
            CaptureError::SlotActive(_) | CaptureError::LeaseHeld(_)
        ) {
            // Normal for all replicas but one.
            if !self.stands_by {
                tracing::info!(reason = %error, "standing by");
            }

            *self = FaultLog {
                stands_by: true,
                logged: HashSet::new(),
            };
            return;
        }

        let is_first = self.logged.is_empty();
        let is_new = self.logged.insert(kind(error));
        if is_first || (is_new && !error.is_transient()) {
            tracing::warn!(%error, "changes cannot be read now; retrying until they can");
        } else if is_new {
            tracing::info!(%error, "changes still cannot be read");
        }
    }

    /// Ends the outage: changes are read.
    pub fn clear(&mut self) {
        *self = FaultLog::default();
    }
}

fn kind(error: &CaptureError) -> Kind {
    let of_primary = match error {
        CaptureError::Primary(error) => Some(discriminant(error)),
        _ => None,
    };
    (discriminant(error), of_primary)
}
