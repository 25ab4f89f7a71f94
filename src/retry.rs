//! Waits between retries of work that must eventually succeed.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Exponential backoff: each wait is twice as long as the one before, up to a limit.
///
/// Not the `backon` crate, which retries one operation: the loops here run for the life of the
/// process and start over after each success.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            first,
            longest,
            failures: 0,
        }
    }

    /// Returns the wait that follows `failures` earlier failures.
    pub fn wait_after(&self, failures: u32) -> Duration {
        self.first
            .saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
            .min(self.longest)
    }

    /// Counts a failure, and returns how long to wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.wait_after(self.failures);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Starts over with the first wait, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next try.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_wait()).await;
    }

    /// Waits before the next try. Returns false as soon as `stop` is cancelled.
    pub async fn wait_unless(&mut self, stop: &CancellationToken) -> bool {
        stop.run_until_cancelled(self.wait()).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let waits: Vec<u64> = (0..5).map(|_| backoff.next_wait().as_secs()).collect();

        assert_eq!(waits, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.wait_after(u32::MAX), Duration::from_secs(5));
        backoff.reset();
        assert_eq!(backoff.next_wait(), Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_wait_ends_when_it_is_cancelled() {
        let stop = CancellationToken::new();
        stop.cancel();
        let hour = Duration::from_secs(3_600);
        assert!(!Backoff::new(hour, hour).wait_unless(&stop).await);
    }
}
