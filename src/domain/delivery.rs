//! A delivery: one event for one webhook. Its attempts, their outcomes, and the state machine that decides what follows.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use super::backoff::RetrySchedule;
use super::event::EventKind;
use super::named::named;

/// The right to make the next attempt of a delivery, fenced by `token`. It ends at `until` on this process's clock, which is never
/// later than the end in the database.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub token: Uuid,
    pub until: Instant,
}

/// How much longer a lease lasts than a request may take: enough time to record the response. It also limits how long the
/// deliveries of a dead replica wait. Leases are never renewed: a request starts only if it fits in the rest of its lease.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// Returns the length of a lease if requests may take `timeout`.
pub const fn lease_length(timeout: Duration) -> Duration {
    timeout.saturating_add(LEASE_MARGIN)
}

/// A delivery that this replica holds a lease on.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    pub kind: EventKind,
    pub occurred_at: Timestamp,
    pub data: Arc<str>,
    /// 1 for the original attempts; each redelivery starts the next round.
    pub round: u16,
    /// The number of the next attempt in this round, from 1.
    pub attempt: u16,
    /// Its number within its webhook. None for tests and for deliveries of earlier builds.
    pub sequence: Option<i64>,
    /// Deliveries of one webhook with the same key are delivered one after the other. None for a delivery that is outside any order.
    pub order_key: Option<i64>,
    pub lease: Lease,
}

impl Delivery {
    /// Returns the approximate memory size, without the part that is the same for every delivery.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

named! {
    /// Why an attempt failed, as the delivery log reports it.
    pub enum ErrorKind {
        Dns = "dns",
        ConnectRefused = "connect_refused",
        ConnectTimeout = "connect_timeout",
        ResponseTimeout = "response_timeout",
        Tls = "tls",
        ConnectionReset = "connection_reset",
        HttpStatus = "http_status",
        BlockedAddress = "blocked_address",
        PayloadTooLarge = "payload_too_large",
        WebhookInactive = "webhook_inactive",
        /// The event reached the end of its retention before it was delivered.
        EventExpired = "event_expired",
    }
}

impl ErrorKind {
    /// Returns whether the receiver caused the failure, so that it counts towards disablement.
    pub const fn counts_towards_disablement(self) -> bool {
        !matches!(self, ErrorKind::PayloadTooLarge | ErrorKind::WebhookInactive | ErrorKind::EventExpired)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A 2xx status within the timeout.
    Accepted { status: u16 },
    /// Any other response, or no response.
    Failed { kind: ErrorKind, message: String, status: Option<u16> },
    /// The body exceeds the limit. Retrying cannot help.
    TooLarge { bytes: usize },
    /// The webhook became inactive or was deleted before the attempt started.
    Inactive,
}

/// The signatures of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signatures {
    /// HMAC-SHA256 of the body: `X-Webhook-Signature`.
    pub body: [u8; 32],
    /// HMAC-SHA256 of id, timestamp and body: the first entry of `webhook-signature`.
    pub standard: [u8; 32],
    /// The other entries of `webhook-signature`, concatenated: an HMAC with the previous secret, then ed25519 signatures. Most
    /// requests have none.
    pub more: Vec<u8>,
}

/// A finished attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The value of `X-Webhook-Timestamp`, in milliseconds.
    pub started_at: Timestamp,
    pub answer: Answer,
    /// None if nothing was sent, for example because the payload is too large.
    pub sent: Option<Sent>,
}

/// The request, and the part of the response that the delivery log shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub url: Arc<str>,
    pub signatures: Signatures,
    pub duration: Duration,
    /// The first bytes of the response body.
    pub excerpt: Vec<u8>,
}

/// A delivery with its finished attempt, to be recorded.
#[derive(Clone, Debug)]
pub struct Attempted {
    pub delivery: Delivery,
    pub attempt: Attempt,
}

named! {
    /// The outcome of an attempt, as the delivery log reports it.
    pub enum Outcome {
        Delivered = "delivered",
        Failed = "failed",
        PermanentlyFailed = "permanently_failed",
        Cancelled = "cancelled",
    }
}

/// What happens to a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The delivery ends, and its row is deleted.
    End(Outcome),
    /// The next attempt is made after the wait.
    Retry { after: Duration, attempt: u16 },
}

impl Answer {
    /// Returns the status of the receiver's response, if there was one.
    pub const fn status(&self) -> Option<u16> {
        match self {
            Answer::Accepted { status } => Some(*status),
            Answer::Failed { status, .. } => *status,
            Answer::TooLarge { .. } | Answer::Inactive => None,
        }
    }

    /// Returns the message for the delivery log, or None for a success.
    pub fn message(&self) -> Option<&str> {
        match self {
            Answer::Accepted { .. } => None,
            Answer::Failed { message, .. } => Some(message),
            Answer::TooLarge { .. } => Some("the payload is over the size limit"),
            Answer::Inactive => Some("the webhook is inactive"),
        }
    }

    /// Returns why the attempt failed, or None for a success.
    pub const fn error(&self) -> Option<ErrorKind> {
        match self {
            Answer::Accepted { .. } => None,
            Answer::Failed { kind, .. } => Some(*kind),
            Answer::TooLarge { .. } => Some(ErrorKind::PayloadTooLarge),
            Answer::Inactive => Some(ErrorKind::WebhookInactive),
        }
    }
}

impl Next {
    pub const fn outcome(self) -> Outcome {
        match self {
            Next::End(outcome) => outcome,
            Next::Retry { .. } => Outcome::Failed,
        }
    }
}

/// The state machine of a delivery: returns what happens after attempt `attempt` with this result. `random` returns a number in
/// 0..1, which determines the jitter of a retry.
pub fn next(attempt: u16, answer: &Answer, schedule: &RetrySchedule, random: impl FnOnce() -> f64) -> Next {
    match answer {
        Answer::Accepted { .. } => Next::End(Outcome::Delivered),
        Answer::TooLarge { .. } => Next::End(Outcome::PermanentlyFailed),
        Answer::Inactive => Next::End(Outcome::Cancelled),
        Answer::Failed { .. } => match schedule.wait_after(attempt, random()) {
            Some(after) => Next::Retry { after, attempt: attempt + 1 },
            None => Next::End(Outcome::PermanentlyFailed),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenth_failure_is_permanent() {
        let schedule = RetrySchedule::new(vec![Duration::from_secs(1); 9], Duration::ZERO);
        let failed = Answer::Failed { kind: ErrorKind::HttpStatus, message: String::new(), status: Some(500) };
        for attempt in 1..=9 {
            assert_eq!(
                next(attempt, &failed, &schedule, || 0.0),
                Next::Retry { after: Duration::from_secs(1), attempt: attempt + 1 }
            );
        }
        assert_eq!(next(10, &failed, &schedule, || 0.0), Next::End(Outcome::PermanentlyFailed));
        assert_eq!(next(3, &Answer::Accepted { status: 204 }, &schedule, || 0.0), Next::End(Outcome::Delivered));
        assert_eq!(
            next(1, &Answer::TooLarge { bytes: 70_000 }, &schedule, || 0.0),
            Next::End(Outcome::PermanentlyFailed)
        );
        assert_eq!(next(2, &Answer::Inactive, &schedule, || 0.0), Next::End(Outcome::Cancelled));
    }
}
