//! Fair queueing of both classes, with limits that keep permits free for responsive receivers and
//! for new ones. No I/O.

use std::time::Instant;

use uuid::Uuid;

use super::class_queue::{ClassQueue, InFlight};
use super::running::RunningRequest;
use super::{Finished, Schedule};
use crate::domain::delivery::{Delivery, DeliveryClass};
use crate::handoff::Speed;

impl Schedule {
    /// Queues a delivery that the budget has admitted.
    pub(super) fn push(&mut self, delivery: Delivery) {
        let (speed, in_flight) = self.state(delivery.webhook);
        let class = DeliveryClass::of(&delivery);
        self.queues[class as usize].push(delivery, speed, in_flight);
    }

    /// Takes the next delivery to start. It has a permit until [`finish`](Self::finish). Takes
    /// retries only if they `may_retry`.
    pub(super) fn pop(&mut self, may_retry: bool) -> Option<Delivery> {
        let mut counters = self.budget.counters();
        let mut classes = [self.next, self.next.other()]
            .into_iter()
            .filter(|class| may_retry || *class == DeliveryClass::Fresh);
        let (class, delivery) = classes.find_map(|class| {
            let queue = &mut self.queues[class as usize];
            Some((class, queue.pop(&counters, self.limits.total, class)?))
        })?;

        counters.start(delivery.webhook, class);
        drop(counters);
        self.update(delivery.webhook);
        self.next = class.other();

        Some(delivery)
    }

    /// Notes that the request of a delivery that was taken starts. Returns what
    /// [`finish`](Self::finish) needs to identify the request.
    pub fn start_request(
        &mut self,
        webhook: Uuid,
        class: DeliveryClass,
        now: Instant,
    ) -> RunningRequest {
        self.running.start(webhook, class, now)
    }

    /// Returns the permit of a delivery that was taken, and releases its budget.
    pub fn finish(&mut self, finished: Finished, now: Instant) {
        let Finished {
            webhook,
            class,
            bytes,
            request,
            took,
            feedback,
        } = finished;

        let is_detached = request.is_some_and(|request| {
            self.congestion.note(
                webhook,
                request.started_at,
                took.unwrap_or_default(),
                feedback,
                now,
            );
            self.running.end(request)
        });

        self.budget
            .counters()
            .finish(webhook, class, bytes, took, is_detached);
        self.update(webhook);

        for claims in &mut self.claims {
            claims.note_finished(1);
        }
    }

    /// Takes back the permits of requests that take longer than responsive receivers need, and notes
    /// that their webhooks are slow.
    pub(super) fn note_slow(&mut self, now: Instant) {
        while let Some((request, webhook, class)) = self.running.next_slow(now) {
            let permits = self.limits.total;
            if self.budget.counters().note_slow(webhook, class, permits) {
                self.running.detach(request);
            }

            self.update(webhook);
        }
    }

    /// Moves the queues of a webhook whose speed, requests in flight or limit may have changed.
    fn update(&mut self, webhook: Uuid) {
        let (speed, in_flight) = self.state(webhook);

        for queue in &mut self.queues {
            queue.update(webhook, speed, in_flight);
        }
    }

    /// Returns the speed of a webhook and what it has in flight.
    fn state(&self, webhook: Uuid) -> (Speed, InFlight) {
        let counters = self.budget.counters();
        let requests = counters.in_flight_of(webhook);
        (
            counters.speed(webhook),
            InFlight {
                is_at_limit: requests >= self.congestion.limit(webhook),
                requests,
            },
        )
    }

    pub fn queued(&self) -> usize {
        self.queues.iter().map(ClassQueue::queued).sum()
    }

    /// Removes and returns all queued deliveries. They get no permits.
    pub fn drain(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.queues)
            .into_iter()
            .flat_map(ClassQueue::into_deliveries)
            .collect()
    }
}

#[cfg(test)]
pub mod tests {
    use std::ops::RangeInclusive;
    use std::time::Duration;

    use super::super::Limits;
    use super::*;
    use crate::domain::delivery::Lease;
    use crate::domain::event::EventKind;
    use crate::handoff::DeliveryBudget;

    const QUICK: Duration = Duration::from_millis(5);
    const LATE: Duration = Duration::from_millis(600);
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
            lease: Lease {
                token: Uuid::nil(),
                until: Instant::now(),
                place: None,
            },
        }
    }

    fn queue(total: usize, per_webhook: usize) -> Schedule {
        let limits = Limits {
            total,
            per_webhook,
            adaptive: true,
        };
        Schedule::new(
            limits,
            1_000,
            HANGING,
            DeliveryBudget::default(),
            Instant::now(),
        )
    }

    /// Queues a delivery, as the budget admits it.
    fn push(queue: &mut Schedule, webhook: u128, number: u128, attempt: u16) {
        let delivery = delivery(webhook, number, attempt);
        assert!(queue.budget.reserve(delivery.webhook, delivery.bytes()));
        queue.push(delivery);
    }

    fn finish(queue: &mut Schedule, webhook: u128, took: Option<Duration>) {
        finish_of(queue, webhook, DeliveryClass::Fresh, took);
    }

    fn finish_of(
        queue: &mut Schedule,
        webhook: u128,
        class: DeliveryClass,
        took: Option<Duration>,
    ) {
        let finished = Finished::of(&delivery(webhook, 0, 1));
        queue.finish(
            Finished {
                class,
                took,
                ..finished
            },
            Instant::now(),
        );
    }

    /// Has each of the webhooks answer a request quickly.
    fn prove(queue: &mut Schedule, webhooks: RangeInclusive<u128>) {
        answer(queue, webhooks, QUICK);
    }

    /// Has each of the webhooks answer a request after this time.
    fn answer(queue: &mut Schedule, webhooks: RangeInclusive<u128>, took: Duration) {
        for webhook in webhooks {
            push(queue, webhook, 0, 1);
            assert!(queue.pop(true).is_some());
            finish(queue, webhook, Some(took));
        }
    }

    fn pop(queue: &mut Schedule) -> Option<(u128, u128)> {
        queue
            .pop(true)
            .map(|delivery| (delivery.webhook.as_u128(), delivery.id.as_u128()))
    }

    fn pop_all(queue: &mut Schedule) -> Vec<(u128, u128)> {
        std::iter::from_fn(|| pop(queue)).collect()
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
        assert_eq!(
            order,
            [
                (1, 1),
                (2, 10),
                (3, 20),
                (1, 2),
                (2, 11),
                (1, 3),
                (1, 4),
                (1, 5)
            ]
        );

        assert_eq!((queue.in_flight(), queue.queued()), (8, 0));
    }

    #[test]
    fn the_webhook_with_the_fewest_requests_in_flight_is_next() {
        let mut queue = queue(100, 32);
        (1..=2).for_each(|number| push(&mut queue, 1, number, 1));
        assert_eq!(pop_all(&mut queue).len(), 2);
        (3..=5).for_each(|number| push(&mut queue, 1, number, 1));
        (10..=13).for_each(|number| push(&mut queue, 2, number, 1));

        let order: Vec<(u128, u128)> = std::iter::from_fn(|| pop(&mut queue)).take(4).collect();
        assert_eq!(order, [(2, 10), (2, 11), (1, 3), (2, 12)]);
        finish(&mut queue, 2, None);
        assert_eq!(pop_all(&mut queue), [(2, 13), (1, 4), (1, 5)]);
    }

    #[test]
    fn a_webhook_at_its_limit_is_skipped_until_a_request_ends() {
        let mut queue = queue(100, 2);

        for number in 1..=4 {
            push(&mut queue, 1, number, 1);
        }

        push(&mut queue, 2, 10, 1);
        assert_eq!(pop_all(&mut queue), [(1, 1), (2, 10), (1, 2)]);
        finish(&mut queue, 2, None);
        assert_eq!(pop_all(&mut queue), []);
        finish(&mut queue, 1, None);
        assert_eq!(pop_all(&mut queue), [(1, 3)]);
    }

    #[test]
    fn while_some_receivers_hang_a_new_one_finds_a_permit() {
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
            (0..192)
                .for_each(|index| finish(&mut queue, 1_000 + 192 * round + index, Some(HANGING)));
            assert_eq!(pop_all(&mut queue).len(), 192);
            (1..=10).for_each(|webhook| push(&mut queue, webhook, 7, 1));
            assert_eq!(pop_all(&mut queue).len(), 10);
            (1..=10).for_each(|webhook| finish(&mut queue, webhook, Some(QUICK)));
        }

        assert_eq!(queue.in_flight(), 192);
    }

    #[test]
    fn responsive_webhooks_that_hang_get_no_more_permits_than_slow_ones_after_a_second() {
        let mut queue = queue(256, 32);
        prove(&mut queue, 1..=1_000);

        let mut now = Instant::now();
        let start = |queue: &mut Schedule, now: Instant| {
            let started = pop_all(queue);
            for (webhook, _) in &started {
                queue.start_request(Uuid::from_u128(*webhook), DeliveryClass::Fresh, now);
            }

            started.len()
        };

        // A hundred of them hang from now on, and deliveries arrive for a quarter of these every
        // 400 ms.
        let mut hanging = 0;

        for arrival in 0..40 {
            (1..=25).for_each(|webhook| push(&mut queue, arrival % 4 * 25 + webhook, arrival, 1));
            hanging += start(&mut queue, now);
            now += Duration::from_millis(400);
            queue.note_slow(now);
        }

        // The first request of each no longer has a permit.
        let slow = Speed::Slow.share(256);
        assert!(
            (100 + slow - 10..=100 + slow).contains(&hanging),
            "{hanging}"
        );
        (900..=940).for_each(|webhook| push(&mut queue, webhook, 1, 1));
        assert_eq!(start(&mut queue, now), 41, "others still find permits");
    }

    #[test]
    fn a_receiver_that_once_answers_late_does_not_wait_behind_those_that_hang() {
        let mut queue = queue(256, 32);
        prove(&mut queue, 1..=1);

        answer(&mut queue, 1_000..=3_999, HANGING);

        (1_000..4_000).for_each(|webhook| push(&mut queue, webhook, 1, 1));
        assert_eq!(pop_all(&mut queue).len(), Speed::Hanging.share(256));

        for number in 2..10 {
            push(&mut queue, 1, number, 1);
            assert_eq!(pop_all(&mut queue), [(1, number)]);
            finish(&mut queue, 1, Some(LATE));
        }
    }

    #[test]
    fn responsive_webhooks_do_not_starve_new_ones() {
        let mut queue = queue(8, 4);
        prove(&mut queue, 1..=4);

        for number in 1..=10 {
            (1..=4).for_each(|webhook| push(&mut queue, webhook, number, 1));
        }

        push(&mut queue, 9, 1, 1);
        assert!(pop_all(&mut queue).contains(&(9, 1)));
    }

    #[test]
    fn queues_move_when_a_webhook_becomes_responsive_or_slow() {
        let mut queue = queue(8, 8);
        prove(&mut queue, 1..=1);

        for number in 1..=20 {
            push(&mut queue, 1, number, 1);
            push(&mut queue, 2, number, 2);
        }

        let mut seen = pop_all(&mut queue);

        // One becomes responsive and the other slow with every request, and nothing is lost or
        // delivered twice.
        for round in 0..40 {
            let (quick, slow) = if round % 2 == 0 { (2, 1) } else { (1, 2) };
            for (webhook, took) in [(quick, QUICK), (slow, HANGING)] {
                let class = if webhook == 1 {
                    DeliveryClass::Fresh
                } else {
                    DeliveryClass::Retry
                };

                if queue
                    .budget
                    .counters()
                    .in_flight_of(Uuid::from_u128(webhook))
                    > 0
                {
                    finish_of(&mut queue, webhook, class, Some(took));
                }
            }

            seen.extend(pop_all(&mut queue));
        }

        seen.sort_unstable();
        let expected: Vec<(u128, u128)> = (1..=2)
            .flat_map(|webhook| (1..=20).map(move |n| (webhook, n)))
            .collect();
        assert_eq!((seen, queue.queued()), (expected, 0));
    }

    #[test]
    fn webhooks_with_one_delivery_each_use_all_permits_once_they_are_responsive() {
        let mut queue = queue(8, 4);
        prove(&mut queue, 1..=9);
        (1..=9).for_each(|webhook| push(&mut queue, webhook, 0, 1));
        assert_eq!(pop_all(&mut queue).len(), 8);
        finish(&mut queue, 3, Some(QUICK));
        assert_eq!(pop_all(&mut queue), [(9, 0)]);
    }

    #[test]
    fn however_many_receivers_hang_new_ones_and_retries_to_responsive_ones_find_a_permit() {
        let mut queue = queue(64, 32);
        prove(&mut queue, 1..=10);

        answer(&mut queue, 1_000..=1_099, HANGING);

        // A first attempt and a retry of each.
        (1_000..1_100)
            .for_each(|webhook| (1..=2).for_each(|attempt| push(&mut queue, webhook, 1, attempt)));
        assert_eq!(pop_all(&mut queue).len(), Speed::Hanging.share(64));

        assert_eq!(
            queue
                .budget
                .counters()
                .free_permits(64, Speed::Responsive, DeliveryClass::Retry),
            32 - Speed::Hanging.share(32)
        );

        (2_000..2_010).for_each(|webhook| push(&mut queue, webhook, 1, 1));
        assert_eq!(pop_all(&mut queue).len(), 10);
        (1..=10).for_each(|webhook| push(&mut queue, webhook, 1, 2));
        assert_eq!(pop_all(&mut queue).len(), 10);
    }

    #[test]
    fn retries_hold_at_most_half_of_the_permits() {
        let mut queue = queue(8, 8);
        prove(&mut queue, 1..=13);
        (1..=8).for_each(|webhook| push(&mut queue, webhook, 0, 2));
        assert_eq!(pop_all(&mut queue).len(), 4);
        (11..=13).for_each(|webhook| push(&mut queue, webhook, 0, 1));
        assert_eq!(pop_all(&mut queue).len(), 3);
        finish_of(&mut queue, 1, DeliveryClass::Retry, None);
        assert_eq!(pop_all(&mut queue), [(5, 0)]);
    }

    #[test]
    fn fresh_deliveries_and_retries_of_one_webhook_alternate() {
        let mut queue = queue(100, 50);

        for number in 1..=3 {
            push(&mut queue, 1, number, 1);
            push(&mut queue, 1, 10 + number, 2);
        }

        let order: Vec<u128> = pop_all(&mut queue)
            .into_iter()
            .map(|(_, number)| number)
            .collect();
        assert_eq!(order, [1, 11, 2, 12, 3, 13]);
    }

    #[test]
    fn waiting_deliveries_can_be_taken_without_permits() {
        let mut queue = queue(1, 1);
        (1..=3).for_each(|number| push(&mut queue, 1, number, number as u16));
        assert!(queue.pop(true).is_some());
        assert_eq!(
            (queue.drain().len(), queue.queued(), queue.in_flight()),
            (2, 0, 1)
        );
        assert!(queue.pop(true).is_none());
    }
}
