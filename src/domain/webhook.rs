//! A webhook as the dispatcher sees it, and what answers do to its counters.

use std::sync::Arc;

use jiff::Timestamp;
use secrecy::SecretString;
use uuid::Uuid;

use super::delivery::{Answer, Attempt, ErrorKind};

/// Where to deliver and with which secret to sign: read afresh shortly before each attempt, so that an edit, a toggle or a
/// new secret holds for deliveries already pending.
#[derive(Clone, Debug)]
pub struct Target {
    pub webhook: Uuid,
    pub url: Arc<str>,
    pub active: bool,
    pub secret: SecretString,
}

/// A webhook as the store keeps it: the secret is still sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedTarget {
    pub webhook: Uuid,
    pub url: String,
    pub active: bool,
    pub secret: Vec<u8>,
    pub secret_key_id: String,
}

/// What some attempts, in their order, change of a webhook's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub successes: u64,
    pub failures: u64,
    /// Failures behind the last success, or all of them when there was none.
    pub trailing_failures: u64,
    /// The last of the failures: what the owner is told.
    pub last_failure: Option<Failure>,
    /// The latest attempt that went out, or tried to.
    pub last_triggered_at: Option<Timestamp>,
}

/// How an attempt failed, for those who do not read logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: ErrorKind,
    /// What the receiver answered with, if it did.
    pub status: Option<u16>,
}

impl Failure {
    /// As a label understands it: `connection timeout`, `HTTP 500 answers`.
    pub fn in_words(&self) -> String {
        let words = match self.kind {
            ErrorKind::HttpStatus => {
                return self.status.map_or("HTTP error answers".to_owned(), |status| format!("HTTP {status} answers"));
            }
            ErrorKind::Dns => "host name not found",
            ErrorKind::ConnectRefused => "connection refused",
            ErrorKind::ConnectTimeout => "connection timeout",
            ErrorKind::ResponseTimeout => "no complete answer in time",
            ErrorKind::Tls => "no secure connection (TLS error)",
            ErrorKind::ConnectionReset => "connection closed without an answer",
            ErrorKind::BlockedAddress => "an address that is not reachable from the internet",
            ErrorKind::PayloadTooLarge => "payload over the size limit",
            ErrorKind::WebhookInactive => "webhook inactive",
            ErrorKind::EventExpired => "event too old",
        };
        words.to_owned()
    }
}

impl Tally {
    pub fn add(&mut self, attempt: &Attempt) {
        match &attempt.answer {
            Answer::Accepted { .. } => {
                self.successes += 1;
                self.trailing_failures = 0;
            }
            Answer::Failed { kind, status, .. } if kind.counts() => {
                self.failures += 1;
                self.trailing_failures += 1;
                self.last_failure = Some(Failure { kind: *kind, status: *status });
            }
            Answer::Failed { .. } | Answer::TooLarge { .. } | Answer::Inactive => return,
        }
        self.last_triggered_at = self.last_triggered_at.max(Some(attempt.started_at));
    }

    /// Whether there is nothing to change.
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
            tally.add(&Attempt { started_at: at(*second), answer: answer.clone(), sent: None });
        }
        tally
    }

    fn failed(kind: ErrorKind) -> Answer {
        Answer::Failed { kind, message: String::new(), status: None }
    }

    #[test]
    fn a_success_ends_the_run_of_failures_before_it_and_none_behind_it() {
        let ok = Answer::Accepted { status: 200 };
        let bad = failed(ErrorKind::Dns);
        let counted = tally(&[(1, bad.clone()), (2, ok), (5, bad.clone()), (4, bad)]);
        assert_eq!((counted.successes, counted.failures, counted.trailing_failures), (1, 3, 2));
        assert_eq!(counted.last_triggered_at, Some(at(5)));
        assert_eq!(counted.last_failure.unwrap().in_words(), "host name not found");
    }

    #[test]
    fn what_is_not_the_receivers_fault_counts_nowhere() {
        let counted = tally(&[(1, Answer::Inactive), (2, Answer::TooLarge { bytes: 70_000 })]);
        assert!(counted.is_empty());
        assert_eq!(counted, Tally::default());
        assert_eq!(tally(&[(3, failed(ErrorKind::BlockedAddress))]).failures, 1);
    }

    #[test]
    fn failures_are_told_in_words() {
        let status = Failure { kind: ErrorKind::HttpStatus, status: Some(500) };
        assert_eq!(status.in_words(), "HTTP 500 answers");
        assert_eq!(Failure { kind: ErrorKind::ConnectTimeout, status: None }.in_words(), "connection timeout");
        let words: std::collections::BTreeSet<String> =
            ErrorKind::ALL.iter().map(|kind| Failure { kind: *kind, status: None }.in_words()).collect();
        assert_eq!(words.len(), ErrorKind::ALL.len(), "each kind has words of its own");
    }
}
