//! A delivery: one event for one webhook. Its attempts, their outcomes, and the state machine that
//! decides what follows.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use super::backoff::RetrySchedule;
use super::event::EventKind;
use super::named::named;

/// The right to make the next attempt of a delivery, fenced by `token`. It ends at `until` on this
/// process's clock, which is never later than the end in the database.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub token: Uuid,
    pub until: Instant,
    /// Of a delivery that was handed off without a row.
    pub place: Option<Place>,
}

/// The place of a delivery in the hand-off that has its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

/// How much longer a lease lasts than a request may take: enough time to record the response. It
/// also limits how long the deliveries of a dead replica wait. Leases are never renewed: a request
/// starts only if it fits in the rest of its lease.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// How much of a lease must remain after the request's timeout, for recording the answer.
pub const TIME_TO_RECORD: Duration = Duration::from_secs(2);

/// How long after a claim the requests of its deliveries may start.
pub const TIME_TO_START: Duration = LEASE_MARGIN.saturating_sub(TIME_TO_RECORD);

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
    /// Its number within its webhook. None for tests.
    pub sequence: Option<i64>,
    /// Deliveries of one webhook with the same key are delivered one after the other. None for a
    /// delivery that is outside any order.
    pub order_key: Option<i64>,
    /// The activation of the webhook under which the delivery was created or claimed. If the
    /// webhook was switched off and on since, the delivery was cancelled.
    pub activation: i32,
    pub lease: Lease,
}

impl Delivery {
    /// Returns the approximate memory size, without the part that is the same for every delivery.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

/// First attempts and retries are claimed and queued separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryClass {
    Fresh,
    Retry,
}

impl DeliveryClass {
    pub const fn of(delivery: &Delivery) -> DeliveryClass {
        if delivery.attempt > 1 {
            DeliveryClass::Retry
        } else {
            DeliveryClass::Fresh
        }
    }

    pub const fn other(self) -> DeliveryClass {
        match self {
            DeliveryClass::Fresh => DeliveryClass::Retry,
            DeliveryClass::Retry => DeliveryClass::Fresh,
        }
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
        !matches!(
            self,
            ErrorKind::PayloadTooLarge | ErrorKind::WebhookInactive | ErrorKind::EventExpired
        )
    }

    /// Returns whether no connection to the receiver was established.
    pub const fn is_unconnected(self) -> bool {
        matches!(
            self,
            ErrorKind::Dns
                | ErrorKind::ConnectRefused
                | ErrorKind::ConnectTimeout
                | ErrorKind::Tls
                | ErrorKind::BlockedAddress
        )
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A delivery to store.
#[derive(Clone, Copy, Debug)]
pub struct NewDelivery {
    pub id: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    /// Its number within its webhook.
    pub sequence: Option<i64>,
    /// It waits for earlier deliveries of its webhook with the same key.
    pub order_key: Option<i64>,
    /// Whether it waits in any case. Otherwise the statement finds out.
    pub is_parked: bool,
    /// Whether it goes to this process's dispatcher, unless it waits.
    pub leased: bool,
}

impl NewDelivery {
    /// Whether it gets a row. One that is sent at once, and for which no other can wait, is only in
    /// the hand-off.
    pub const fn has_row(&self) -> bool {
        !self.leased || self.order_key.is_some()
    }
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A 2xx status within the timeout.
    Accepted { status: u16 },
    /// Any other response, or no response.
    Failed {
        kind: ErrorKind,
        message: String,
        status: Option<u16>,
    },
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
    /// The other entries of `webhook-signature`, concatenated: an HMAC with the previous secret,
    /// then ed25519 signatures. Most requests have none.
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
    pub timing: Timing,
    /// The headers of the response, as [`response::keep`](super::response::keep) returns them.
    pub response_headers: Vec<u8>,
    /// The first bytes of the response body.
    pub excerpt: Vec<u8>,
    /// The wait until the next attempt that the receiver asks for (`Retry-After`), if that is to be
    /// honored.
    pub retry_after: Option<Duration>,
}

/// How long the parts of a request took. A part that was not reached is None, and so are the first
/// three if the request was sent on an open connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// The lookup of the host's name. None for an address.
    pub dns: Option<Duration>,
    /// Of the connection to the receiver, or of the tunnel to it.
    pub connect: Option<Duration>,
    pub tls: Option<Duration>,
    /// From the connection to the head of the response.
    pub wait: Option<Duration>,
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

/// The longest wait that a receiver can ask for. After a day its owner should look at it, and
/// longer waits would outlast short retention.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What happens to a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The delivery ends, and its row is deleted.
    End(Outcome),
    /// The next attempt is made after the wait.
    Retry { after: Duration, attempt: u16 },
}

/// What an answer says about the load that the receiver can handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// It responded in time.
    Responsive,
    /// It asked for fewer requests: 429 or 503.
    Overloaded,
    /// It did not respond in time.
    TimedOut,
    /// Nothing.
    None,
}

impl Answer {
    /// Returns the outcome of a request that is not part of a delivery's retries.
    pub const fn outcome(&self) -> Outcome {
        match self {
            Answer::Accepted { .. } => Outcome::Delivered,
            _ => Outcome::Failed,
        }
    }

    pub const fn feedback(&self) -> Feedback {
        match self {
            Answer::Failed {
                status: Some(429 | 503),
                ..
            } => Feedback::Overloaded,
            Answer::Accepted { .. }
            | Answer::Failed {
                status: Some(_), ..
            } => Feedback::Responsive,
            Answer::Failed {
                kind: ErrorKind::ConnectTimeout | ErrorKind::ResponseTimeout,
                ..
            } => Feedback::TimedOut,
            Answer::Failed { .. } | Answer::TooLarge { .. } | Answer::Inactive => Feedback::None,
        }
    }

    /// Returns whether the receiver states that it no longer exists.
    pub const fn is_gone(&self) -> bool {
        matches!(
            self,
            Answer::Failed {
                status: Some(410),
                ..
            }
        )
    }

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

    /// Postpones a retry to the time that the receiver asks for. It is never made earlier, and
    /// postponed to at most [`MAX_RETRY_AFTER`].
    pub fn not_before(self, asked: Duration) -> Next {
        match self {
            Next::Retry { after, attempt } => Next::Retry {
                after: after.max(asked.min(MAX_RETRY_AFTER)),
                attempt,
            },
            end @ Next::End(_) => end,
        }
    }
}

/// The state machine of a delivery: returns what happens after attempt `attempt` with this result.
/// `random` returns a number in 0..1, which determines the jitter of a retry.
pub fn next(
    attempt: u16,
    answer: &Answer,
    schedule: &RetrySchedule,
    random: impl FnOnce() -> f64,
) -> Next {
    match answer {
        Answer::Accepted { .. } => Next::End(Outcome::Delivered),
        Answer::TooLarge { .. } => Next::End(Outcome::PermanentlyFailed),
        Answer::Inactive => Next::End(Outcome::Cancelled),
        Answer::Failed { .. } => match schedule.wait_after(attempt, random()) {
            Some(after) => Next::Retry {
                after,
                attempt: attempt + 1,
            },
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
        let failed = Answer::Failed {
            kind: ErrorKind::HttpStatus,
            message: String::new(),
            status: Some(500),
        };

        for attempt in 1..=9 {
            assert_eq!(
                next(attempt, &failed, &schedule, || 0.0),
                Next::Retry {
                    after: Duration::from_secs(1),
                    attempt: attempt + 1
                }
            );
        }

        assert_eq!(
            next(10, &failed, &schedule, || 0.0),
            Next::End(Outcome::PermanentlyFailed)
        );
        assert_eq!(
            next(3, &Answer::Accepted { status: 204 }, &schedule, || 0.0),
            Next::End(Outcome::Delivered)
        );
        assert_eq!(
            next(1, &Answer::TooLarge { bytes: 70_000 }, &schedule, || 0.0),
            Next::End(Outcome::PermanentlyFailed)
        );
        assert_eq!(
            next(2, &Answer::Inactive, &schedule, || 0.0),
            Next::End(Outcome::Cancelled)
        );
    }

    #[test]
    fn a_receiver_can_postpone_a_retry_by_at_most_a_day_and_never_advance_it() {
        let schedule = RetrySchedule::new(vec![Duration::from_secs(60)], Duration::from_secs(30));
        let failed = Answer::Failed {
            kind: ErrorKind::HttpStatus,
            message: String::new(),
            status: Some(429),
        };

        let retry = |seconds| Next::Retry {
            after: Duration::from_secs(seconds),
            attempt: 2,
        };

        for (asked, seconds) in [
            (0, 75),
            (74, 75),
            (76, 76),
            (86_400, 86_400),
            (86_401, 86_400),
            (u64::MAX, 86_400),
        ] {
            let next = next(1, &failed, &schedule, || 0.5).not_before(Duration::from_secs(asked));
            assert_eq!(next, retry(seconds), "{asked}");
        }

        let last = next(2, &failed, &schedule, || 0.5);
        assert_eq!(
            last.not_before(Duration::from_secs(90)),
            Next::End(Outcome::PermanentlyFailed)
        );

        let weekly = Next::Retry {
            after: 7 * MAX_RETRY_AFTER,
            attempt: 2,
        };

        assert_eq!(
            weekly.not_before(Duration::MAX),
            weekly,
            "a longer wait of the schedule is kept"
        );
    }
}
