//! A webhook as the dispatcher sees it, and what answers do to its counters.

use std::sync::Arc;

use jiff::Timestamp;
use secrecy::SecretString;
use uuid::Uuid;

use super::delivery::{Answer, Attempt};

/// Where to deliver and with which secret to sign: read afresh shortly before each attempt, so that an edit, a toggle or a
/// new secret holds for deliveries already pending.
#[derive(Clone, Debug)]
pub struct Target {
    pub webhook: Uuid,
    pub url: Arc<str>,
    pub active: bool,
    pub secret: SecretString,
}

/// What some attempts, in their order, change of a webhook's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub successes: u64,
    pub failures: u64,
    /// Failures behind the last success, or all of them when there was none.
    pub trailing_failures: u64,
    /// When the first of those was.
    pub failing_since: Option<Timestamp>,
    /// The latest attempt that went out, or tried to.
    pub last_triggered_at: Option<Timestamp>,
}

impl Tally {
    pub fn add(&mut self, attempt: &Attempt) {
        match &attempt.answer {
            Answer::Accepted { .. } => {
                self.successes += 1;
                self.trailing_failures = 0;
                self.failing_since = None;
            }
            Answer::Failed { kind, .. } if kind.counts() => {
                self.failures += 1;
                self.trailing_failures += 1;
                self.failing_since.get_or_insert(attempt.started_at);
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
    use super::super::delivery::ErrorKind;
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
        assert_eq!((counted.failing_since, counted.last_triggered_at), (Some(at(5)), Some(at(5))));
    }

    #[test]
    fn what_is_not_the_receivers_fault_counts_nowhere() {
        let counted = tally(&[(1, Answer::Inactive), (2, Answer::TooLarge { bytes: 70_000 })]);
        assert!(counted.is_empty());
        assert_eq!(counted, Tally::default());
        assert_eq!(tally(&[(3, failed(ErrorKind::BlockedAddress))]).failures, 1);
    }
}
