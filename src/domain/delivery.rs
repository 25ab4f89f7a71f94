//! One event on its way to one webhook: the attempts it has, what each may end in, and what follows.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use super::backoff::RetrySchedule;
use super::event::EventKind;

/// The right to make the next attempt. Fenced by `token`; `until` is this process's reading of the database's deadline,
/// never later than it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub token: Uuid,
    pub until: Instant,
}

/// A lease outlasts the request it is for by this much: long enough to record the answer, and how long a dead replica's
/// deliveries wait at most before another takes them. Nothing begins under what is left of a lease unless the whole request
/// fits in, so a lease is never renewed: no request outlasts one.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// How long a lease lasts where requests may take `timeout`.
pub const fn lease_length(timeout: Duration) -> Duration {
    timeout.saturating_add(LEASE_MARGIN)
}

/// A delivery in this replica's hands.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    pub kind: EventKind,
    pub occurred_at: Timestamp,
    pub data: Arc<str>,
    pub round: u16,
    /// The number of the attempt to make, from 1.
    pub attempt: u16,
    pub lease: Lease,
}

impl Delivery {
    /// What it takes in memory, but for a little that is the same for each.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

/// Why an attempt failed, in the words of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    Dns,
    ConnectRefused,
    ConnectTimeout,
    ResponseTimeout,
    Tls,
    ConnectionReset,
    HttpStatus,
    BlockedAddress,
    PayloadTooLarge,
    WebhookInactive,
    /// The event was removed by age before it was delivered.
    EventExpired,
}

impl ErrorKind {
    pub const ALL: &'static [ErrorKind] = &[
        ErrorKind::Dns,
        ErrorKind::ConnectRefused,
        ErrorKind::ConnectTimeout,
        ErrorKind::ResponseTimeout,
        ErrorKind::Tls,
        ErrorKind::ConnectionReset,
        ErrorKind::HttpStatus,
        ErrorKind::BlockedAddress,
        ErrorKind::PayloadTooLarge,
        ErrorKind::WebhookInactive,
        ErrorKind::EventExpired,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Dns => "dns",
            ErrorKind::ConnectRefused => "connect_refused",
            ErrorKind::ConnectTimeout => "connect_timeout",
            ErrorKind::ResponseTimeout => "response_timeout",
            ErrorKind::Tls => "tls",
            ErrorKind::ConnectionReset => "connection_reset",
            ErrorKind::HttpStatus => "http_status",
            ErrorKind::BlockedAddress => "blocked_address",
            ErrorKind::PayloadTooLarge => "payload_too_large",
            ErrorKind::WebhookInactive => "webhook_inactive",
            ErrorKind::EventExpired => "event_expired",
        }
    }

    /// Whether the receiver is to blame, so that the failure counts towards disabling the webhook.
    pub const fn counts(self) -> bool {
        !matches!(self, ErrorKind::PayloadTooLarge | ErrorKind::WebhookInactive | ErrorKind::EventExpired)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What one attempt ended in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A 2xx status in time.
    Accepted { status: u16 },
    /// Anything else that the receiver, or the way to it, did.
    Failed { kind: ErrorKind, message: String, status: Option<u16> },
    /// The body would be over the limit: it never will be smaller.
    TooLarge { bytes: usize },
    /// The webhook was switched off or deleted before the attempt began.
    Inactive,
}

/// HMAC-SHA256 over what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signatures {
    /// Over the body: `X-Webhook-Signature`.
    pub body: [u8; 32],
    /// Over id, seconds and body: `webhook-signature`.
    pub standard: [u8; 32],
}

/// One attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// To the millisecond: what `X-Webhook-Timestamp` said.
    pub started_at: Timestamp,
    pub answer: Answer,
    /// None where nothing was sent, as for a payload that is too large.
    pub sent: Option<Sent>,
}

/// What went out, and the part of the answer that the log shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub url: Arc<str>,
    pub signatures: Signatures,
    pub duration: Duration,
    /// The beginning of the answer's body.
    pub excerpt: Vec<u8>,
}

/// A delivery whose attempt is over, on its way to the log.
#[derive(Clone, Debug)]
pub struct Attempted {
    pub delivery: Delivery,
    pub attempt: Attempt,
}

/// A line of the log says one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Delivered,
    Failed,
    PermanentlyFailed,
    Cancelled,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Delivered => "delivered",
            Outcome::Failed => "failed",
            Outcome::PermanentlyFailed => "permanently_failed",
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// What becomes of a delivery behind an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is over; the row goes.
    End(Outcome),
    /// Another attempt after the wait.
    Retry { after: Duration, attempt: u16 },
}

impl Answer {
    /// What the receiver answered with, if it did.
    pub const fn status(&self) -> Option<u16> {
        match self {
            Answer::Accepted { status } => Some(*status),
            Answer::Failed { status, .. } => *status,
            Answer::TooLarge { .. } | Answer::Inactive => None,
        }
    }

    /// What the log says of it, where it is no success.
    pub fn message(&self) -> Option<&str> {
        match self {
            Answer::Accepted { .. } => None,
            Answer::Failed { message, .. } => Some(message),
            Answer::TooLarge { .. } => Some("the payload is over the size limit"),
            Answer::Inactive => Some("the webhook is inactive"),
        }
    }

    /// Why it is no success.
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

/// The whole state machine: what follows when attempt `attempt` ended in `answer`.
/// `random` is asked for a number in 0..1 where a retry is to be put off by chance.
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
    fn ten_failures_are_nine_retries_and_the_end() {
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
