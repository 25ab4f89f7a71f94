//! Decides which delivery starts next, and when to claim more: admission, fair queueing, claims and
//! the throttling of retries. No I/O.
//!
//! Fresh deliveries come from the hand-off, which has admitted them to the budget. All others are
//! claimed from the store and admitted here. An admitted delivery waits in its webhook's queue
//! until it gets a permit, and holds budget and permit until it has finished.

mod claims;
mod class_queue;
mod congestion;
mod fair_queue;
mod retry_throttle;
mod running;

use std::time::{Duration, Instant};

use uuid::Uuid;

use self::claims::ClaimSchedule;
pub use self::claims::MAX_ROWS;
use self::fair_queue::FairQueue;
pub use self::fair_queue::{Finished, Limits};
use self::retry_throttle::RetryThrottle;
pub use self::running::Request;
use crate::domain::delivery::Delivery;
use crate::handoff::{DeliveryBudget, Speed};
use crate::store::delivery::{ClaimRequest, Claimed, DeliveryClass};

/// The dispatcher sleeps at most this long during a claim, whose end wakes it.
const LONGEST_SLEEP: Duration = Duration::from_secs(3);

/// The deliveries that this process has queued or in flight, and the schedule of the claims that
/// add more.
#[derive(Debug)]
pub struct Schedule {
    budget: DeliveryBudget,
    queue: FairQueue,
    throttle: RetryThrottle,
    fresh_claims: ClaimSchedule,
    retry_claims: ClaimSchedule,
    /// One claim is made at a time.
    is_claiming: bool,
}

impl Schedule {
    /// `timeout` is how long a request may take.
    pub fn new(
        limits: Limits,
        retries_per_second: u32,
        timeout: Duration,
        budget: DeliveryBudget,
        now: Instant,
    ) -> Schedule {
        let claims = |class| ClaimSchedule::new(class, timeout, limits.per_webhook, now);
        Schedule {
            queue: FairQueue::new(limits, timeout, budget.clone()),
            throttle: RetryThrottle::new(retries_per_second, now),
            fresh_claims: claims(DeliveryClass::Fresh),
            retry_claims: claims(DeliveryClass::Retry),
            is_claiming: false,
            budget,
        }
    }

    /// Queues deliveries from the hand-off.
    pub fn add_fresh(&mut self, deliveries: Vec<Delivery>, now: Instant) {
        deliveries
            .into_iter()
            .for_each(|delivery| self.queue.push(delivery));
        self.throttle.note_fresh(now);
    }

    /// Takes the next delivery to start. It has a permit until [`finish`](Self::finish).
    pub fn next(&mut self, now: Instant) -> Option<Delivery> {
        self.queue.note_slow(now);
        let delivery = self.queue.pop(self.throttle.opens_at(now) <= now)?;
        if DeliveryClass::of(&delivery) == DeliveryClass::Retry {
            self.throttle.note_retry(now);
        }

        Some(delivery)
    }

    /// Notes that the request of a delivery starts. Returns what [`finish`](Self::finish) needs to
    /// identify the request.
    pub fn start_request(&mut self, webhook: Uuid, class: DeliveryClass, now: Instant) -> Request {
        self.queue.start_request(webhook, class, now)
    }

    /// Returns the permit of a delivery, and releases its budget.
    pub fn finish(&mut self, finished: Finished, now: Instant) {
        self.queue.finish(finished, now);
        self.fresh_claims.note_finished(1);
        self.retry_claims.note_finished(1);
    }

    /// Returns the next claim, if one is due. The caller must pass its result to
    /// [`claimed`](Self::claimed) or [`claim_failed`](Self::claim_failed).
    pub fn next_claim(&mut self, now: Instant) -> Option<ClaimRequest> {
        if self.is_claiming {
            return None;
        }

        let queued = self.queue.queued();
        let queued_retries = self.queue.queued_retries();
        let mut claims = [&mut self.fresh_claims, &mut self.retry_claims];

        // The one that has been due longest: a backlog of one class must not keep the other from
        // being claimed.
        claims.sort_by_key(|claims| claims.next_at());
        let congestion = self.queue.congestion();

        congestion.forget_idle(now);
        let mut due = claims
            .into_iter()
            .filter(|claims| claims.is_due(now, queued));
        let request =
            due.find_map(|claims| claims.start(now, &self.budget, congestion, queued_retries));
        self.is_claiming = request.is_some();

        request
    }

    /// Queues the deliveries that a claim has leased. Returns those that the budget does not admit:
    /// the caller releases their leases.
    pub fn claimed(
        &mut self,
        request: &ClaimRequest,
        claimed: &mut Claimed,
        now: Instant,
    ) -> Vec<Delivery> {
        self.is_claiming = false;
        let queued = self.queue.queued();

        self.claims(request.class)
            .succeed(now, request, claimed, queued);
        let is_admitted =
            |delivery: &Delivery| self.budget.reserve(delivery.webhook, delivery.bytes());
        let (admitted, refused): (Vec<_>, Vec<_>) = std::mem::take(&mut claimed.deliveries)
            .into_iter()
            .partition(is_admitted);
        if request.class == DeliveryClass::Fresh && !admitted.is_empty() {
            self.throttle.note_fresh(now);
        }

        admitted
            .into_iter()
            .for_each(|delivery| self.queue.push(delivery));
        refused
    }

    pub fn claim_failed(&mut self, request: &ClaimRequest, now: Instant) {
        self.is_claiming = false;
        self.claims(request.class).fail(now);
    }

    fn claims(&mut self, class: DeliveryClass) -> &mut ClaimSchedule {
        match class {
            DeliveryClass::Fresh => &mut self.fresh_claims,
            DeliveryClass::Retry => &mut self.retry_claims,
        }
    }

    /// When to call [`next`](Self::next) and [`next_claim`](Self::next_claim) again if no delivery
    /// arrives and no request ends before.
    pub fn wake_at(&self, now: Instant) -> Instant {
        let claim_at = if self.is_claiming {
            now + LONGEST_SLEEP
        } else {
            self.fresh_claims.next_at().min(self.retry_claims.next_at())
        };

        let claim_at = self
            .queue
            .next_slow_at()
            .map_or(claim_at, |slow_at| slow_at.min(claim_at));

        // If no permit is free, the return of one wakes the dispatcher.
        let opens_at = self.throttle.opens_at(now);
        if self.queue.queued_retries() > 0 && opens_at > now {
            claim_at.min(opens_at)
        } else {
            claim_at
        }
    }

    /// Returns how many webhooks get fewer requests at once because their receivers are overloaded.
    pub fn limited(&mut self) -> usize {
        self.queue.congestion().limited()
    }

    pub fn speed(&self, webhook: Uuid) -> Speed {
        self.budget.counters().speed(webhook)
    }

    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    pub fn queued(&self) -> usize {
        self.queue.queued()
    }

    /// Removes and returns all queued deliveries. They get no permits.
    pub fn drain(&mut self) -> Vec<Delivery> {
        self.queue.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::fair_queue::tests::delivery;
    use super::*;
    use crate::domain::delivery::Feedback;

    #[test]
    fn retries_are_claimed_while_there_is_a_backlog_of_first_attempts() {
        let mut now = Instant::now();
        let limits = Limits {
            total: 4_096,
            per_webhook: 4_096,
            adaptive: true,
        };

        let mut schedule = Schedule::new(
            limits,
            1_000,
            Duration::from_secs(10),
            DeliveryBudget::default(),
            now,
        );

        let mut retry_claims = 0;

        for _ in 0..50 {
            let request = schedule.next_claim(now).expect("the backlog is due");
            let is_retry = request.class == DeliveryClass::Retry;
            let count = if is_retry { 0 } else { request.max_rows };
            let mut claimed = Claimed {
                deliveries: vec![delivery(1, 0, 1); count],
                ..Claimed::default()
            };

            schedule.claimed(&request, &mut claimed, now);

            // Receivers answer at once, so that no first attempt is queued when the next claim is
            // made.
            while let Some(delivery) = schedule.next(now) {
                let webhook = delivery.webhook;
                let class = DeliveryClass::of(&delivery);
                let bytes = delivery.bytes();
                let took = Some(Duration::ZERO);
                let feedback = Feedback::Responsive;

                schedule.finish(
                    Finished {
                        webhook,
                        class,
                        bytes,
                        request: None,
                        took,
                        feedback,
                    },
                    now,
                );
            }

            retry_claims += usize::from(is_retry);
            now += Duration::from_millis(20);
        }

        assert!(
            (2..10).contains(&retry_claims),
            "{retry_claims} in a second"
        );
    }
}
