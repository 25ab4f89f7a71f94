//! How many requests a receiver can handle at once: additive increase, multiplicative decrease, as
//! TCP does. No I/O.
//!
//! An answer with 429 or 503, or a timeout, halves the webhook's limit; each round of good answers
//! raises it by one. The requests of one round fail together, so the limit is halved at most once
//! per round: failures of requests that started before the last decrease change nothing. A webhook
//! without such failures needs no memory.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use uuid::Uuid;

use crate::domain::delivery::{Feedback, TIME_TO_START};

/// Webhooks that are remembered. Beyond that, the one that has not answered for longest is
/// forgotten: each claim has the limits of all of them.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1_024).expect("not zero");
/// After so long without an answer a webhook is forgotten: what its receiver could handle then says
/// little about now.
const IDLE: Duration = Duration::from_secs(60);

/// What is known about a webhook whose receiver was overloaded lately.
#[derive(Debug)]
struct OverloadWindow {
    limit: f64,
    /// Good answers since the last bad one.
    good: usize,
    decreased_at: Option<Instant>,
    answered_at: Instant,
    /// How long the last request took.
    took: Duration,
}

/// The concurrency limits of webhooks. Webhooks that are not remembered have the configured one.
#[derive(Debug)]
pub struct Congestion {
    cap: usize,
    is_adaptive: bool,
    idle: Duration,
    windows: LruCache<Uuid, OverloadWindow>,
    /// How many of them are below the configured limit.
    limited: usize,
}

impl Congestion {
    /// `cap` is the configured limit. Requests may take `timeout`.
    pub fn new(cap: usize, is_adaptive: bool, timeout: Duration) -> Congestion {
        let is_adaptive = is_adaptive && cap > 1;
        let idle = IDLE.max(timeout.saturating_mul(2));

        Congestion {
            cap,
            is_adaptive,
            idle,
            windows: LruCache::new(REMEMBERED),
            limited: 0,
        }
    }

    /// Returns how many requests the webhook may have in flight. At least one.
    pub fn limit(&self, webhook: Uuid) -> usize {
        match self.windows.is_empty() {
            true => self.cap,
            false => self
                .windows
                .peek(&webhook)
                .map_or(self.cap, |window| window.limit as usize),
        }
    }

    /// Returns how many deliveries to hold for each of the webhooks below the configured limit: at
    /// most `ahead` for each request that it may have in flight, and no more than can be started
    /// before their leases end.
    pub fn claim_limits(&self, ahead: usize) -> impl Iterator<Item = (Uuid, usize)> {
        let limited = self
            .windows
            .iter()
            .filter(|(_, window)| self.is_limited(window));
        limited.map(move |(webhook, window)| {
            let rounds = TIME_TO_START.as_nanos() / window.took.as_nanos().max(1);
            let rounds = usize::try_from(rounds).unwrap_or(ahead).clamp(1, ahead);
            (*webhook, window.limit as usize * rounds)
        })
    }

    /// Returns how many webhooks are below the configured limit.
    pub fn limited(&self) -> usize {
        self.limited
    }

    fn is_limited(&self, window: &OverloadWindow) -> bool {
        window.limit < self.cap as f64
    }

    /// Notes the end of a request.
    pub fn note(
        &mut self,
        webhook: Uuid,
        started_at: Instant,
        took: Duration,
        feedback: Feedback,
        now: Instant,
    ) {
        let is_good = feedback == Feedback::Responsive;
        if !self.is_adaptive || feedback == Feedback::None || (is_good && self.windows.is_empty()) {
            return;
        }

        let window = match self.windows.pop(&webhook) {
            Some(window) => window,
            None if is_good => return,
            None => OverloadWindow {
                limit: self.cap as f64,
                good: self.cap,
                decreased_at: None,
                answered_at: now,
                took,
            },
        };

        self.limited -= usize::from(self.is_limited(&window));
        let window = OverloadWindow {
            answered_at: now,
            took,
            ..window
        };

        let window = if is_good {
            self.raised(window)
        } else {
            lowered(window, started_at, feedback, now)
        };

        if is_good && window.good >= self.cap && !self.is_limited(&window) {
            return;
        }

        self.limited += usize::from(self.is_limited(&window));

        if let Some((_, forgotten)) = self.windows.push(webhook, window) {
            self.limited -= usize::from(self.is_limited(&forgotten));
        }
    }

    fn raised(&self, window: OverloadWindow) -> OverloadWindow {
        let limit = (window.limit + 1.0 / window.limit).min(self.cap as f64);
        OverloadWindow {
            limit,
            good: window.good + 1,
            ..window
        }
    }

    /// Forgets webhooks that have not answered for long.
    pub fn forget_idle(&mut self, now: Instant) {
        while self
            .windows
            .peek_lru()
            .is_some_and(|(_, window)| window.answered_at + self.idle <= now)
        {
            if let Some((_, forgotten)) = self.windows.pop_lru() {
                self.limited -= usize::from(self.is_limited(&forgotten));
            }
        }
    }
}

fn lowered(
    window: OverloadWindow,
    started_at: Instant,
    feedback: Feedback,
    now: Instant,
) -> OverloadWindow {
    let is_of_an_earlier_round = window
        .decreased_at
        .is_some_and(|decreased_at| started_at < decreased_at);

    // A single timeout among many answers is an accident. At the full limit, halving would cost
    // seconds of its rate.
    let is_accident = feedback == Feedback::TimedOut && window.good >= window.limit as usize;
    let window = OverloadWindow { good: 0, ..window };

    match is_of_an_earlier_round || is_accident {
        true => window,
        false => OverloadWindow {
            limit: (window.limit / 2.0).max(1.0),
            decreased_at: Some(now),
            ..window
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: usize = 64;
    const ROUND: Duration = Duration::from_millis(20);
    const TIMEOUT: Duration = Duration::from_secs(10);
    const ID: Uuid = Uuid::from_u128(1);

    fn congestion() -> Congestion {
        Congestion::new(CAP, true, TIMEOUT)
    }

    /// Has as many requests in flight as are allowed, of which the receiver answers all beyond
    /// `capacity` with 429. Returns how many were sent.
    fn round(congestion: &mut Congestion, now: &mut Instant, capacity: usize) -> usize {
        let started_at = *now;
        let sent = congestion.limit(ID);

        *now += ROUND;

        for number in 0..sent {
            let feedback = if number < capacity {
                Feedback::Responsive
            } else {
                Feedback::Overloaded
            };
            congestion.note(ID, started_at, ROUND, feedback, *now);
        }

        sent
    }

    #[test]
    fn the_limit_settles_at_what_the_receiver_can_handle_and_recovers() {
        let mut congestion = congestion();
        let mut now = Instant::now();
        let falling: Vec<usize> = (0..6)
            .map(|_| round(&mut congestion, &mut now, 5))
            .collect();

        assert_eq!(
            falling[..5],
            [64, 32, 16, 8, 4],
            "halved once per round, however many requests of it fail"
        );
        let settled: Vec<usize> = (0..50)
            .map(|_| round(&mut congestion, &mut now, 5))
            .collect();

        assert!(
            settled.iter().all(|sent| (2..=6).contains(sent)),
            "{settled:?}"
        );
        assert_eq!(congestion.limited(), 1);

        let rounds = (0..)
            .take_while(|_| round(&mut congestion, &mut now, CAP) < CAP)
            .count();
        assert!(
            (CAP - 7..=2 * CAP).contains(&rounds),
            "about one more per round: {rounds}"
        );

        for _ in 0..2 {
            round(&mut congestion, &mut now, CAP);
        }

        assert_eq!(
            (congestion.limited(), congestion.windows.len()),
            (0, 0),
            "a recovered webhook is forgotten"
        );
    }

    #[test]
    fn a_receiver_that_never_answers_keeps_one_request() {
        let mut congestion = congestion();
        let mut now = Instant::now();

        for _ in 0..20 {
            let started_at = now;
            now += TIMEOUT;

            for _ in 0..congestion.limit(ID) {
                congestion.note(ID, started_at, TIMEOUT, Feedback::TimedOut, now);
            }
        }

        assert_eq!(congestion.limit(ID), 1);
        assert_eq!(
            congestion.claim_limits(16).collect::<Vec<_>>(),
            [(ID, 1)],
            "a second could not start in time"
        );
        congestion.note(ID, now, ROUND, Feedback::Responsive, now);
        assert_eq!(congestion.limit(ID), 2);
        assert_eq!(congestion.claim_limits(16).collect::<Vec<_>>(), [(ID, 32)]);
    }

    #[test]
    fn single_timeouts_among_many_answers_change_nothing() {
        let mut congestion = congestion();
        let now = Instant::now();

        for number in 1..20_000 {
            let feedback = if number % 100 == 0 {
                Feedback::TimedOut
            } else {
                Feedback::Responsive
            };

            congestion.note(ID, now, ROUND, feedback, now);
            assert_eq!((congestion.limit(ID), congestion.limited()), (CAP, 0));
        }

        (0..CAP).for_each(|_| congestion.note(ID, now, ROUND, Feedback::Responsive, now));
        assert!(congestion.windows.is_empty());
        (0..2).for_each(|_| congestion.note(ID, now, TIMEOUT, Feedback::TimedOut, now));
        assert_eq!(
            congestion.limit(ID),
            CAP / 2,
            "two in a row are no accident"
        );
    }

    #[test]
    fn answers_that_say_nothing_about_the_load_change_nothing() {
        let mut congestion = congestion();
        let mut now = Instant::now();

        congestion.note(ID, now, ROUND, Feedback::None, now);
        assert!(congestion.windows.is_empty());
        round(&mut congestion, &mut now, 0);
        congestion.note(ID, now, ROUND, Feedback::None, now);
        assert_eq!(congestion.limit(ID), CAP / 2);

        let mut fixed = Congestion::new(CAP, false, TIMEOUT);
        assert_eq!(
            (round(&mut fixed, &mut now, 0), fixed.limit(ID)),
            (CAP, CAP)
        );
    }

    #[test]
    fn memory_is_bounded_and_idle_webhooks_are_forgotten() {
        let mut congestion = congestion();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);

        for webhook in 0..5_000 {
            congestion.note(
                Uuid::from_u128(webhook),
                now,
                ROUND,
                Feedback::Overloaded,
                later,
            );
        }

        assert_eq!(
            (
                congestion.limited(),
                congestion.limit(Uuid::from_u128(4_999))
            ),
            (REMEMBERED.get(), CAP / 2)
        );

        congestion.note(
            Uuid::from_u128(4_500),
            later,
            ROUND,
            Feedback::Responsive,
            later + IDLE / 2,
        );

        congestion.forget_idle(later + IDLE);
        assert_eq!(congestion.limited(), 1);
        congestion.forget_idle(later + 2 * IDLE);
        assert!(congestion.windows.is_empty());
    }
}
