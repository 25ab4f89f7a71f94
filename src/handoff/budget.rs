//! Admission: how many deliveries this process holds, in queues and in flight, counted per webhook
//! and bounded. The only counters per webhook, shared by the hand-off and the dispatcher.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use super::load::{Load, Speed};
use crate::domain::delivery::DeliveryClass;

/// Deliveries that one process holds in memory at most.
pub const CAPACITY: usize = 8_192;
/// Deliveries to one webhook that one process holds at most, so that a slow receiver cannot use up
/// the budget.
pub const PER_WEBHOOK: usize = 2_048;
/// Bytes of event data that one process holds in memory at most.
pub const CAPACITY_BYTES: usize = 64 << 20;
/// A webhook may hold this fraction of the free budget (a dynamic threshold): webhooks with slow
/// receivers get less the more of them there are, and some always remains for the others.
const SHARE_OF_FREE: usize = 4;
/// Responsive webhooks, and slow ones, that are remembered while nothing is held for them. Those
/// forgotten count as unknown until their next answer.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");
/// Requests that may be in flight without a permit, in multiples of the permits. By default this
/// suffices for a sixth of 10,000 new receivers that all get their first request at once and hang.
/// Each takes a socket, and about 50 KB of memory.
pub const DETACHED: usize = 8;
/// Webhooks with limits of their own in one claim. It visits no webhook after the last of them: the
/// next one does.
const MAX_CLAIM_LIMITS: usize = 1_024;

#[derive(Clone, Copy, Debug, Default)]
struct WebhookLoad {
    load: Load,
    speed: Speed,
}

/// What this process holds, in total and per webhook.
#[derive(Debug)]
pub struct HandoffCounters {
    /// By speed of the webhooks.
    held: [Load; Speed::ALL.len()],
    /// Webhooks for which something is held or whose speed is remembered, in the order in which
    /// claims visit them.
    webhooks: BTreeMap<Uuid, WebhookLoad>,
    responsive: LruCache<Uuid, ()>,
    slow: LruCache<Uuid, ()>,
}

impl Default for HandoffCounters {
    fn default() -> Self {
        HandoffCounters {
            held: Default::default(),
            webhooks: BTreeMap::new(),
            responsive: LruCache::new(REMEMBERED),
            slow: LruCache::new(REMEMBERED),
        }
    }
}

impl HandoffCounters {
    fn webhook(&self, webhook: Uuid) -> WebhookLoad {
        self.webhooks.get(&webhook).copied().unwrap_or_default()
    }

    fn total(&self, of: fn(&Load) -> usize) -> usize {
        self.held.iter().map(of).sum()
    }

    /// Returns how much of a budget of `total` is free for webhooks of this speed. `of` is what a
    /// load uses of it.
    fn free_of(&self, speed: Speed, total: usize, of: fn(&Load) -> usize) -> usize {
        let limiting = Speed::ALL.iter().take(speed as usize + 1);
        let free = limiting.map(|limiting| {
            let used: usize = self.held[*limiting as usize..].iter().map(of).sum();
            limiting.share(total).saturating_sub(used)
        });

        free.min().unwrap_or_default()
    }

    /// How many more deliveries may be held for a webhook. At least one while any budget is free
    /// for it.
    fn free_for(&self, webhook: WebhookLoad) -> usize {
        let free = self.free_of(webhook.speed, CAPACITY, |load| load.deliveries);
        let limit = PER_WEBHOOK.min(free.div_ceil(SHARE_OF_FREE));
        limit.saturating_sub(webhook.load.deliveries)
    }

    /// Whether `bytes` more may be held for a webhook. A delivery that is larger than its webhook's
    /// share is held alone.
    fn has_bytes(&self, webhook: WebhookLoad, bytes: usize) -> bool {
        let free = self.free_of(webhook.speed, CAPACITY_BYTES, |load| load.bytes);
        let fits = webhook.load.bytes.saturating_add(bytes) <= free.div_ceil(SHARE_OF_FREE);
        let is_alone = webhook.load.deliveries == 0 && bytes <= free;
        fits || is_alone || self.total(|load| load.deliveries) == 0
    }

    /// Returns how many more deliveries may be held in total.
    pub fn free(&self) -> usize {
        CAPACITY.saturating_sub(self.total(|load| load.deliveries))
    }

    /// Returns how many more bytes may be held in total.
    pub fn free_bytes(&self) -> usize {
        CAPACITY_BYTES.saturating_sub(self.total(|load| load.bytes))
    }

    fn reserve(&mut self, id: Uuid, bytes: usize) -> bool {
        let webhook = self.webhook(id);
        if self.free_for(webhook) == 0 || !self.has_bytes(webhook, bytes) {
            return false;
        }

        self.webhooks.entry(id).or_insert(webhook);

        self.change(id, |load| {
            load.add(Load {
                deliveries: 1,
                bytes,
                ..Load::default()
            })
        });

        true
    }

    fn release(&mut self, webhook: Uuid, bytes: usize) {
        self.change(webhook, |load| {
            load.remove(Load {
                deliveries: 1,
                bytes,
                ..Load::default()
            })
        });
    }

    /// Changes the load of a webhook and the totals.
    fn change(&mut self, id: Uuid, change: impl Fn(&mut Load)) {
        let Some(webhook) = self.webhooks.get_mut(&id) else {
            return;
        };

        change(&mut webhook.load);
        change(&mut self.held[webhook.speed as usize]);

        if webhook.load == Load::default() {
            self.forget_unless_remembered(id);
        }
    }

    /// Forgets a webhook for which nothing is held.
    fn forget_unless_remembered(&mut self, id: Uuid) {
        if !self.responsive.contains(&id) && !self.slow.contains(&id) {
            self.webhooks.remove(&id);
        }
    }

    /// Counts a held delivery as in flight.
    pub fn start(&mut self, webhook: Uuid, class: DeliveryClass) {
        self.change(webhook, |load| load.add(Load::request(class, false)));
    }

    /// Releases a delivery that was in flight. `took` is how long its request took, if one was
    /// made.
    pub fn finish(
        &mut self,
        webhook: Uuid,
        class: DeliveryClass,
        bytes: usize,
        took: Option<Duration>,
        is_detached: bool,
    ) {
        if let Some(took) = took {
            self.set_speed(webhook, Speed::of(took));
        }

        self.change(webhook, |load| {
            load.remove(Load {
                deliveries: 1,
                bytes,
                ..Load::request(class, is_detached)
            })
        });
    }

    /// Notes that the webhook of a request in flight is slow. Lets the request go on without a
    /// permit, of `permits` that there are: otherwise receivers that stop answering at the same
    /// time, and new ones that never answer, would hold all permits until the timeout. A webhook
    /// has one such request at a time, and one that is known to be slow has none. Returns whether
    /// the request goes on without a permit from now on.
    pub fn note_slow(&mut self, webhook: Uuid, class: DeliveryClass, permits: usize) -> bool {
        let WebhookLoad { load, speed } = self.webhook(webhook);
        let limit = speed.share(permits * DETACHED);
        let detaches =
            speed < Speed::Slow && load.detached == 0 && self.total(|load| load.detached) < limit;

        if detaches {
            self.change(webhook, |load| {
                load.remove(Load::request(class, false));
                load.add(Load::request(class, true));
            });
        }

        self.set_speed(webhook, speed.max(Speed::Slow));
        detaches
    }

    fn set_speed(&mut self, id: Uuid, to: Speed) {
        let (remembering, forgetting) = match to {
            Speed::Responsive => (&mut self.responsive, &mut self.slow),
            Speed::Unknown | Speed::Slow | Speed::Hanging => (&mut self.slow, &mut self.responsive),
        };

        let forgotten = remembering.push(id, ()).filter(|(other, ())| *other != id);
        forgetting.pop(&id);

        if let Some((forgotten, ())) =
            forgotten.filter(|(other, ())| self.webhook(*other).load == Load::default())
        {
            self.forget_unless_remembered(forgotten);
        }

        if let Some(webhook) = self.webhooks.get_mut(&id) {
            let from = std::mem::replace(&mut webhook.speed, to);
            self.held[from as usize].remove(webhook.load);
            self.held[to as usize].add(webhook.load);
        }
    }

    pub fn speed(&self, webhook: Uuid) -> Speed {
        self.webhook(webhook).speed
    }

    pub fn in_flight_of(&self, webhook: Uuid) -> usize {
        self.webhook(webhook).load.in_flight
    }

    pub fn in_flight(&self) -> usize {
        self.total(|load| load.in_flight)
    }

    /// Returns how many of `total` permits are free for webhooks of this speed. Retries have at
    /// most half of them: while receivers fail, first attempts still go out.
    pub fn free_permits(&self, total: usize, speed: Speed, class: DeliveryClass) -> usize {
        let free = self.free_of(speed, total, Load::permits);

        match class {
            DeliveryClass::Fresh => free,
            DeliveryClass::Retry => {
                free.min(self.free_of(speed, (total / 2).max(1), |load| load.retries))
            }
        }
    }

    /// Returns how many deliveries of each webhook a claim may take that visits webhooks after
    /// `start_after`, if none is to hold more than `ahead`, or than its number in `lower`.
    pub fn claim_limits(
        &self,
        ahead: usize,
        lower: &HashMap<Uuid, usize>,
        start_after: Uuid,
    ) -> ClaimLimits {
        let limit = |id: Uuid, webhook: WebhookLoad| {
            let ahead = lower.get(&id).map_or(ahead, |lower| ahead.min(*lower));
            (
                id,
                ahead
                    .saturating_sub(webhook.load.deliveries)
                    .min(self.free_for(webhook)),
            )
        };

        let of_others = ahead.min(self.free_for(WebhookLoad::default()));
        let is_listed = |(_, limit): &(Uuid, usize)| {
            if of_others == 0 {
                *limit > 0
            } else {
                *limit < of_others
            }
        };

        let known = self
            .webhooks
            .range((Bound::Excluded(start_after), Bound::Unbounded));
        let known = known
            .map(|(id, webhook)| limit(*id, *webhook))
            .filter(is_listed)
            .take(MAX_CLAIM_LIMITS + 1);
        let others = lower
            .keys()
            .filter(|id| **id > start_after && !self.webhooks.contains_key(id));
        let others = others
            .map(|id| limit(*id, WebhookLoad::default()))
            .filter(is_listed);
        let mut listed: Vec<(Uuid, usize)> = known.chain(others).collect();

        listed.sort_unstable();
        let is_complete = listed.len() <= MAX_CLAIM_LIMITS;

        listed.truncate(MAX_CLAIM_LIMITS);
        let end_with = listed.last().filter(|_| !is_complete).map(|(id, _)| *id);
        ClaimLimits {
            of_others,
            listed,
            end_with,
        }
    }
}

/// How many deliveries of each webhook a claim may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Of each webhook that is not listed.
    pub of_others: usize,
    pub listed: Vec<(Uuid, usize)>,
    /// The last webhook that the claim may visit, if there are limits for others after it.
    pub end_with: Option<Uuid>,
}

/// The counters, shared between the hand-off and the dispatcher.
#[derive(Clone, Debug, Default)]
pub struct DeliveryBudget(Arc<Mutex<HandoffCounters>>);

impl DeliveryBudget {
    pub fn counters(&self) -> MutexGuard<'_, HandoffCounters> {
        self.0.lock()
    }

    /// Reserves budget for one delivery to `webhook` with `bytes` of data. False if there is none.
    pub fn reserve(&self, webhook: Uuid, bytes: usize) -> bool {
        self.counters().reserve(webhook, bytes)
    }

    /// Releases the budget of a delivery that was not started.
    pub fn release(&self, webhook: Uuid, bytes: usize) {
        self.counters().release(webhook, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Option<Duration> = Some(Duration::from_millis(5));
    const LATE: Option<Duration> = Some(Duration::from_millis(600));
    const HANGING: Option<Duration> = Some(Duration::from_secs(10));

    fn id(number: usize) -> Uuid {
        Uuid::from_u128(number as u128)
    }

    /// Delivers once to each of the webhooks, with requests that take this long.
    fn deliver(budget: &DeliveryBudget, webhooks: std::ops::Range<usize>, took: Option<Duration>) {
        for webhook in webhooks.map(id) {
            assert!(budget.reserve(webhook, 1));
            let mut counters = budget.counters();
            counters.start(webhook, DeliveryClass::Fresh);
            counters.finish(webhook, DeliveryClass::Fresh, 1, took, false);
        }
    }

    /// Reserves deliveries of so many bytes for these webhooks in turn until none is admitted.
    /// Returns how many were.
    fn fill(budget: &DeliveryBudget, webhooks: std::ops::Range<usize>, bytes: usize) -> usize {
        let mut reserved = 0;

        loop {
            let before = reserved;
            reserved += webhooks
                .clone()
                .filter(|webhook| budget.reserve(id(*webhook), bytes))
                .count();

            if reserved == before {
                return reserved;
            }
        }
    }

    fn free_for(budget: &DeliveryBudget, webhook: Uuid) -> usize {
        let counters = budget.counters();
        counters.free_for(counters.webhook(webhook))
    }

    #[test]
    fn one_webhook_cannot_use_up_the_budget() {
        let budget = DeliveryBudget::default();
        let slow = id(1);
        let other = id(2);
        let reserved = fill(&budget, 1..2, 1);

        assert!((1_000..=PER_WEBHOOK).contains(&reserved), "{reserved}");
        assert_eq!(free_for(&budget, slow), 0);
        assert!(budget.reserve(other, 1));
        budget.release(other, 1);
        budget.release(slow, 1);
        assert!(free_for(&budget, slow) > 0);
        assert!(budget.reserve(slow, 1));
    }

    #[test]
    fn large_deliveries_are_bounded_by_their_bytes() {
        const LARGE: usize = 64 << 10;
        let budget = DeliveryBudget::default();

        deliver(&budget, 1..2_000, QUICK);
        let one = fill(&budget, 1..2, LARGE);

        assert!(one * LARGE <= CAPACITY_BYTES / SHARE_OF_FREE, "{one}");
        let all = fill(&budget, 2..2_000, LARGE);

        assert_eq!((one + all) * LARGE, CAPACITY_BYTES);
        assert_eq!(budget.counters().free_bytes(), 0);
        assert!(!budget.reserve(id(77_777), 1));
        (0..one).for_each(|_| budget.release(id(1), LARGE));
        assert_eq!(budget.counters().free_bytes(), one * LARGE);

        // A delivery that is larger than the whole budget is admitted when nothing else is held.
        let budget = DeliveryBudget::default();
        assert!(budget.reserve(id(1), 2 * CAPACITY_BYTES));
        assert!(!budget.reserve(id(2), 1));
        budget.release(id(1), 2 * CAPACITY_BYTES);

        let counters = budget.counters();
        assert_eq!(
            (counters.free_bytes(), counters.free()),
            (CAPACITY_BYTES, CAPACITY)
        );
    }

    #[test]
    fn a_hundred_webhooks_leave_budget_for_another() {
        let budget = DeliveryBudget::default();
        fill(&budget, 0..100, 1);
        assert!(
            free_for(&budget, id(1_000)) >= 10,
            "{}",
            budget.counters().free()
        );
    }

    #[test]
    fn webhooks_of_each_speed_leave_budget_to_faster_ones() {
        let budget = DeliveryBudget::default();
        deliver(&budget, 0..5_000, QUICK);
        deliver(&budget, 30_000..34_000, LATE);
        deliver(&budget, 40_000..44_000, HANGING);

        let hanging = fill(&budget, 40_000..44_000, 1);
        let slow = hanging + fill(&budget, 30_000..34_000, 1);
        let new = slow + fill(&budget, 10_000..30_000, 1);

        assert_eq!(
            [hanging, slow, new],
            [Speed::Hanging, Speed::Slow, Speed::Unknown].map(|speed| speed.share(CAPACITY))
        );
        assert_eq!(fill(&budget, 0..5_000, 1), CAPACITY - new);
        assert_eq!(budget.counters().free(), 0);
    }

    #[test]
    fn the_last_answer_decides_the_speed() {
        use Speed::{Hanging, Responsive, Slow, Unknown};

        let budget = DeliveryBudget::default();

        for (took, speed) in [
            (None, Unknown),
            (QUICK, Responsive),
            (HANGING, Hanging),
            (None, Hanging),
            (LATE, Slow),
            (QUICK, Responsive),
            (None, Responsive),
        ] {
            deliver(&budget, 1..2, took);
            assert_eq!(budget.counters().speed(id(1)), speed);
        }

        // The deliveries held for a webhook count as those of its speed.
        assert!(budget.reserve(id(1), 7) && budget.reserve(id(1), 8));
        let mut counters = budget.counters();

        counters.start(id(1), DeliveryClass::Fresh);
        counters.finish(id(1), DeliveryClass::Fresh, 7, LATE, false);

        let one = Load {
            deliveries: 1,
            bytes: 8,
            ..Load::default()
        };

        assert_eq!(
            counters.held,
            [Load::default(), Load::default(), one, Load::default()]
        );
        counters.start(id(1), DeliveryClass::Fresh);
        counters.finish(id(1), DeliveryClass::Fresh, 8, QUICK, false);
        assert_eq!(counters.held, [Load::default(); Speed::ALL.len()]);
    }

    #[test]
    fn the_first_slow_request_of_each_webhook_gives_its_permit_back_within_bounds() {
        const PERMITS: usize = 1;
        let budget = DeliveryBudget::default();

        deliver(&budget, 1..100, QUICK);

        let note_slow = |webhook: usize| {
            assert!(budget.reserve(id(webhook), 1));
            let mut counters = budget.counters();
            counters.start(id(webhook), DeliveryClass::Fresh);
            counters.note_slow(id(webhook), DeliveryClass::Fresh, PERMITS)
        };

        // Unknown webhooks leave a quarter to responsive ones.
        let unknown: Vec<_> = (200..220).map(note_slow).collect();
        let limit = Speed::Unknown.share(PERMITS * DETACHED);

        assert_eq!(
            unknown,
            [vec![true; limit], vec![false; 20 - limit]].concat()
        );
        assert_eq!([1, 1, 2, 3].map(note_slow), [true, false, true, false]);

        let mut counters = budget.counters();
        let permits = |counters: &HandoffCounters| counters.total(Load::permits);

        assert_eq!(
            (counters.in_flight(), permits(&counters)),
            (24, 24 - PERMITS * DETACHED)
        );

        // A quick answer to another request makes the webhook responsive. Its slow request still
        // has no permit.
        counters.finish(id(1), DeliveryClass::Fresh, 1, QUICK, false);
        assert_eq!(counters.speed(id(1)), Speed::Responsive);
        assert_eq!(
            (permits(&counters), counters.webhook(id(1)).load.detached),
            (23 - PERMITS * DETACHED, 1)
        );
        counters.finish(id(1), DeliveryClass::Fresh, 1, HANGING, true);
        assert_eq!(counters.speed(id(1)), Speed::Hanging);

        let detached = counters.total(|load| load.detached);
        assert_eq!(
            (permits(&counters), detached),
            (23 - PERMITS * DETACHED, PERMITS * DETACHED - 1)
        );
        drop(counters);
        assert!(!note_slow(1), "it is known to hang");
        assert!(note_slow(5));
    }

    #[test]
    fn claims_are_limited_to_responsive_webhooks_when_others_have_used_up_their_share() {
        let budget = DeliveryBudget::default();
        deliver(&budget, 1..3, QUICK);
        deliver(&budget, 3..5, HANGING);
        assert!(budget.reserve(id(2), 1) && budget.reserve(id(10), 1));

        let limits = || {
            let mut limits =
                budget
                    .counters()
                    .claim_limits(16, &HashMap::from([(id(1), 5)]), Uuid::nil());
            limits.listed.sort_unstable();

            (limits.of_others, limits.listed, limits.end_with)
        };

        assert_eq!(
            limits(),
            (16, vec![(id(1), 5), (id(2), 15), (id(10), 15)], None)
        );

        // Slow webhooks are listed once their share is used up.
        deliver(&budget, 100_000..109_000, HANGING);
        fill(&budget, 100_000..109_000, 1);

        let counters = budget.counters();
        let ClaimLimits {
            of_others,
            listed,
            end_with,
        } = counters.claim_limits(16, &HashMap::new(), id(2));

        assert_eq!((of_others, listed.len()), (16, MAX_CLAIM_LIMITS));
        assert!(
            listed[..2] == [(id(3), 0), (id(4), 0)] && end_with == listed.last().map(|(id, _)| *id)
        );
        drop(counters);
        fill(&budget, 10..20_000, 1);
        assert_eq!(limits(), (0, vec![(id(1), 5), (id(2), 15)], None));
    }
}
