//! Answers to deliveries that the store does not know yet. A request is sent while its delivery's transaction commits, so its answer
//! may arrive first. It is kept until the commit, or until the lease ends: then the commit has failed, or another replica has taken
//! over the delivery. No I/O.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::handoff::CAPACITY;

/// Before the first retry: commits take milliseconds. Each retry doubles the time.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Kept<T> {
    answer: T,
    retry_at: Instant,
}

/// Answers waiting for their deliveries to appear in the store, the oldest first. At most as many as deliveries are held: the oldest are
/// dropped first, and their attempts are made again when their leases end.
#[derive(Debug)]
pub struct Unmatched<T>(VecDeque<Kept<T>>);

impl<T> Unmatched<T> {
    pub fn new() -> Unmatched<T> {
        Unmatched(VecDeque::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps an answer that arrived at `since` and was not matched at `now`, unless its lease has ended.
    pub fn keep(&mut self, answer: T, since: Instant, lease_ends_at: Instant, now: Instant) {
        if lease_ends_at <= now {
            return;
        }
        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }
        let wait = now.saturating_duration_since(since).clamp(FIRST_RETRY, LONGEST_RETRY);
        self.0.push_back(Kept { answer, retry_at: (now + wait).min(lease_ends_at) });
    }

    /// When the next answer is to be tried again.
    pub fn next_retry_at(&self) -> Option<Instant> {
        self.0.iter().map(|kept| kept.retry_at).min()
    }

    /// Takes at most `most` answers that are to be tried again by `now`.
    pub fn take_due(&mut self, now: Instant, most: usize) -> Vec<T> {
        let mut due = Vec::new();
        for _ in 0..self.0.len() {
            let Some(kept) = self.0.pop_front() else { break };
            if kept.retry_at <= now && due.len() < most {
                due.push(kept.answer);
            } else {
                self.0.push_back(kept);
            }
        }
        due
    }

    /// Takes at most `most` answers, due or not.
    pub fn take(&mut self, most: usize) -> Vec<T> {
        self.0.drain(..most.min(self.0.len())).map(|kept| kept.answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(20);

    #[test]
    fn answers_are_tried_again_at_growing_intervals_until_their_leases_end() {
        let since = Instant::now();
        let (mut unmatched, mut now, mut tries) = (Unmatched::new(), since, Vec::new());
        unmatched.keep(1, since, since + LEASE, now);
        while let Some(retry_at) = unmatched.next_retry_at() {
            assert!(unmatched.take_due(retry_at - Duration::from_millis(1), 10).is_empty());
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
    fn the_oldest_answers_are_dropped_when_there_are_too_many() {
        let now = Instant::now();
        let mut unmatched = Unmatched::new();
        for answer in 0..CAPACITY + 10 {
            unmatched.keep(answer, now, now + LEASE, now);
        }
        assert_eq!(unmatched.len(), CAPACITY);
        assert_eq!(unmatched.take_due(now + LEASE, 2), [10, 11]);
        assert_eq!(unmatched.take(CAPACITY).len(), CAPACITY - 2);
        assert_eq!((unmatched.len(), unmatched.next_retry_at()), (0, None));
    }
}
