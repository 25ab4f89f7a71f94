//! Attempts whose deliveries are not stored yet. The request of a handed-off delivery is sent
//! before the transaction that stores the delivery commits, so the attempt may finish first. It is
//! kept until the delivery is found, or until the lease ends: then the commit has failed, or
//! another replica has claimed the delivery. No I/O.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::handoff::CAPACITY;

/// The wait before the first retry: commits take milliseconds. Each retry doubles the time since
/// the attempt finished.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// The longest wait between retries: a commit that takes seconds is rare, and a second more delays
/// only the attempt's log entry.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Kept<T> {
    attempt: T,
    retry_at: Instant,
}

/// Attempts that wait until the store has their deliveries, in the order in which they were last
/// tried. At most [`CAPACITY`]: beyond that, the first is dropped, and its delivery is sent again
/// when the lease ends.
#[derive(Debug)]
pub struct Unmatched<T>(VecDeque<Kept<T>>);

impl<T> Unmatched<T> {
    pub fn new() -> Unmatched<T> {
        Unmatched(VecDeque::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps an attempt that finished at `since` and was not matched at `now`, unless its lease has
    /// ended.
    pub fn keep(&mut self, attempt: T, since: Instant, lease_ends_at: Instant, now: Instant) {
        if lease_ends_at <= now {
            return;
        }

        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }

        let wait = now
            .saturating_duration_since(since)
            .clamp(FIRST_RETRY, LONGEST_RETRY);
        self.0.push_back(Kept {
            attempt,
            retry_at: (now + wait).min(lease_ends_at),
        });
    }

    /// Returns when the next attempt is due for another try.
    pub fn next_retry_at(&self) -> Option<Instant> {
        self.0.iter().map(|kept| kept.retry_at).min()
    }

    /// Removes and returns at most `most` attempts that are due for another try at `now`.
    pub fn take_due(&mut self, now: Instant, most: usize) -> Vec<T> {
        let mut due = Vec::new();

        for _ in 0..self.0.len() {
            let Some(kept) = self.0.pop_front() else {
                break;
            };

            if kept.retry_at <= now && due.len() < most {
                due.push(kept.attempt);
            } else {
                self.0.push_back(kept);
            }
        }

        due
    }

    /// Removes and returns at most `most` attempts, due or not.
    pub fn take(&mut self, most: usize) -> Vec<T> {
        self.0
            .drain(..most.min(self.0.len()))
            .map(|kept| kept.attempt)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(20);

    #[test]
    fn unmatched_attempts_are_tried_again_at_growing_intervals_until_their_leases_end() {
        let since = Instant::now();
        let mut unmatched = Unmatched::new();
        let mut now = since;
        let mut tries = Vec::new();

        unmatched.keep(1, since, since + LEASE, now);

        while let Some(retry_at) = unmatched.next_retry_at() {
            assert!(
                unmatched
                    .take_due(retry_at - Duration::from_millis(1), 10)
                    .is_empty()
            );
            assert_eq!(unmatched.take_due(retry_at, 10), [1]);
            now = retry_at;
            tries.push(now - since);
            unmatched.keep(1, since, since + LEASE, now);
        }

        let first: Vec<u128> = tries.iter().take(6).map(Duration::as_millis).collect();
        assert_eq!(first, [50, 100, 200, 400, 800, 1_600]);
        assert_eq!((tries.last(), unmatched.len()), (Some(&LEASE), 0));
        assert!(tries.len() < 30, "{tries:?}");
    }

    #[test]
    fn the_least_recently_tried_attempts_are_dropped_when_there_are_too_many() {
        let now = Instant::now();
        let mut unmatched = Unmatched::new();

        for attempt in 0..CAPACITY + 10 {
            unmatched.keep(attempt, now, now + LEASE, now);
        }

        assert_eq!(unmatched.len(), CAPACITY);
        assert_eq!(unmatched.take_due(now + LEASE, 2), [10, 11]);
        assert_eq!(unmatched.take(CAPACITY).len(), CAPACITY - 2);
        assert_eq!((unmatched.len(), unmatched.next_retry_at()), (0, None));
    }
}
