//! Limits the rate of retries while there are first attempts to make. No I/O.

use std::time::{Duration, Instant};

/// Retries start in groups, one per period. The webhooks of a group are read from the store
/// together.
const PERIOD: Duration = Duration::from_millis(5);
/// After this long without a first attempt, retries are no longer limited.
const MEMORY: Duration = Duration::from_secs(1);

/// Limits retries to small groups while there are first attempts to make: after an outage, the
/// retries must not take the processors from fresh deliveries. Otherwise retries are not limited.
#[derive(Debug)]
pub struct RetryThrottle {
    group: u32,
    period: Duration,
    /// Retries of the current group that may still start.
    left: u32,
    next_group_at: Instant,
    last_fresh_at: Option<Instant>,
}

impl RetryThrottle {
    pub fn new(retries_per_second: u32, now: Instant) -> RetryThrottle {
        let group = (PERIOD * retries_per_second).as_secs_f64().round().max(1.0) as u32;
        let period = Duration::from_secs(1) * group / retries_per_second.max(1);

        RetryThrottle {
            group,
            period,
            left: 0,
            next_group_at: now,
            last_fresh_at: None,
        }
    }

    /// Notes that there are first attempts to make.
    pub fn note_fresh(&mut self, now: Instant) {
        self.last_fresh_at = Some(now);
    }

    /// Returns when the next retry may start. `now` if it may start at once.
    pub fn opens_at(&self, now: Instant) -> Instant {
        let is_limited = self
            .last_fresh_at
            .is_some_and(|fresh_at| now < fresh_at + MEMORY);
        if is_limited && self.left == 0 {
            self.next_group_at.max(now)
        } else {
            now
        }
    }

    /// Notes that a retry has started.
    pub fn note_retry(&mut self, now: Instant) {
        if self.left == 0 && self.next_group_at <= now {
            // Retries that did not start in earlier periods are not added.
            (self.left, self.next_group_at) = (self.group, now + self.period);
        }

        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many retries start within `length`, if they try every millisecond.
    fn started(throttle: &mut RetryThrottle, from: Instant, length: Duration) -> u32 {
        let mut started = 0;
        let mut now = from;
        while now < from + length {
            while started < 100_000 && throttle.opens_at(now) <= now {
                throttle.note_retry(now);
                started += 1;
            }

            now += Duration::from_millis(1);
        }

        started
    }

    #[test]
    fn while_first_attempts_are_made_retries_start_in_groups() {
        let now = Instant::now();

        for rate in [20, 1_000, 50_000] {
            let mut throttle = RetryThrottle::new(rate, now);
            throttle.note_fresh(now);
            let started = started(&mut throttle, now, Duration::from_millis(500));
            assert!(
                (rate / 2).abs_diff(started) <= rate / 100,
                "{started} of {rate}"
            );
        }
    }

    #[test]
    fn without_first_attempts_retries_are_not_limited() {
        let now = Instant::now();
        let mut throttle = RetryThrottle::new(1_000, now);

        assert_eq!(
            started(&mut throttle, now, Duration::from_millis(1)),
            100_000
        );
        throttle.note_fresh(now);
        throttle.note_retry(now);

        let later = now + MEMORY;
        assert_eq!(throttle.opens_at(later), later);
    }

    #[test]
    fn unused_groups_do_not_add_up() {
        let now = Instant::now();
        let mut throttle = RetryThrottle::new(1_000, now);

        throttle.note_fresh(now);
        let later = now + Duration::from_millis(900);
        assert_eq!(started(&mut throttle, later, PERIOD), 5);
    }
}
