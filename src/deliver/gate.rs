//! How fast retries follow each other while there are first attempts to make. Pure.

use std::time::{Duration, Instant};

/// Retries that pass together need one look at their webhooks.
const PERIOD: Duration = Duration::from_millis(5);
/// First attempts are expected to go on for so long after the last one.
const MEMORY: Duration = Duration::from_secs(1);

/// Retries pass in small groups while first attempts go out, and as they come when none does: an outage's end must not take
/// the processors from what is new.
#[derive(Debug)]
pub struct RetryGate {
    group: u32,
    period: Duration,
    /// How many more of the group that is passing.
    left: u32,
    next_at: Instant,
    fresh_at: Option<Instant>,
}

impl RetryGate {
    pub fn new(retries_per_second: u32, now: Instant) -> RetryGate {
        let group = (PERIOD * retries_per_second).as_secs_f64().round().max(1.0) as u32;
        let period = Duration::from_secs(1) * group / retries_per_second.max(1);
        RetryGate { group, period, left: 0, next_at: now, fresh_at: None }
    }

    /// Notes that there are first attempts to make.
    pub fn fresh(&mut self, now: Instant) {
        self.fresh_at = Some(now);
    }

    /// When the next retry may pass: now, if that is not later than now.
    pub fn opens_at(&self, now: Instant) -> Instant {
        let holds_back = self.fresh_at.is_some_and(|fresh_at| now < fresh_at + MEMORY);
        if holds_back && self.left == 0 { self.next_at.max(now) } else { now }
    }

    /// Notes that a retry has passed.
    pub fn passed(&mut self, now: Instant) {
        if self.left == 0 && self.next_at <= now {
            // A pause is not made up for.
            (self.left, self.next_at) = (self.group, now + self.period);
        }
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many retries pass within `length`, if they try every millisecond.
    fn passing(gate: &mut RetryGate, begun: Instant, length: Duration) -> u32 {
        let mut passed = 0;
        let mut now = begun;
        while now < begun + length {
            while passed < 100_000 && gate.opens_at(now) <= now {
                gate.passed(now);
                passed += 1;
            }
            now += Duration::from_millis(1);
        }
        passed
    }

    #[test]
    fn beside_first_attempts_retries_pass_in_groups() {
        let now = Instant::now();
        for rate in [20, 1_000, 50_000] {
            let mut gate = RetryGate::new(rate, now);
            gate.fresh(now);
            let passed = passing(&mut gate, now, Duration::from_millis(500));
            assert!((rate / 2).abs_diff(passed) <= rate / 100, "{passed} of {rate}");
        }
    }

    #[test]
    fn without_first_attempts_they_pass_as_they_come() {
        let now = Instant::now();
        let mut gate = RetryGate::new(1_000, now);
        assert_eq!(passing(&mut gate, now, Duration::from_millis(1)), 100_000);
        gate.fresh(now);
        gate.passed(now);
        let later = now + MEMORY;
        assert_eq!(gate.opens_at(later), later);
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let now = Instant::now();
        let mut gate = RetryGate::new(1_000, now);
        gate.fresh(now);
        let later = now + Duration::from_millis(900);
        assert_eq!(passing(&mut gate, later, PERIOD), 5);
    }
}
