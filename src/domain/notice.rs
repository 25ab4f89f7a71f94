//! E-mail notices to the owners of webhooks.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::event::UserId;
use super::named::named;

/// The reason in notices about webhooks that were disabled because their receiver is gone.
pub const GONE: &str = "the receiver answered 410 Gone";

/// A notice, with the webhook's name and URL at the time of the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub id: Uuid,
    pub kind: NoticeKind,
    /// When the webhook was disabled or the warning became due.
    pub at: Timestamp,
    /// When the first of the failures was recorded. None if nothing had failed before.
    pub failing_since: Option<Timestamp>,
    pub webhook: Uuid,
    pub user: UserId,
    pub name: String,
    pub url: String,
    /// How its attempts failed, as text for the owner.
    pub reason: String,
    /// The failed attempts that count towards the threshold.
    pub failures: u64,
    /// The number of failures that disables the webhook.
    pub threshold: u64,
}

/// Returns from when on a recovery finds the deliveries that failed since a first failure was
/// recorded: its attempt had started up to a time-out earlier.
pub fn recovery_since(failing_since: Timestamp) -> Timestamp {
    const BEFORE: SignedDuration = SignedDuration::from_mins(2);
    failing_since.checked_sub(BEFORE).unwrap_or(failing_since)
}

impl Notice {
    /// Returns from when on a recovery brings everything back.
    pub fn recovery_since(&self) -> Timestamp {
        recovery_since(self.failing_since.unwrap_or(self.at))
    }

    /// Returns whether the webhook was disabled at once, because its receiver is gone.
    pub fn is_gone(&self) -> bool {
        self.kind == NoticeKind::Disabled && self.reason == GONE
    }
}

named! {
    pub enum NoticeKind {
        /// The webhook was disabled.
        Disabled = "disabled",
        /// The webhook will be disabled if it continues to fail.
        Warning = "warning",
    }
}
