//! The requests in flight, in the order in which they started, so that those that take long are
//! noticed before they end. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::domain::delivery::DeliveryClass;
use crate::handoff::RESPONSIVE;

/// Timers are no more precise.
const TIMER_PRECISION: Duration = Duration::from_millis(1);

/// A request that was started. Ordered by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningRequest {
    pub started_at: Instant,
    /// Distinguishes requests that started at the same time.
    number: u64,
}

/// The requests in flight that are not known to be slow, with their webhooks and classes, and those
/// that have no permit.
#[derive(Debug, Default)]
pub struct Running {
    recent: BTreeMap<RunningRequest, (Uuid, DeliveryClass)>,
    detached: BTreeSet<RunningRequest>,
    started: u64,
}

impl Running {
    pub fn start(&mut self, webhook: Uuid, class: DeliveryClass, now: Instant) -> RunningRequest {
        self.started += 1;
        let request = RunningRequest {
            started_at: now,
            number: self.started,
        };

        self.recent.insert(request, (webhook, class));
        request
    }

    /// Returns whether the request was detached.
    pub fn end(&mut self, request: RunningRequest) -> bool {
        self.recent.remove(&request);
        self.detached.remove(&request)
    }

    /// Returns a request that takes longer than responsive receivers need, and its webhook. Returns
    /// each request once.
    pub fn next_slow(&mut self, now: Instant) -> Option<(RunningRequest, Uuid, DeliveryClass)> {
        let first = self
            .recent
            .first_entry()
            .filter(|first| first.key().started_at + RESPONSIVE < now)?;
        let (request, (webhook, class)) = first.remove_entry();
        Some((request, webhook, class))
    }

    /// Notes that a request has no permit any more.
    pub fn detach(&mut self, request: RunningRequest) {
        self.detached.insert(request);
    }

    /// Returns when [`next_slow`](Self::next_slow) will return the next request, if it does not end
    /// before.
    pub fn next_slow_at(&self) -> Option<Instant> {
        let (first, _) = self.recent.first_key_value()?;
        Some(first.started_at + RESPONSIVE + TIMER_PRECISION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_requests_are_returned_once_in_the_order_of_their_starts() {
        let mut running = Running::default();
        let start = Instant::now();

        assert_eq!(
            (running.next_slow(start), running.next_slow_at()),
            (None, None)
        );
        let requests = [1, 1, 2, 3]
            .map(|webhook| running.start(Uuid::from_u128(webhook), DeliveryClass::Fresh, start));

        (0..2).for_each(|_| assert!(!running.end(requests[2])));
        assert_eq!(running.next_slow(start + RESPONSIVE), None);

        let expected = [(0, 1), (1, 1), (3, 3)].map(|(index, webhook)| {
            (
                requests[index],
                Uuid::from_u128(webhook),
                DeliveryClass::Fresh,
            )
        });

        running.detach(requests[0]);
        let at = running.next_slow_at().unwrap();
        let slow: Vec<_> = std::iter::from_fn(|| running.next_slow(at)).collect();
        assert_eq!((slow, running.next_slow_at()), (expected.to_vec(), None));
        assert_eq!(
            [0, 0, 1].map(|index| running.end(requests[index])),
            [true, false, false]
        );
    }
}
