//! The requests in flight, in the order in which they started, so that slow ones are noticed before they end. No I/O.

use std::collections::BTreeMap;
use std::time::Instant;

use uuid::Uuid;

use crate::handoff::RESPONSIVE;

/// A request that was started. Ordered by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub started_at: Instant,
    /// Tells requests apart that started at the same time.
    number: u64,
}

/// The requests in flight that are not known to be slow, with their webhooks. There are never more than permits.
#[derive(Debug, Default)]
pub struct Running {
    requests: BTreeMap<Request, Uuid>,
    started: u64,
}

impl Running {
    pub fn start(&mut self, webhook: Uuid, now: Instant) -> Request {
        self.started += 1;
        let request = Request { started_at: now, number: self.started };
        self.requests.insert(request, webhook);
        request
    }

    pub fn end(&mut self, request: Request) {
        self.requests.remove(&request);
    }

    /// Returns the webhook of a request that takes longer than responsive receivers need. Returns each request once.
    pub fn next_slow(&mut self, now: Instant) -> Option<Uuid> {
        let first = self.requests.first_entry().filter(|first| first.key().started_at + RESPONSIVE < now)?;
        Some(first.remove())
    }

    /// Returns when [`next_slow`](Self::next_slow) will return the next request, if it does not end before.
    pub fn next_slow_at(&self) -> Option<Instant> {
        // A millisecond later, because it must have taken longer, and timers are no more precise.
        let (first, _) = self.requests.first_key_value()?;
        Some(first.started_at + RESPONSIVE + std::time::Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_requests_are_returned_once_in_the_order_of_their_starts() {
        let (mut running, start) = (Running::default(), Instant::now());
        assert_eq!((running.next_slow(start), running.next_slow_at()), (None, None));
        let requests = [1, 1, 2, 3].map(|webhook| running.start(Uuid::from_u128(webhook), start));
        running.end(requests[2]);
        running.end(requests[2]);
        assert_eq!(running.next_slow(start + RESPONSIVE), None);
        let at = running.next_slow_at().unwrap();
        let slow: Vec<u128> = std::iter::from_fn(|| running.next_slow(at)).map(|webhook| webhook.as_u128()).collect();
        assert_eq!((slow, running.next_slow_at()), (vec![1, 1, 3], None));
        running.end(requests[0]);
    }
}
