//! Receivers, and the requests that they get.

use std::time::Duration;

use walhook::deliver::dispatch::Start;
use walhook::domain::delivery::{Answer, Attempt, ErrorKind, Sent, Signatures};

use super::random::Random;

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Fast,
    /// Answers, but slowly.
    Slow,
    /// Does not answer.
    Hanging,
    /// Answers with an error.
    Failing(u16),
    /// Accepts some requests, rejects others, and sometimes accepts without an answer.
    Flaky,
}

#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    pub mode: Mode,
    /// Whether it has been fast from the beginning.
    pub was_always_fast: bool,
}

/// A request in flight.
pub struct Exchange {
    pub start: Start,
    pub answer: Answer,
    pub retry_after: Option<Duration>,
    pub started_at: jiff::Timestamp,
    /// By the process's monotonic clock.
    pub sent_at: std::time::Instant,
    /// Whether a request was made. An inactive webhook gets none.
    pub is_sent: bool,
    /// Whether a fault on Walhook's side prevented the attempt.
    pub is_own_fault: bool,
}

/// What a receiver does with a request.
pub struct Reaction {
    pub answer: Answer,
    pub after: Duration,
    pub is_accepted: bool,
    /// When it asks to be called again.
    pub retry_after: Option<Duration>,
}

fn failed(kind: ErrorKind, status: Option<u16>) -> Answer {
    Answer::Failed {
        kind,
        message: String::new(),
        status,
    }
}

impl Receiver {
    pub fn react(self, random: &mut Random, timeout: Duration) -> Reaction {
        let reaction = |answer, after, is_accepted| Reaction {
            answer,
            after,
            is_accepted,
            retry_after: None,
        };

        let accepted = |after| reaction(Answer::Accepted { status: 200 }, after, true);
        let rejected =
            |status, after| reaction(failed(ErrorKind::HttpStatus, Some(status)), after, false);

        let silent = |is_accepted| {
            reaction(
                failed(ErrorKind::ResponseTimeout, None),
                timeout,
                is_accepted,
            )
        };

        match self.mode {
            Mode::Fast => accepted(random.millis(1, 40)),
            Mode::Slow => accepted(random.millis(1_200, timeout.as_millis() as u64 - 100)),
            Mode::Hanging => silent(random.chance(0.3)),
            Mode::Failing(status) => {
                let retry_after =
                    (status == 429 && random.chance(0.3)).then(|| random.millis(0, 4_000));
                Reaction {
                    retry_after,
                    ..rejected(status, random.millis(1, 60))
                }
            }
            Mode::Flaky => match random.between(0, 9) {
                0..=4 => accepted(random.millis(1, 300)),
                5 => silent(true),
                6 => {
                    let after = random.millis(1, 500);
                    reaction(
                        failed(ErrorKind::ConnectionReset, None),
                        after,
                        random.chance(0.5),
                    )
                }
                7 => rejected(503, random.millis(1, 100)),
                _ => rejected(500, random.millis(1, 100)),
            },
        }
    }
}

impl Exchange {
    /// The finished attempt, if one was made. `took` is how long the process has waited.
    pub fn attempt(&self, took: Duration) -> Option<Attempt> {
        if self.is_own_fault {
            return None;
        }

        let signatures = || Signatures {
            body: [0; 32],
            standard: [0; 32],
            more: Vec::new(),
        };

        let sent = self.is_sent.then(|| Sent {
            url: self.start.destination.endpoint.url(),
            signatures: signatures(),
            duration: took,
            excerpt: Vec::new(),
            retry_after: self.retry_after,
        });

        Some(Attempt {
            started_at: self.started_at,
            answer: self.answer.clone(),
            sent,
        })
    }
}
