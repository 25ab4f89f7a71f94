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
use self::class_queue::ClassQueue;
use self::congestion::Congestion;
use self::retry_throttle::RetryThrottle;
use self::running::Running;
pub use self::running::RunningRequest;
use crate::domain::delivery::{Delivery, DeliveryClass, Feedback};
use crate::handoff::{DeliveryBudget, Speed};
use crate::store::delivery::{ClaimRequest, Claimed};

/// The dispatcher sleeps at most this long during a claim, whose end wakes it.
const LONGEST_SLEEP: Duration = Duration::from_secs(3);

/// Limits on permits. A permit is the right to have one request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub total: usize,
    pub per_webhook: usize,
    /// Whether a webhook's limit follows its receiver's answers.
    pub adaptive: bool,
}

/// A delivery whose request has ended, or was not made.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub webhook: Uuid,
    pub class: DeliveryClass,
    pub bytes: usize,
    /// The request, if one was started.
    pub request: Option<RunningRequest>,
    /// How long the request took, if one was made.
    pub took: Option<Duration>,
    pub feedback: Feedback,
}

impl Finished {
    /// Returns a delivery without a request.
    pub fn of(delivery: &Delivery) -> Finished {
        Finished {
            webhook: delivery.webhook,
            class: DeliveryClass::of(delivery),
            bytes: delivery.bytes(),
            request: None,
            took: None,
            feedback: Feedback::None,
        }
    }
}

/// The deliveries that this process has queued or in flight, and the schedule of the claims that
/// add more.
#[derive(Debug)]
pub struct Schedule {
    limits: Limits,
    budget: DeliveryBudget,
    congestion: Congestion,
    running: Running,
    /// The deliveries that wait for a permit, by class.
    queues: [ClassQueue; 2],
    /// The class that is served next if both have deliveries.
    next: DeliveryClass,
    throttle: RetryThrottle,
    /// By class.
    claims: [ClaimSchedule; 2],
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
            limits,
            budget,
            congestion: Congestion::new(limits.per_webhook, limits.adaptive, timeout),
            running: Running::default(),
            queues: Default::default(),
            next: DeliveryClass::Fresh,
            throttle: RetryThrottle::new(retries_per_second, now),
            claims: [DeliveryClass::Fresh, DeliveryClass::Retry].map(claims),
            is_claiming: false,
        }
    }

    /// Queues deliveries from the hand-off.
    pub fn add_fresh(&mut self, deliveries: Vec<Delivery>, now: Instant) {
        deliveries
            .into_iter()
            .for_each(|delivery| self.push(delivery));
        self.throttle.note_fresh(now);
    }

    /// Takes the next delivery to start. It has a permit until [`finish`](Self::finish).
    pub fn next(&mut self, now: Instant) -> Option<Delivery> {
        self.note_slow(now);
        let delivery = self.pop(self.throttle.opens_at(now) <= now)?;
        if DeliveryClass::of(&delivery) == DeliveryClass::Retry {
            self.throttle.note_retry(now);
        }

        Some(delivery)
    }

    /// Returns the next claim, if one is due. The caller must pass its result to
    /// [`claimed`](Self::claimed) or [`claim_failed`](Self::claim_failed).
    pub fn next_claim(&mut self, now: Instant) -> Option<ClaimRequest> {
        if self.is_claiming {
            return None;
        }

        self.congestion.forget_idle(now);
        let queued = self.queued();
        let retries = self.queued_retries();
        let mut claims: Vec<&mut ClaimSchedule> = self
            .claims
            .iter_mut()
            .filter(|claims| claims.is_due(now, queued))
            .collect();

        // The one that has been due longest: a backlog of one class must not keep the other from
        // being claimed.
        claims.sort_by_key(|claims| claims.next_at());
        let request = claims
            .into_iter()
            .find_map(|claims| claims.start(now, &self.budget, &self.congestion, retries));
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
        let queued = self.queued();
        self.claims[request.class as usize].succeed(now, request, claimed, queued);

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
            .for_each(|delivery| self.push(delivery));
        refused
    }

    pub fn claim_failed(&mut self, request: &ClaimRequest, now: Instant) {
        self.is_claiming = false;
        self.claims[request.class as usize].fail(now);
    }

    /// When to call [`next`](Self::next) and [`next_claim`](Self::next_claim) again if no delivery
    /// arrives and no request ends before.
    pub fn wake_at(&self, now: Instant) -> Instant {
        let mut wake_at = now + LONGEST_SLEEP;

        if !self.is_claiming {
            let claims = self.claims.iter().map(ClaimSchedule::next_at);
            wake_at = claims.min().unwrap_or(wake_at);
        }

        if let Some(slow_at) = self.running.next_slow_at() {
            wake_at = wake_at.min(slow_at);
        }

        // If no permit is free, the return of one wakes the dispatcher.
        let opens_at = self.throttle.opens_at(now);
        if self.queued_retries() > 0 && opens_at > now {
            wake_at = wake_at.min(opens_at);
        }

        wake_at
    }

    /// Returns how many webhooks get fewer requests at once because their receivers are overloaded.
    pub fn limited(&self) -> usize {
        self.congestion.limited()
    }

    pub fn speed(&self, webhook: Uuid) -> Speed {
        self.budget.counters().speed(webhook)
    }

    pub fn in_flight(&self) -> usize {
        self.budget.counters().in_flight()
    }

    fn queued_retries(&self) -> usize {
        self.queues[DeliveryClass::Retry as usize].queued()
    }
}

#[cfg(test)]
mod tests {
    use super::fair_queue::tests::delivery;
    use super::*;

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
                let finished = Finished {
                    took: Some(Duration::ZERO),
                    feedback: Feedback::Responsive,
                    ..Finished::of(&delivery)
                };
                schedule.finish(finished, now);
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
