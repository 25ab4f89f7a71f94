//! The retry schedule: how long to wait before the next attempt.

use std::time::Duration;

/// The waits between attempts. The jitter spreads out the retries that one outage causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrySchedule {
    waits: Vec<Duration>,
    jitter: Duration,
}

impl RetrySchedule {
    pub fn new(waits: Vec<Duration>, jitter: Duration) -> Self {
        RetrySchedule { waits, jitter }
    }

    /// Returns the number of attempts in one round: one more than there are waits.
    pub fn attempts(&self) -> u16 {
        self.waits.len() as u16 + 1
    }

    /// Returns the wait after failed attempt `attempt` (from 1), or None after the last. `random`
    /// in 0..1 determines the jitter.
    pub fn wait_after(&self, attempt: u16, random: f64) -> Option<Duration> {
        let index = usize::from(attempt).checked_sub(1)?;
        self.waits
            .get(index)
            .map(|wait| *wait + self.jitter.mul_f64(random.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_the_schedule_and_end_after_the_last_attempt() {
        let schedule = RetrySchedule::new(
            vec![Duration::from_secs(30), Duration::from_secs(60)],
            Duration::from_secs(30),
        );
        assert_eq!(schedule.attempts(), 3);
        assert_eq!(schedule.wait_after(0, 0.5), None);
        assert_eq!(schedule.wait_after(1, 0.0), Some(Duration::from_secs(30)));
        assert_eq!(schedule.wait_after(2, 0.5), Some(Duration::from_secs(75)));
        assert_eq!(schedule.wait_after(3, 0.5), None);
    }
}
