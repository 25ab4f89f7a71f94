//! How long to wait before the next attempt.

use std::time::Duration;

/// The waits between attempts, and the jitter that keeps retries of one outage from arriving together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrySchedule {
    waits: Vec<Duration>,
    jitter: Duration,
}

impl RetrySchedule {
    pub fn new(waits: Vec<Duration>, jitter: Duration) -> Self {
        RetrySchedule { waits, jitter }
    }

    /// How many attempts a delivery has in one round: one more than there are waits.
    pub fn attempts(&self) -> u16 {
        self.waits.len() as u16 + 1
    }

    /// The wait behind failed attempt `attempt` (from 1), with `random` in 0..1 choosing the jitter. Nothing behind the last.
    pub fn wait_after(&self, attempt: u16, random: f64) -> Option<Duration> {
        let index = usize::from(attempt).checked_sub(1)?;
        self.waits.get(index).map(|wait| *wait + self.jitter.mul_f64(random.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_the_schedule_with_jitter_and_end() {
        let schedule =
            RetrySchedule::new(vec![Duration::from_secs(30), Duration::from_secs(60)], Duration::from_secs(30));
        assert_eq!(schedule.attempts(), 3);
        assert_eq!(schedule.wait_after(0, 0.5), None);
        assert_eq!(schedule.wait_after(1, 0.0), Some(Duration::from_secs(30)));
        assert_eq!(schedule.wait_after(2, 0.5), Some(Duration::from_secs(75)));
        assert_eq!(schedule.wait_after(3, 0.5), None);
    }
}
