//! Fair queueing: one queue per webhook and class, served round-robin, with limits that keep permits free for responsive receivers. No
//! I/O.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::congestion::Congestion;
use super::running::{Request, Running};
use crate::domain::delivery::{Delivery, Feedback};
use crate::handoff::{Counters, DeliveryBudget};
use crate::store::deliver::DeliveryClass;

/// A webhook may hold this fraction of the free permits, besides its own limit (a dynamic threshold): the more receivers hang, the
/// fewer permits each of them holds.
const SHARE_OF_FREE: usize = 2;

/// Limits on permits. A permit is the right to have one request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub total: usize,
    pub per_webhook: usize,
    /// Whether a webhook's limit follows its receiver's answers.
    pub adaptive: bool,
}

impl Limits {
    /// Permits that retries may hold. While many receivers are down, fresh deliveries still go out.
    fn retries(self) -> usize {
        (self.total / 2).max(1)
    }
}

/// A delivery whose request has ended, or was not made.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub webhook: Uuid,
    pub class: DeliveryClass,
    pub bytes: usize,
    /// The request, if one was started.
    pub request: Option<Request>,
    /// How long the request took, if one was made.
    pub took: Option<Duration>,
    pub feedback: Feedback,
}

/// The deliveries that wait for a permit.
#[derive(Debug)]
pub struct FairQueue {
    limits: Limits,
    budget: DeliveryBudget,
    congestion: Congestion,
    running: Running,
    fresh: Ring,
    retry: Ring,
    retries_in_flight: usize,
    /// The class that is served next if both have deliveries.
    next: DeliveryClass,
}

/// What decides which webhooks get a permit.
#[derive(Clone, Copy)]
struct Permits<'a> {
    counters: &'a Counters,
    limits: Limits,
    congestion: &'a Congestion,
}

/// The queues of one class. `responsive` and `unproven` are the orders in which webhooks are served: each webhook that has a queue is in
/// one of them, once.
#[derive(Debug, Default)]
struct Ring {
    queues: HashMap<Uuid, VecDeque<Delivery>>,
    responsive: VecDeque<Uuid>,
    unproven: VecDeque<Uuid>,
    queued: usize,
    /// Whether an unproven webhook is served next if webhooks of both kinds wait: they alternate.
    is_unproven_next: bool,
}

impl Ring {
    fn order(&mut self, is_responsive: bool) -> &mut VecDeque<Uuid> {
        if is_responsive { &mut self.responsive } else { &mut self.unproven }
    }

    fn push(&mut self, delivery: Delivery, is_responsive: bool) {
        let webhook = delivery.webhook;
        let queue = self.queues.entry(webhook).or_default();
        queue.push_back(delivery);
        self.queued += 1;
        if queue.len() == 1 {
            self.order(is_responsive).push_back(webhook);
        }
    }

    /// Takes the next delivery for which there is a permit.
    fn pop(&mut self, permits: Permits<'_>) -> Option<Delivery> {
        let first = !self.is_unproven_next;
        let delivery = self.pop_of(first, permits).or_else(|| self.pop_of(!first, permits))?;
        self.is_unproven_next = permits.counters.is_responsive(delivery.webhook);
        Some(delivery)
    }

    /// Takes the next delivery of a responsive or of an unproven webhook. Webhooks that are skipped have a request in flight, of which
    /// there are never many.
    fn pop_of(&mut self, is_responsive: bool, permits: Permits<'_>) -> Option<Delivery> {
        let Permits { counters, limits, congestion } = permits;
        let free = counters.free_permits(limits.total, is_responsive);
        if free == 0 {
            return None;
        }
        let share = free.div_ceil(SHARE_OF_FREE);
        for _ in 0..self.order(is_responsive).len() {
            let webhook = self.order(is_responsive).pop_front()?;
            if counters.in_flight_of(webhook) >= congestion.limit(webhook).min(share) {
                self.order(is_responsive).push_back(webhook);
                continue;
            }
            let queue = self.queues.get_mut(&webhook)?;
            let delivery = queue.pop_front()?;
            if queue.is_empty() {
                self.queues.remove(&webhook);
            } else {
                self.order(is_responsive).push_back(webhook);
            }
            self.queued -= 1;
            return Some(delivery);
        }
        None
    }

    /// Moves a webhook to the responsive or to the unproven ones, if it has a queue.
    fn move_queue(&mut self, webhook: Uuid, is_responsive: bool) {
        let from = self.order(!is_responsive);
        if let Some(position) = from.iter().position(|other| *other == webhook) {
            from.remove(position);
            self.order(is_responsive).push_back(webhook);
        }
    }
}

impl FairQueue {
    /// Requests may take `timeout`.
    pub fn new(limits: Limits, timeout: Duration, budget: DeliveryBudget) -> FairQueue {
        FairQueue {
            limits,
            budget,
            congestion: Congestion::new(limits.per_webhook, limits.adaptive, timeout),
            running: Running::default(),
            fresh: Ring::default(),
            retry: Ring::default(),
            retries_in_flight: 0,
            next: DeliveryClass::Fresh,
        }
    }

    /// Queues a delivery that the budget has admitted.
    pub fn push(&mut self, delivery: Delivery) {
        let is_responsive = self.budget.counters().is_responsive(delivery.webhook);
        self.ring(DeliveryClass::of(&delivery)).push(delivery, is_responsive);
    }

    /// Takes the next delivery to start. It has a permit until [`finish`](Self::finish). Takes retries only if they `may_retry`.
    pub fn pop(&mut self, may_retry: bool) -> Option<Delivery> {
        let budget = self.budget.clone();
        let mut counters = budget.counters();
        let may_retry = may_retry && self.retries_in_flight < self.limits.retries();
        let order = match self.next {
            DeliveryClass::Fresh => [DeliveryClass::Fresh, DeliveryClass::Retry],
            DeliveryClass::Retry => [DeliveryClass::Retry, DeliveryClass::Fresh],
        };
        let FairQueue { fresh, retry, limits, congestion, .. } = self;
        let permits = Permits { counters: &counters, limits: *limits, congestion };
        let mut classes = order.into_iter().filter(|class| may_retry || *class == DeliveryClass::Fresh);
        let delivery = classes.find_map(|class| match class {
            DeliveryClass::Fresh => fresh.pop(permits),
            DeliveryClass::Retry => retry.pop(permits),
        })?;
        counters.start(delivery.webhook);
        match DeliveryClass::of(&delivery) {
            DeliveryClass::Fresh => self.next = DeliveryClass::Retry,
            DeliveryClass::Retry => {
                self.next = DeliveryClass::Fresh;
                self.retries_in_flight += 1;
            }
        }
        Some(delivery)
    }

    /// Notes that the request of a delivery that was taken starts.
    pub fn start_request(&mut self, webhook: Uuid, now: Instant) -> Request {
        self.running.start(webhook, now)
    }

    /// Returns the permit of a delivery that was taken, and releases its budget.
    pub fn finish(&mut self, finished: Finished, now: Instant) {
        let Finished { webhook, class, bytes, request, took, feedback } = finished;
        let is_detached = request.is_some_and(|request| {
            self.congestion.note(webhook, request.started_at, took.unwrap_or_default(), feedback, now);
            self.running.end(request)
        });
        let mut counters = self.budget.counters();
        let has_changed = counters.finish(webhook, bytes, took, is_detached);
        let is_responsive = counters.is_responsive(webhook);
        drop(counters);
        if has_changed {
            self.move_queues(webhook, is_responsive);
        }
        self.retries_in_flight -= usize::from(class == DeliveryClass::Retry);
    }

    /// Makes webhooks unproven whose requests are slow, and takes back the permits of requests that were not expected to be. Otherwise
    /// proven webhooks that hang would get permits, and hold them, until the first timeout.
    pub fn note_slow(&mut self, now: Instant) {
        while let Some((request, webhook)) = self.running.next_slow(now) {
            let slowed = self.budget.counters().note_slow(webhook, self.limits.total);
            if slowed.is_detached {
                self.running.detach(request);
            }
            if slowed.has_changed {
                self.move_queues(webhook, false);
            }
        }
    }

    /// Returns when to call [`note_slow`](Self::note_slow) again.
    pub fn next_slow_at(&self) -> Option<Instant> {
        self.running.next_slow_at()
    }

    fn move_queues(&mut self, webhook: Uuid, is_responsive: bool) {
        self.fresh.move_queue(webhook, is_responsive);
        self.retry.move_queue(webhook, is_responsive);
    }

    pub fn congestion(&mut self) -> &mut Congestion {
        &mut self.congestion
    }

    pub fn in_flight(&self) -> usize {
        self.budget.counters().in_flight()
    }

    pub fn queued(&self) -> usize {
        self.fresh.queued + self.retry.queued
    }

    pub fn queued_retries(&self) -> usize {
        self.retry.queued
    }

    /// Removes and returns all queued deliveries. They get no permits.
    pub fn drain(&mut self) -> Vec<Delivery> {
        let rings = [std::mem::take(&mut self.fresh), std::mem::take(&mut self.retry)];
        rings.into_iter().flat_map(|ring| ring.queues.into_values().flatten()).collect()
    }

    fn ring(&mut self, class: DeliveryClass) -> &mut Ring {
        match class {
            DeliveryClass::Fresh => &mut self.fresh,
            DeliveryClass::Retry => &mut self.retry,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Instant;

    use super::*;
    use crate::domain::delivery::Lease;
    use crate::domain::event::EventKind;

    const QUICK: Duration = Duration::from_millis(5);
    const HANGING: Duration = Duration::from_secs(10);

    pub fn delivery(webhook: u128, number: u128, attempt: u16) -> Delivery {
        Delivery {
            id: Uuid::from_u128(number),
            webhook: Uuid::from_u128(webhook),
            event: Uuid::nil(),
            kind: EventKind::DeliveryCompleted,
            occurred_at: jiff::Timestamp::UNIX_EPOCH,
            data: "{}".into(),
            round: 1,
            attempt,
            sequence: None,
            order_key: None,
            activation: 0,
            lease: Lease { token: Uuid::nil(), until: Instant::now() },
        }
    }

    fn queue(total: usize, per_webhook: usize) -> FairQueue {
        let limits = Limits { total, per_webhook, adaptive: true };
        FairQueue::new(limits, HANGING, DeliveryBudget::default())
    }

    /// Queues a delivery, as the budget admits it.
    fn push(queue: &mut FairQueue, webhook: u128, number: u128, attempt: u16) {
        let delivery = delivery(webhook, number, attempt);
        assert!(queue.budget.reserve(delivery.webhook, delivery.bytes()));
        queue.push(delivery);
    }

    fn finish(queue: &mut FairQueue, webhook: u128, attempt: u16, took: Option<Duration>) {
        let delivery = delivery(webhook, 0, attempt);
        let class = DeliveryClass::of(&delivery);
        let (webhook, bytes, feedback) = (delivery.webhook, delivery.bytes(), Feedback::None);
        queue.finish(Finished { webhook, class, bytes, request: None, took, feedback }, Instant::now());
    }

    /// Has each of the webhooks answer a request quickly.
    fn prove(queue: &mut FairQueue, webhooks: std::ops::RangeInclusive<u128>) {
        for webhook in webhooks {
            push(queue, webhook, 0, 1);
            assert!(queue.pop(true).is_some());
            finish(queue, webhook, 1, Some(QUICK));
        }
    }

    fn pop_all(queue: &mut FairQueue) -> Vec<(u128, u128)> {
        std::iter::from_fn(|| queue.pop(true)).map(|d| (d.webhook.as_u128(), d.id.as_u128())).collect()
    }

    #[test]
    fn webhooks_are_served_in_turn_and_each_in_order() {
        let mut queue = queue(100, 32);
        for number in 1..=5 {
            push(&mut queue, 1, number, 1);
        }
        push(&mut queue, 2, 10, 1);
        push(&mut queue, 3, 20, 1);
        push(&mut queue, 2, 11, 1);
        let order = pop_all(&mut queue);
        assert_eq!(order, [(1, 1), (2, 10), (3, 20), (1, 2), (2, 11), (1, 3), (1, 4), (1, 5)]);
        assert_eq!((queue.in_flight(), queue.queued()), (8, 0));
    }

    #[test]
    fn a_webhook_at_its_limit_is_skipped_until_a_request_ends() {
        let mut queue = queue(100, 2);
        for number in 1..=4 {
            push(&mut queue, 1, number, 1);
        }
        push(&mut queue, 2, 10, 1);
        assert_eq!(pop_all(&mut queue), [(1, 1), (2, 10), (1, 2)]);
        finish(&mut queue, 2, 1, None);
        assert_eq!(pop_all(&mut queue), []);
        finish(&mut queue, 1, 1, None);
        assert_eq!(pop_all(&mut queue), [(1, 3)]);
    }

    #[test]
    fn while_some_receivers_hang_an_unknown_one_finds_a_permit() {
        let mut queue = queue(64, 32);
        for webhook in 1..=20 {
            (0..40).for_each(|number| push(&mut queue, webhook, number, 1));
        }
        let hanging = pop_all(&mut queue).len();
        assert!((35..48).contains(&hanging), "{hanging}");
        push(&mut queue, 99, 1, 1);
        assert_eq!(pop_all(&mut queue), [(99, 1)]);
    }

    #[test]
    fn however_many_receivers_hang_responsive_ones_find_a_permit() {
        let mut queue = queue(256, 32);
        prove(&mut queue, 1..=10);
        for webhook in 1_000..6_000 {
            push(&mut queue, webhook, 1, 1);
        }
        assert_eq!(pop_all(&mut queue).len(), 192);
        for round in 0..3 {
            // Requests that time out are followed by others that hang.
            (0..192).for_each(|index| finish(&mut queue, 1_000 + 192 * round + index, 1, Some(HANGING)));
            assert_eq!(pop_all(&mut queue).len(), 192);
            (1..=10).for_each(|webhook| push(&mut queue, webhook, 7, 1));
            assert_eq!(pop_all(&mut queue).len(), 10);
            (1..=10).for_each(|webhook| finish(&mut queue, webhook, 1, Some(QUICK)));
        }
        assert_eq!(queue.in_flight(), 192);
    }

    #[test]
    fn proven_webhooks_that_hang_get_no_more_permits_than_unproven_ones_after_a_second() {
        let mut queue = queue(256, 32);
        prove(&mut queue, 1..=1_000);
        let mut now = Instant::now();
        let start = |queue: &mut FairQueue, now: Instant| {
            let started = pop_all(queue);
            for (webhook, _) in &started {
                queue.start_request(Uuid::from_u128(*webhook), now);
            }
            started.len()
        };
        // A hundred of them hang from now on, and deliveries arrive for a quarter of these every 400 ms.
        let mut hanging = 0;
        for arrival in 0..40 {
            (1..=25).for_each(|webhook| push(&mut queue, arrival % 4 * 25 + webhook, arrival, 1));
            hanging += start(&mut queue, now);
            now += Duration::from_millis(400);
            queue.note_slow(now);
        }
        // The first request of each no longer has a permit.
        assert!((250..=292).contains(&hanging), "{hanging}");
        (900..=940).for_each(|webhook| push(&mut queue, webhook, 1, 1));
        assert_eq!(start(&mut queue, now), 41, "others still find permits");
    }

    #[test]
    fn responsive_webhooks_do_not_starve_unproven_ones() {
        let mut queue = queue(8, 4);
        prove(&mut queue, 1..=4);
        for number in 1..=10 {
            (1..=4).for_each(|webhook| push(&mut queue, webhook, number, 1));
        }
        push(&mut queue, 9, 1, 1);
        assert!(pop_all(&mut queue).contains(&(9, 1)));
    }

    #[test]
    fn queues_move_when_a_webhook_becomes_responsive_or_unproven() {
        let mut queue = queue(8, 8);
        prove(&mut queue, 1..=1);
        for number in 1..=20 {
            push(&mut queue, 1, number, 1);
            push(&mut queue, 2, number, 2);
        }
        let mut seen = pop_all(&mut queue);
        // One becomes responsive and the other unproven with every request, and nothing is lost or delivered twice.
        for round in 0..40 {
            let (quick, slow) = if round % 2 == 0 { (2, 1) } else { (1, 2) };
            for (webhook, took) in [(quick, QUICK), (slow, HANGING)] {
                if queue.budget.counters().in_flight_of(Uuid::from_u128(webhook)) > 0 {
                    finish(&mut queue, webhook, webhook as u16, Some(took));
                }
            }
            seen.extend(pop_all(&mut queue));
        }
        seen.sort_unstable();
        let expected: Vec<(u128, u128)> = (1..=2).flat_map(|webhook| (1..=20).map(move |n| (webhook, n))).collect();
        assert_eq!((seen, queue.queued()), (expected, 0));
    }

    #[test]
    fn webhooks_with_one_delivery_each_use_all_permits_once_they_are_proven() {
        let mut queue = queue(8, 4);
        prove(&mut queue, 1..=9);
        (1..=9).for_each(|webhook| push(&mut queue, webhook, 0, 1));
        assert_eq!(pop_all(&mut queue).len(), 8);
        finish(&mut queue, 3, 1, Some(QUICK));
        assert_eq!(pop_all(&mut queue), [(9, 0)]);
    }

    #[test]
    fn retries_hold_at_most_half_of_the_permits() {
        let mut queue = queue(8, 8);
        prove(&mut queue, 1..=13);
        (1..=8).for_each(|webhook| push(&mut queue, webhook, 0, 2));
        assert_eq!(pop_all(&mut queue).len(), 4);
        (11..=13).for_each(|webhook| push(&mut queue, webhook, 0, 1));
        assert_eq!(pop_all(&mut queue).len(), 3);
        finish(&mut queue, 1, 2, None);
        assert_eq!(pop_all(&mut queue), [(5, 0)]);
    }

    #[test]
    fn fresh_deliveries_and_retries_of_one_webhook_alternate() {
        let mut queue = queue(100, 50);
        for number in 1..=3 {
            push(&mut queue, 1, number, 1);
            push(&mut queue, 1, 10 + number, 2);
        }
        let order: Vec<u128> = pop_all(&mut queue).into_iter().map(|(_, number)| number).collect();
        assert_eq!(order, [1, 11, 2, 12, 3, 13]);
    }

    #[test]
    fn waiting_deliveries_can_be_taken_without_permits() {
        let mut queue = queue(1, 1);
        (1..=3).for_each(|number| push(&mut queue, 1, number, number as u16));
        assert!(queue.pop(true).is_some());
        assert_eq!((queue.drain().len(), queue.queued(), queue.in_flight()), (2, 0, 1));
        assert!(queue.pop(true).is_none());
    }
}
