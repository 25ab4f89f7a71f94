//! Decides when to claim due deliveries from the store, and how many. No I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::congestion::Congestion;
use crate::domain::delivery::{Delivery, DeliveryClass};
use crate::handoff::{CAPACITY, ClaimLimits, DeliveryBudget};
use crate::store::delivery::{ClaimRequest, Claimed};

/// The pause between two claims if the last one took everything that was due.
const IDLE: Duration = Duration::from_millis(200);
/// The same pause for first attempts while deliveries are queued. It is shorter because deliveries
/// may be due that were not handed off: their webhooks had used up their budget, some of which may
/// be free by now.
const BUSY: Duration = Duration::from_millis(50);
/// The pause after a claim that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// How long to rest, in multiples of the time that a claim spent on webhooks of which it found no
/// delivery. Thousands of webhooks may have deliveries that are not due, and visiting them without
/// a pause would keep the store busy.
const REST: f64 = 19.0;
/// The longest rest. A claim can also take long because the store is slow or far away.
const LONGEST_REST: Duration = IDLE;
/// If more deliveries are known to be due, the next claim follows when this many have finished.
const STEP: usize = 256;
/// The most rows of one claim.
pub const MAX_ROWS: usize = 1_024;
/// The most webhooks that one claim visits, which takes about a millisecond if none has due
/// deliveries. A longer statement would delay others that need the same processor.
const MAX_WEBHOOKS: usize = 256;
/// How many deliveries of one webhook to hold, in multiples of its concurrency limit: enough until
/// the next claim. More of them would wait in the queue until their leases end.
const AHEAD: usize = 16;
/// The assumed size of a delivery in bytes before one was claimed.
const INITIAL_SIZE: usize = 1 << 10;
/// The most retries to hold.
const MAX_RETRIES: usize = CAPACITY / 4;

/// The claims of one class of deliveries. Each claim visits some webhooks in order of id, starting
/// where the previous one ended. The claim after the one that visits the last webhook begins a new
/// cycle.
#[derive(Debug)]
pub struct ClaimSchedule {
    class: DeliveryClass,
    timeout: Duration,
    per_webhook_concurrency: usize,
    start_after: Uuid,
    next_at: Instant,
    /// When the current claim was started.
    started_at: Instant,
    /// No claim is due before.
    rests_until: Instant,
    /// Whether to claim again as soon as there is budget: the cycle is not complete, or some due
    /// deliveries were not claimed.
    has_more: bool,
    /// Whether some due deliveries were not claimed since the cycle began.
    has_skipped: bool,
    finished_since: usize,
    /// Average size of the deliveries of the last claim. A claim is for no more deliveries than are
    /// likely to fit.
    average_bytes: usize,
}

impl ClaimSchedule {
    pub fn new(
        class: DeliveryClass,
        timeout: Duration,
        per_webhook_concurrency: usize,
        now: Instant,
    ) -> ClaimSchedule {
        ClaimSchedule {
            class,
            timeout,
            per_webhook_concurrency,
            start_after: Uuid::nil(),
            next_at: now,
            started_at: now,
            rests_until: now,
            has_more: false,
            has_skipped: false,
            finished_since: 0,
            average_bytes: INITIAL_SIZE,
        }
    }

    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Notes that deliveries have finished, which makes budget free.
    pub fn note_finished(&mut self, count: usize) {
        self.finished_since += count;
    }

    pub fn is_due(&self, now: Instant, queued: usize) -> bool {
        let has_more = self.has_more && (self.finished_since >= STEP || queued == 0);
        now >= self.rests_until && (now >= self.next_at || has_more)
    }

    /// Returns the next claim. `None` if there is no budget for another delivery.
    pub fn start(
        &mut self,
        now: Instant,
        budget: &DeliveryBudget,
        congestion: &Congestion,
        queued_retries: usize,
    ) -> Option<ClaimRequest> {
        let counters = budget.counters();
        let free = counters.free();
        let max_bytes = counters.free_bytes();
        let max_rows = match self.class {
            DeliveryClass::Fresh => free - free / 4,
            DeliveryClass::Retry => free
                .div_ceil(4)
                .min(MAX_RETRIES.saturating_sub(queued_retries)),
        };

        self.started_at = now;
        self.next_at = now + IDLE;
        self.finished_since = 0;

        if max_rows == 0 || max_bytes == 0 {
            return None;
        }

        let fitting = max_bytes / self.average_bytes.max(1);
        let ahead = self.per_webhook_concurrency.saturating_mul(AHEAD);
        let lower: HashMap<Uuid, usize> = congestion.claim_limits(AHEAD).collect();
        let ClaimLimits {
            of_others,
            listed,
            end_with,
        } = counters.claim_limits(ahead, &lower, self.start_after);

        Some(ClaimRequest {
            class: self.class,
            timeout: self.timeout,
            start_after: self.start_after,
            end_with,
            max_webhooks: MAX_WEBHOOKS,
            max_rows: max_rows.min(MAX_ROWS).min(fitting.max(1)),
            max_bytes,
            per_webhook: of_others,
            limits: listed,
        })
    }

    /// Notes the result of a claim, and schedules the next one.
    pub fn succeed(
        &mut self,
        now: Instant,
        request: &ClaimRequest,
        claimed: &Claimed,
        queued: usize,
    ) {
        let mut by_webhook: HashMap<Uuid, usize> = HashMap::new();

        for delivery in &claimed.deliveries {
            *by_webhook.entry(delivery.webhook).or_default() += 1;
        }

        let limits: HashMap<Uuid, usize> = request.limits.iter().copied().collect();
        let is_full = |(webhook, count): (&Uuid, &usize)| {
            *count >= *limits.get(webhook).unwrap_or(&request.per_webhook)
        };

        let found = claimed.deliveries.len() + claimed.orphans.len() + claimed.refused.len();
        let all_taken = found >= request.max_rows;

        self.has_skipped |=
            all_taken || !claimed.refused.is_empty() || by_webhook.iter().any(is_full);
        let bytes = claimed
            .deliveries
            .iter()
            .map(Delivery::bytes)
            .sum::<usize>();

        self.average_bytes = bytes
            .checked_div(claimed.deliveries.len())
            .unwrap_or(self.average_bytes);

        // A full claim may have ended anywhere: the next one starts after the last webhook that it
        // has deliveries of.
        let ended_at = claimed
            .deliveries
            .iter()
            .map(|delivery| delivery.webhook)
            .max()
            .filter(|_| all_taken);

        let visited = claimed.last_visited.or(request.end_with);
        self.start_after = ended_at.or(visited).unwrap_or(Uuid::nil());
        self.has_more = self.has_skipped || !self.start_after.is_nil();

        if self.start_after.is_nil() {
            self.has_skipped = false;
        }

        let in_vain = claimed.visited.saturating_sub(found) as f64 / claimed.visited.max(1) as f64;
        let rest = now
            .saturating_duration_since(self.started_at)
            .mul_f64(in_vain * REST);

        self.rests_until = now + rest.min(LONGEST_REST);
        let next_at = match visited {
            Some(_) => now,
            None if queued > 0 && self.class == DeliveryClass::Fresh => now + BUSY,
            None => now + IDLE,
        };

        self.next_at = next_at.max(self.rests_until);
    }

    pub fn fail(&mut self, now: Instant) {
        self.has_more = false;
        self.next_at = now + AFTER_ERROR;
    }
}

#[cfg(test)]
mod tests {
    use super::super::fair_queue::tests::delivery;
    use super::*;
    use crate::domain::delivery::Feedback;
    use crate::handoff::CAPACITY_BYTES;

    fn fresh(now: Instant) -> ClaimSchedule {
        ClaimSchedule::new(DeliveryClass::Fresh, Duration::from_secs(10), 4, now)
    }

    fn congestion() -> Congestion {
        Congestion::new(4, true, Duration::from_secs(10))
    }

    fn claimed(webhook: u128, count: usize) -> Claimed {
        Claimed {
            deliveries: vec![delivery(webhook, 0, 1); count],
            ..Claimed::default()
        }
    }

    /// Claims with the whole budget free, and finds this.
    fn claim(schedule: &mut ClaimSchedule, now: Instant, found: &Claimed) -> ClaimRequest {
        let request = schedule
            .start(now, &DeliveryBudget::default(), &congestion(), 0)
            .unwrap();
        schedule.succeed(now, &request, found, 0);
        request
    }

    #[test]
    fn after_a_claim_that_took_everything_there_is_a_pause() {
        let now = Instant::now();
        let mut schedule = fresh(now);

        assert!(schedule.is_due(now, 0));
        claim(&mut schedule, now, &claimed(1, 3));
        assert!(!schedule.is_due(now, 0));
        assert!(schedule.is_due(now + IDLE, 0));
    }

    /// As when many webhooks have retries that are not due yet: cycles without a pause would use up
    /// a processor.
    #[test]
    fn after_a_cycle_of_several_claims_that_took_everything_there_is_a_pause() {
        let now = Instant::now();
        let mut schedule = ClaimSchedule {
            class: DeliveryClass::Retry,
            ..fresh(now)
        };

        for last_visited in [Some(Uuid::from_u128(77)), None] {
            assert!(schedule.is_due(now, 0), "the cycle is not complete");
            claim(
                &mut schedule,
                now,
                &Claimed {
                    last_visited,
                    ..claimed(1, 1)
                },
            );
        }

        schedule.note_finished(10 * STEP);
        assert!(!schedule.is_due(now, 0));
        assert!(schedule.is_due(now + IDLE, 0));
    }

    /// As when thousands of webhooks have deliveries that are in flight or wait for a retry.
    #[test]
    fn after_a_claim_that_found_little_there_is_a_rest_in_proportion_to_the_time_that_it_took() {
        let now = Instant::now();
        let took = Duration::from_millis(5);

        for (found, rest) in [(0, 95), (500, 47), (1_000, 0), (2_000, 0)] {
            let mut schedule = fresh(now);
            let request = schedule
                .start(now, &DeliveryBudget::default(), &congestion(), 0)
                .unwrap();
            let last_visited = Some(Uuid::from_u128(77));

            schedule.succeed(
                now + took,
                &request,
                &Claimed {
                    visited: 1_000,
                    last_visited,
                    ..claimed(1, found)
                },
                0,
            );

            let rested = now + took + Duration::from_millis(rest + 1);
            assert!(
                rest == 0 || !schedule.is_due(now + took + Duration::from_millis(rest - 1), 0),
                "{found}"
            );
            assert!(
                schedule.is_due(rested, 0) && schedule.next_at() <= rested,
                "{found}"
            );
        }
    }

    #[test]
    fn a_rest_after_a_slow_claim_is_as_short_as_the_pause_of_an_idle_replica() {
        let now = Instant::now();
        let took = Duration::from_secs(5);
        let mut schedule = fresh(now);
        let request = schedule
            .start(now, &DeliveryBudget::default(), &congestion(), 0)
            .unwrap();

        schedule.succeed(
            now + took,
            &request,
            &Claimed {
                visited: 1,
                ..Claimed::default()
            },
            0,
        );

        assert!(schedule.is_due(now + took + IDLE, 0));
    }

    #[test]
    fn a_cycle_that_skipped_deliveries_is_followed_by_another() {
        let now = Instant::now();
        let mut schedule = fresh(now);

        for (last_visited, count) in [(Some(Uuid::from_u128(77)), 4 * AHEAD), (None, 1)] {
            claim(
                &mut schedule,
                now,
                &Claimed {
                    last_visited,
                    ..claimed(1, count)
                },
            );
        }

        assert!(schedule.is_due(now, 0));
        claim(&mut schedule, now, &Claimed::default());
        assert!(!schedule.is_due(now, 0));
    }

    #[test]
    fn a_claim_that_skipped_deliveries_is_repeated_as_soon_as_others_have_finished() {
        let now = Instant::now();
        let mut schedule = fresh(now);
        let request = schedule
            .start(now, &DeliveryBudget::default(), &congestion(), 0)
            .unwrap();

        assert_eq!(request.per_webhook, 4 * AHEAD);
        schedule.succeed(now, &request, &claimed(1, 4 * AHEAD), 60);
        assert!(!schedule.is_due(now, 60));
        assert!(schedule.is_due(now, 0));
        schedule.note_finished(STEP);
        assert!(schedule.is_due(now, 60));
    }

    #[test]
    fn nothing_is_claimed_for_a_webhook_with_enough_deliveries_here() {
        let now = Instant::now();
        let budget = DeliveryBudget::default();
        let webhook = Uuid::from_u128(1);

        assert!((0..4 * AHEAD).all(|_| budget.reserve(webhook, 1)));

        assert_eq!(
            fresh(now)
                .start(now, &budget, &congestion(), 0)
                .unwrap()
                .limits,
            [(webhook, 0)]
        );
    }

    #[test]
    fn less_is_claimed_for_a_webhook_whose_receiver_is_overloaded() {
        let now = Instant::now();
        let budget = DeliveryBudget::default();
        let mut congestion = congestion();
        let webhook = Uuid::from_u128(1);
        let took = Duration::from_secs(3);

        congestion.note(webhook, now, took, Feedback::Overloaded, now + took);
        let request = fresh(now).start(now, &budget, &congestion, 0).unwrap();

        assert_eq!(
            (request.per_webhook, request.limits),
            (4 * AHEAD, vec![(webhook, 2 * 2)])
        );
        assert!(budget.reserve(webhook, 1));

        let request = fresh(now).start(now, &budget, &congestion, 0).unwrap();
        assert_eq!(request.limits, [(webhook, 3)], "one is here already");
    }

    #[test]
    fn while_new_webhooks_use_up_their_share_all_responsive_ones_are_claimed_for_in_turn() {
        let now = Instant::now();
        let budget = DeliveryBudget::default();
        let congestion = congestion();

        const RESPONSIVE: u128 = 5_000;

        for webhook in (1..=RESPONSIVE).rev().map(Uuid::from_u128) {
            assert!(budget.reserve(webhook, 1));
            let mut counters = budget.counters();
            counters.start(webhook, DeliveryClass::Fresh);
            counters.finish(
                webhook,
                DeliveryClass::Fresh,
                1,
                Some(Duration::ZERO),
                false,
            );
        }

        for webhook in 10_000..20_000 {
            budget.reserve(Uuid::from_u128(webhook), 1);
        }

        let mut schedule = fresh(now);
        let mut listed = std::collections::BTreeSet::new();

        for _ in 0..10 {
            let request = schedule.start(now, &budget, &congestion, 0).unwrap();
            assert!(request.per_webhook == 0 && request.limits.len() <= 1_024);

            assert!(
                request
                    .limits
                    .iter()
                    .all(|(id, _)| *id > request.start_after
                        && request.end_with.is_none_or(|end| *id <= end))
            );

            listed.extend(request.limits.iter().map(|(id, _)| id.as_u128()));

            // The statement visits all webhooks that have deliveries: here they are few.
            schedule.succeed(now, &request, &Claimed::default(), 0);
        }

        assert_eq!(listed.len(), RESPONSIVE as usize);
    }

    #[test]
    fn a_cycle_continues_where_the_last_claim_ended_and_starts_again_at_its_end() {
        let now = Instant::now();
        let mut schedule = fresh(now);
        let last = Uuid::from_u128(77);

        claim(
            &mut schedule,
            now,
            &Claimed {
                last_visited: Some(last),
                ..claimed(1, 1)
            },
        );

        assert!(schedule.is_due(now, 1));
        let request = schedule
            .start(now, &DeliveryBudget::default(), &congestion(), 0)
            .unwrap();

        assert_eq!(request.start_after, last);
        schedule.succeed(now, &request, &claimed(99, request.max_rows), 0);
        assert_eq!(
            claim(&mut schedule, now, &Claimed::default()).start_after,
            Uuid::from_u128(99)
        );
        assert_eq!(
            claim(&mut schedule, now, &Claimed::default()).start_after,
            Uuid::nil()
        );
    }

    #[test]
    fn a_claim_is_for_as_many_deliveries_as_fit_and_at_least_one() {
        let now = Instant::now();
        let budget = DeliveryBudget::default();
        let mut schedule = fresh(now);
        let mut large = claimed(1, 3);

        large
            .deliveries
            .iter_mut()
            .for_each(|delivery| delivery.data = "x".repeat(256 << 10).into());
        assert_eq!(claim(&mut schedule, now, &large).max_rows, MAX_ROWS);

        let request = schedule.start(now, &budget, &congestion(), 0).unwrap();
        assert_eq!((request.max_rows, request.max_bytes), (256, CAPACITY_BYTES));
        assert!(budget.reserve(Uuid::from_u128(1), CAPACITY_BYTES - 1));

        let request = schedule.start(now, &budget, &congestion(), 0).unwrap();
        assert_eq!((request.max_rows, request.max_bytes), (1, 1));
        budget.release(Uuid::from_u128(1), CAPACITY_BYTES - 1);
        assert!(budget.reserve(Uuid::from_u128(1), CAPACITY_BYTES));
        assert!(schedule.start(now, &budget, &congestion(), 0).is_none());
    }

    #[test]
    fn retries_are_bounded_and_without_free_budget_nothing_is_claimed() {
        let now = Instant::now();
        let retries = || ClaimSchedule {
            class: DeliveryClass::Retry,
            ..fresh(now)
        };

        assert!(
            retries()
                .start(now, &DeliveryBudget::default(), &congestion(), MAX_RETRIES)
                .is_none()
        );

        assert!(
            retries()
                .start(
                    now,
                    &DeliveryBudget::default(),
                    &congestion(),
                    MAX_RETRIES - 1
                )
                .is_some()
        );

        let budget = DeliveryBudget::default();
        let webhooks = || (0..CAPACITY as u128).map(Uuid::from_u128);
        for webhook in webhooks() {
            assert!(budget.reserve(webhook, 1));
            let mut counters = budget.counters();
            counters.start(webhook, DeliveryClass::Fresh);
            counters.finish(
                webhook,
                DeliveryClass::Fresh,
                1,
                Some(Duration::ZERO),
                false,
            );
        }

        assert!(webhooks().all(|webhook| budget.reserve(webhook, 1)));
        assert!(fresh(now).start(now, &budget, &congestion(), 0).is_none());
    }
}
