//! Walhook's own occurrences, which the operator's webhooks get.

use jiff::Timestamp;
use uuid::Uuid;

use super::named::named;

named! {
    pub enum OccurrenceKind {
        /// Owners were warned that their webhooks are failing.
        Failing = "webhook.failing",
        /// Webhooks were disabled because they kept failing, or because their receiver is gone.
        Disabled = "webhook.disabled",
        PermanentlyFailed = "delivery.permanently_failed",
        GapOpened = "gap.opened",
        GapRepaired = "gap.repaired",
        Unrouted = "event.unrouted",
    }
}

/// Occurrences of one kind, for one of the operator's webhooks.
#[derive(Clone, Debug)]
pub struct Occurrence {
    pub id: Uuid,
    pub kind: OccurrenceKind,
    pub at: Timestamp,
    /// A JSON object: how many there are, and the first of them.
    pub data: String,
    pub attempt: u16,
}
