//! The faults of use cases. The variants are stable: adapters match on them. The texts can be shown
//! to users.

use uuid::Uuid;

use crate::domain::members::FieldError;
use crate::store::StoreError;

/// Why a use case failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("there is no such webhook")]
    NoSuchWebhook,
    #[error("the webhook's delivery log has no such entry")]
    NoSuchLogEntry,
    #[error("the webhook has no such delivery, or it is older than the retention period")]
    NoSuchDelivery,
    #[error("there is no such event, or it is older than the retention period")]
    NoSuchEvent,
    /// As many clients follow the feed as allowed, of this user or of all.
    #[error("too many streams and long polls are open: close one first")]
    TooManyStreams,
    #[error("the webhook has no such job")]
    NoSuchJob,
    #[error("there is no such token")]
    NoSuchToken,
    #[error("a user may have {limit} valid tokens: revoke one first")]
    TokenLimit { limit: u32 },
    /// Every other check of the URL passed, but its host resolves to an address that must not be
    /// called. DNS may change, so the same request may succeed later.
    #[error("{0}")]
    BlockedHost(String),
    /// Settings that are invalid, or invalid for this webhook.
    #[error("{}", describe(.0))]
    InvalidSettings(Vec<FieldError>),
    #[error("a user may have {limit} webhooks: delete one first")]
    WebhookLimit { limit: u32 },
    /// Several webhooks have the name that should identify one.
    #[error("several webhooks have this name: rename or delete all but one of {}", join(.ids))]
    AmbiguousName { ids: Vec<Uuid> },
    /// The caller's condition on the webhook's settings does not hold.
    #[error("the webhook's version does not meet the condition of the request: read it again")]
    VersionMismatch,
    #[error("nothing is delivered to an inactive webhook: activate it first")]
    WebhookInactive,
    /// A webhook is not activated before what it had pending when it was switched off is cancelled.
    #[error(
        "deliveries that were pending when the webhook was switched off are still being cancelled: activate it again in a few seconds"
    )]
    Cancelling,
    /// The delivery of a log entry can never be redelivered.
    #[error("{0}")]
    NotRedeliverable(&'static str),
    #[error("the delivery's event is older than the retention period")]
    EventExpired,
    #[error(
        "the webhook has too many unfinished recoveries and replays: wait until one has finished, or cancel one"
    )]
    TooManyRecoveries,
    /// Too many tests of the webhook, or of receivers without one, are in flight.
    #[error("several tests are in flight: wait for their responses")]
    TooManyTests,
    /// The user does something too often, or too many times at once.
    #[error("{what}: wait {seconds} s before the next one")]
    RateLimit { what: &'static str, seconds: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A fault of Walhook itself. It is logged where it occurs.
    #[error("internal error")]
    Internal,
}

fn join(ids: &[Uuid]) -> String {
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    ids.join(", ")
}

fn describe(errors: &[FieldError]) -> String {
    let described: Vec<String> = errors
        .iter()
        .map(|error| format!("{}: {}", error.pointer, error.detail))
        .collect();
    described.join("; ")
}

pub type Result<T, E = Fault> = std::result::Result<T, E>;
