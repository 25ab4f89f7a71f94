//! What the owner of a webhook is told by e-mail.

use jiff::Timestamp;
use uuid::Uuid;

use super::event::UserId;

/// Something to tell, with the webhook as it was when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub id: Uuid,
    pub kind: NoticeKind,
    pub at: Timestamp,
    pub webhook: Uuid,
    pub user: UserId,
    pub name: String,
    pub url: String,
    /// How its attempts failed, in words.
    pub reason: String,
    /// Failed attempts that counted.
    pub failures: u64,
    /// How many switch the webhook off.
    pub threshold: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// The webhook has been switched off.
    Disabled,
    /// It will be, if it fails on.
    Warning,
}

impl NoticeKind {
    pub const ALL: &'static [NoticeKind] = &[NoticeKind::Disabled, NoticeKind::Warning];

    pub const fn as_str(self) -> &'static str {
        match self {
            NoticeKind::Disabled => "disabled",
            NoticeKind::Warning => "warning",
        }
    }
}
