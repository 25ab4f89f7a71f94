//! A webhook as the dispatcher sees it, and the counters that its attempts update.

use std::sync::Arc;

use jiff::Timestamp;
use secrecy::SecretString;
use uuid::Uuid;

use super::delivery::{Answer, Attempt, ErrorKind};
use super::headers::CustomHeaders;
use super::named::named;
use super::sealed::Sealed;
use super::signing::SealedKeys;

/// How the `disabled_reason` of a webhook begins that an operator has disabled.
pub const BY_OPERATOR: &str = "operator: ";

named! {
    /// The state of a webhook as operators see it.
    pub enum WebhookState {
        Active = "active",
        /// Active, and the last attempt has failed.
        Failing = "failing",
        /// Disabled, automatically or by an operator.
        Disabled = "disabled",
        /// Switched off by the owner.
        Inactive = "inactive",
    }
}

impl WebhookState {
    pub const fn of(is_active: bool, is_disabled: bool, consecutive_failures: i64) -> WebhookState {
        match (is_active, is_disabled) {
            (true, _) if consecutive_failures > 0 => WebhookState::Failing,
            (true, _) => WebhookState::Active,
            (false, true) => WebhookState::Disabled,
            (false, false) => WebhookState::Inactive,
        }
    }
}

/// Where to deliver and which secret signs. Read shortly before each attempt, so that a changed
/// URL, state or secret also applies to pending deliveries.
#[derive(Clone, Debug)]
pub struct Target {
    pub webhook: Uuid,
    pub url: Arc<str>,
    pub active: bool,
    pub secret: SecretString,
    pub headers: CustomHeaders,
}

/// A [`Target`] as stored: the secret and the custom headers are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedTarget {
    pub webhook: Uuid,
    pub url: String,
    pub active: bool,
    pub secret: Vec<u8>,
    pub secret_key_id: String,
    /// None without custom headers.
    pub headers: Option<Sealed>,
    pub keys: SealedKeys,
    /// Changes whenever the webhook is switched on again. No delivery is lost: one that is dropped
    /// because this differs is claimed again, under the current value.
    pub activation: i32,
}

/// The changes that a sequence of attempts makes to a webhook's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub successes: u64,
    pub failures: u64,
    /// Failures after the last success, or all failures if there was no success.
    pub trailing_failures: u64,
    /// The last failure, which the notice to the owner names.
    pub last_failure: Option<LastFailure>,
    /// Whether the receiver answered an attempt with 410 Gone.
    pub is_gone: bool,
    /// When the latest attempt started, whether or not it reached the receiver.
    pub last_triggered_at: Option<Timestamp>,
}

/// How an attempt failed, for the notice to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastFailure {
    pub kind: ErrorKind,
    /// The status of the receiver's response, if there was one.
    pub status: Option<u16>,
}

impl LastFailure {
    /// The answer of a receiver that no longer exists.
    pub const GONE: LastFailure = LastFailure {
        kind: ErrorKind::HttpStatus,
        status: Some(410),
    };

    /// Describes the failure for a reader without technical background: `connection timeout`, `HTTP
    /// 500 answers`.
    pub fn describe(&self) -> String {
        let description = match self.kind {
            ErrorKind::HttpStatus => {
                return self
                    .status
                    .map_or("HTTP error answers".to_owned(), |status| {
                        format!("HTTP {status} answers")
                    });
            }
            ErrorKind::Dns => "host name not found",
            ErrorKind::ConnectRefused => "connection refused",
            ErrorKind::ConnectTimeout => "connection timeout",
            ErrorKind::ResponseTimeout => "no answer in time",
            ErrorKind::Tls => "no secure connection (TLS error)",
            ErrorKind::ConnectionReset => "connection closed without an answer",
            ErrorKind::BlockedAddress => "an address that is not reachable from the internet",
            ErrorKind::PayloadTooLarge => "payload over the size limit",
            ErrorKind::WebhookInactive => "webhook inactive",
            ErrorKind::EventExpired => "event too old",
        };
        description.to_owned()
    }
}

impl Tally {
    pub fn add(&mut self, attempt: &Attempt) {
        match &attempt.answer {
            Answer::Accepted { .. } => {
                self.successes += 1;
                self.trailing_failures = 0;
            }
            Answer::Failed { kind, status, .. } if kind.counts_towards_disablement() => {
                self.failures += 1;
                self.trailing_failures += 1;
                self.last_failure = Some(LastFailure {
                    kind: *kind,
                    status: *status,
                });
                self.is_gone |= attempt.answer.is_gone();
            }
            Answer::Failed { .. } | Answer::TooLarge { .. } | Answer::Inactive => return,
        }

        self.last_triggered_at = self.last_triggered_at.max(Some(attempt.started_at));
    }

    /// Adds an attempt that counts neither as a success nor as a failure. It only updates when the
    /// webhook was last called.
    pub fn add_uncounted(&mut self, attempt: &Attempt) {
        let mut alone = Tally::default();
        alone.add(attempt);
        self.last_triggered_at = self.last_triggered_at.max(alone.last_triggered_at);
    }

    /// Returns whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.last_triggered_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn tally(answers: &[(i64, Answer)]) -> Tally {
        let mut tally = Tally::default();

        for (second, answer) in answers {
            tally.add(&Attempt {
                started_at: at(*second),
                answer: answer.clone(),
                sent: None,
            });
        }

        tally
    }

    fn failed(kind: ErrorKind) -> Answer {
        Answer::Failed {
            kind,
            message: String::new(),
            status: None,
        }
    }

    #[test]
    fn a_success_resets_the_failures_before_it_but_not_those_after_it() {
        let ok = Answer::Accepted { status: 200 };
        let bad = failed(ErrorKind::Dns);
        let counted = tally(&[(1, bad.clone()), (2, ok), (5, bad.clone()), (4, bad)]);

        assert_eq!(
            (
                counted.successes,
                counted.failures,
                counted.trailing_failures
            ),
            (1, 3, 2)
        );

        assert_eq!(counted.last_triggered_at, Some(at(5)));
        assert_eq!(
            counted.last_failure.unwrap().describe(),
            "host name not found"
        );
    }

    #[test]
    fn failures_that_the_receiver_did_not_cause_are_not_counted() {
        let counted = tally(&[
            (1, Answer::Inactive),
            (2, Answer::TooLarge { bytes: 70_000 }),
        ]);
        assert!(counted.is_empty());
        assert_eq!(counted, Tally::default());
        assert_eq!(tally(&[(3, failed(ErrorKind::BlockedAddress))]).failures, 1);
    }

    #[test]
    fn an_uncounted_attempt_only_updates_when_the_webhook_was_last_called() {
        let mut uncounted = Tally::default();

        for (second, answer) in [
            (4, failed(ErrorKind::Dns)),
            (3, Answer::Accepted { status: 200 }),
            (9, Answer::Inactive),
        ] {
            uncounted.add_uncounted(&Attempt {
                started_at: at(second),
                answer,
                sent: None,
            });
        }

        assert_eq!(
            uncounted,
            Tally {
                last_triggered_at: Some(at(4)),
                ..Tally::default()
            }
        );
    }

    #[test]
    fn each_kind_of_failure_has_its_own_description() {
        let status = LastFailure {
            kind: ErrorKind::HttpStatus,
            status: Some(500),
        };

        assert_eq!(status.describe(), "HTTP 500 answers");

        assert_eq!(
            LastFailure {
                kind: ErrorKind::ConnectTimeout,
                status: None
            }
            .describe(),
            "connection timeout"
        );

        let descriptions: std::collections::BTreeSet<String> = ErrorKind::ALL
            .iter()
            .map(|kind| {
                LastFailure {
                    kind: *kind,
                    status: None,
                }
                .describe()
            })
            .collect();

        assert_eq!(
            descriptions.len(),
            ErrorKind::ALL.len(),
            "two kinds have the same description"
        );
    }
}
