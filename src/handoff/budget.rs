//! Admission: how many deliveries this process holds, in queues and in flight, counted per webhook and bounded. The only counters per
//! webhook, shared by the hand-off and the dispatcher.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lru::LruCache;
use uuid::Uuid;

/// Deliveries that one process holds in memory at most.
pub const CAPACITY: usize = 8_192;
/// Deliveries to one webhook that one process holds at most, so that a slow receiver cannot use up the budget.
pub const PER_WEBHOOK: usize = 2_048;
/// Bytes of event data that one process holds in memory at most.
pub const CAPACITY_BYTES: usize = 64 << 20;
/// A webhook may hold this fraction of the free budget (a dynamic threshold): webhooks with slow receivers get less the more of them
/// there are, and some always remains for the others.
const SHARE_OF_FREE: usize = 4;
/// Unproven webhooks together leave this fraction of every budget to responsive ones, however many receivers hang.
const RESERVED: usize = 4;
/// A receiver is responsive if its last request took at most this long: a fraction of the default timeout, and longer than receivers
/// that work need.
pub const RESPONSIVE: Duration = Duration::from_secs(1);
/// Responsive webhooks, and slow ones, that are remembered while nothing is held for them. Those forgotten count as unknown until their next
/// answer.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");
/// Requests that may be in flight without a permit, in multiples of the permits. By default this suffices if a third of 10,000 receivers
/// hang under 250 deliveries per second. Each takes a socket, and memory for its delivery and the connection.
pub const DETACHED: usize = 3;
/// Webhooks that one claim is limited to when unproven ones have used up their share: the claim searches this list linearly. The next claim
/// is for the webhooks after them.
const MAX_CLAIMED_ALONE: usize = 1_024;

/// Returns the part of `total` that unproven webhooks may use together. At least one.
pub const fn unproven_share(total: usize) -> usize {
    total - total / RESERVED
}

/// Returns how much of a budget of `total` is free for a responsive, or for an unproven, webhook. `used` is in use, of which `unproven`
/// by unproven webhooks.
fn free_of(is_responsive: bool, total: usize, used: usize, unproven: usize) -> usize {
    let free = total.saturating_sub(used);
    if is_responsive { free } else { free.min(unproven_share(total).saturating_sub(unproven)) }
}

/// Deliveries held, the bytes of their data, how many of them are in flight, and how many of these without a permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    deliveries: usize,
    bytes: usize,
    in_flight: usize,
    detached: usize,
}

impl Load {
    fn add(&mut self, other: Load) {
        self.deliveries += other.deliveries;
        self.bytes += other.bytes;
        self.in_flight += other.in_flight;
        self.detached += other.detached;
    }

    fn remove(&mut self, other: Load) {
        self.deliveries -= other.deliveries;
        self.bytes -= other.bytes;
        self.in_flight -= other.in_flight;
        self.detached -= other.detached;
    }

    fn permits(&self) -> usize {
        self.in_flight - self.detached
    }
}

/// What the requests to a webhook say about its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Speed {
    /// There was no request, or it was forgotten.
    #[default]
    Unknown,
    /// The last request took at most [`RESPONSIVE`], and none has taken longer since.
    Responsive,
    Slow,
}

#[derive(Clone, Copy, Debug, Default)]
struct Webhook {
    load: Load,
    speed: Speed,
}

impl Webhook {
    /// All other webhooks are unproven.
    fn is_responsive(self) -> bool {
        self.speed == Speed::Responsive
    }
}

/// The consequences of a request that has taken longer than [`RESPONSIVE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowed {
    /// Whether it has made a responsive webhook unproven.
    pub has_changed: bool,
    /// Whether it no longer has a permit.
    pub is_detached: bool,
}

/// What this process holds, in total and per webhook.
#[derive(Debug)]
pub struct Counters {
    total: Load,
    /// The part of `total` that is held for unproven webhooks.
    unproven: Load,
    /// Webhooks for which something is held.
    by_webhook: HashMap<Uuid, Webhook>,
    responsive: LruCache<Uuid, ()>,
    slow: LruCache<Uuid, ()>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            total: Load::default(),
            unproven: Load::default(),
            by_webhook: HashMap::new(),
            responsive: LruCache::new(REMEMBERED),
            slow: LruCache::new(REMEMBERED),
        }
    }
}

impl Counters {
    fn webhook(&self, webhook: Uuid) -> Webhook {
        let remembered = || match () {
            () if self.responsive.contains(&webhook) => Speed::Responsive,
            () if self.slow.contains(&webhook) => Speed::Slow,
            () => Speed::Unknown,
        };
        let not_held = || Webhook { load: Load::default(), speed: remembered() };
        self.by_webhook.get(&webhook).copied().unwrap_or_else(not_held)
    }

    fn free_deliveries(&self, is_responsive: bool) -> usize {
        free_of(is_responsive, CAPACITY, self.total.deliveries, self.unproven.deliveries)
    }

    /// How many more deliveries may be held for a webhook. At least one while any budget is free for it.
    fn free_for(&self, webhook: Webhook) -> usize {
        let limit = PER_WEBHOOK.min(self.free_deliveries(webhook.is_responsive()).div_ceil(SHARE_OF_FREE));
        limit.saturating_sub(webhook.load.deliveries)
    }

    /// Whether `bytes` more may be held for a webhook. A delivery that is larger than its webhook's share is held alone.
    fn has_bytes(&self, webhook: Webhook, bytes: usize) -> bool {
        let free = free_of(webhook.is_responsive(), CAPACITY_BYTES, self.total.bytes, self.unproven.bytes);
        let fits = webhook.load.bytes.saturating_add(bytes) <= free.div_ceil(SHARE_OF_FREE);
        let is_alone = webhook.load.deliveries == 0 && bytes <= free;
        fits || is_alone || self.total.deliveries == 0
    }

    /// Returns how many more deliveries may be held in total.
    pub fn free(&self) -> usize {
        self.free_deliveries(true)
    }

    /// Returns how many more bytes may be held in total.
    pub fn free_bytes(&self) -> usize {
        CAPACITY_BYTES.saturating_sub(self.total.bytes)
    }

    fn reserve(&mut self, id: Uuid, bytes: usize) -> bool {
        let webhook = self.webhook(id);
        if self.free_for(webhook) == 0 || !self.has_bytes(webhook, bytes) {
            return false;
        }
        self.by_webhook.entry(id).or_insert(webhook);
        self.change(id, |load| load.add(Load { deliveries: 1, bytes, ..Load::default() }));
        true
    }

    fn release(&mut self, webhook: Uuid, bytes: usize) {
        self.change(webhook, |load| load.remove(Load { deliveries: 1, bytes, ..Load::default() }));
    }

    /// Changes the load of a webhook and the totals. Forgets the webhook if nothing is held for it.
    fn change(&mut self, id: Uuid, change: impl Fn(&mut Load)) {
        let Some(webhook) = self.by_webhook.get_mut(&id) else { return };
        change(&mut webhook.load);
        change(&mut self.total);
        if !webhook.is_responsive() {
            change(&mut self.unproven);
        }
        if webhook.load == Load::default() {
            self.by_webhook.remove(&id);
        }
    }

    /// Counts a held delivery as in flight.
    pub fn start(&mut self, webhook: Uuid) {
        self.change(webhook, |load| load.in_flight += 1);
    }

    /// Releases a delivery that was in flight. `took` is how long its request took, if one was made, and `is_detached` whether it had no
    /// permit at the end. Returns whether that has made a responsive webhook unproven, or the reverse.
    pub fn finish(&mut self, webhook: Uuid, bytes: usize, took: Option<Duration>, is_detached: bool) -> bool {
        let speed = |took| if took <= RESPONSIVE { Speed::Responsive } else { Speed::Slow };
        let has_changed = took.is_some_and(|took| self.set_speed(webhook, speed(took)));
        let detached = usize::from(is_detached);
        self.change(webhook, |load| load.remove(Load { deliveries: 1, bytes, in_flight: 1, detached }));
        has_changed
    }

    /// Notes that a request in flight has taken longer than [`RESPONSIVE`], of `permits` that there are. If the webhook was not known to be
    /// slow, the request goes on without a permit: otherwise receivers that stop answering at the same time would hold all
    /// permits until the timeout. A webhook has one such request at a time.
    pub fn note_slow(&mut self, webhook: Uuid, permits: usize) -> Slowed {
        let before = self.webhook(webhook);
        let has_changed = self.set_speed(webhook, Speed::Slow);
        // Receivers that have never answered leave some to those that have.
        let limit = match before.speed {
            Speed::Responsive => permits * DETACHED,
            Speed::Unknown => unproven_share(permits * DETACHED),
            Speed::Slow => 0,
        };
        let is_detached = self.total.detached < limit && before.load.detached == 0;
        if is_detached {
            self.change(webhook, |load| load.detached += 1);
        }
        Slowed { has_changed, is_detached }
    }

    /// Returns whether that has made a responsive webhook unproven, or the reverse.
    fn set_speed(&mut self, id: Uuid, speed: Speed) -> bool {
        let is_responsive = speed == Speed::Responsive;
        let (remembering, forgetting) = match is_responsive {
            true => (&mut self.responsive, &mut self.slow),
            false => (&mut self.slow, &mut self.responsive),
        };
        remembering.put(id, ());
        forgetting.pop(&id);
        let Some(webhook) = self.by_webhook.get_mut(&id) else { return false };
        let was_responsive = webhook.is_responsive();
        webhook.speed = speed;
        match (was_responsive, is_responsive) {
            (false, true) => self.unproven.remove(webhook.load),
            (true, false) => self.unproven.add(webhook.load),
            (true, true) | (false, false) => return false,
        }
        true
    }

    pub fn is_responsive(&self, webhook: Uuid) -> bool {
        self.webhook(webhook).is_responsive()
    }

    pub fn in_flight_of(&self, webhook: Uuid) -> usize {
        self.webhook(webhook).load.in_flight
    }

    pub fn in_flight(&self) -> usize {
        self.total.in_flight
    }

    /// Returns how many of `total` permits are free for responsive, or for unproven, webhooks.
    pub fn free_permits(&self, total: usize, is_responsive: bool) -> usize {
        free_of(is_responsive, total, self.total.permits(), self.unproven.permits())
    }

    /// Returns how many deliveries of each webhook a claim may take that visits webhooks after `start_after`, if none is to hold more than
    /// `ahead`, or than its number in `lower`.
    pub fn claim_limits(&self, ahead: usize, lower: &HashMap<Uuid, usize>, start_after: Uuid) -> ClaimLimits {
        let limit = |id: &Uuid, webhook: Webhook| {
            let ahead = lower.get(id).map_or(ahead, |lower| ahead.min(*lower));
            ahead.saturating_sub(webhook.load.deliveries).min(self.free_for(webhook))
        };
        let of_others = ahead.min(self.free_for(Webhook::default()));
        if of_others > 0 {
            let held = self.by_webhook.iter().map(|(id, webhook)| (*id, limit(id, *webhook)));
            let others = lower.keys().filter(|id| !self.by_webhook.contains_key(id));
            let listed = held.chain(others.map(|id| (*id, limit(id, self.webhook(*id))))).collect();
            return ClaimLimits { of_others, listed, ends_with: None };
        }
        // Only responsive webhooks are listed: the budget would not admit most deliveries of the others.
        let mut ids: Vec<Uuid> = self.responsive.iter().map(|(id, ())| *id).filter(|id| *id > start_after).collect();
        let ends_with = (ids.len() > MAX_CLAIMED_ALONE).then(|| {
            let last = *ids.select_nth_unstable(MAX_CLAIMED_ALONE - 1).1;
            ids.truncate(MAX_CLAIMED_ALONE);
            last
        });
        let listed = ids.iter().map(|id| (*id, limit(id, self.webhook(*id)))).collect();
        ClaimLimits { of_others, listed, ends_with }
    }
}

/// How many deliveries of each webhook a claim may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Of each webhook that is not listed.
    pub of_others: usize,
    pub listed: Vec<(Uuid, usize)>,
    /// The last webhook of the list, if the list is not complete: the next claim is for those after it.
    pub ends_with: Option<Uuid>,
}

/// The counters, shared between the hand-off and the dispatcher.
#[derive(Clone, Debug, Default)]
pub struct DeliveryBudget(Arc<Mutex<Counters>>);

impl DeliveryBudget {
    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().expect("no holder of this lock panics")
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
    const HANGING: Option<Duration> = Some(Duration::from_secs(10));

    fn id(number: usize) -> Uuid {
        Uuid::from_u128(number as u128)
    }

    /// Delivers once to each of the webhooks, with requests that take this long.
    fn deliver(budget: &DeliveryBudget, webhooks: std::ops::Range<usize>, took: Option<Duration>) {
        for webhook in webhooks.map(id) {
            assert!(budget.reserve(webhook, 1));
            let mut counters = budget.counters();
            counters.start(webhook);
            counters.finish(webhook, 1, took, false);
        }
    }

    /// Reserves deliveries of so many bytes for these webhooks in turn until none is admitted. Returns how many were.
    fn fill(budget: &DeliveryBudget, webhooks: std::ops::Range<usize>, bytes: usize) -> usize {
        let mut reserved = 0;
        loop {
            let before = reserved;
            reserved += webhooks.clone().filter(|webhook| budget.reserve(id(*webhook), bytes)).count();
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
        let (slow, other) = (id(1), id(2));
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
        assert_eq!((counters.free_bytes(), counters.free()), (CAPACITY_BYTES, CAPACITY));
    }

    #[test]
    fn a_hundred_webhooks_leave_budget_for_another() {
        let budget = DeliveryBudget::default();
        fill(&budget, 0..100, 1);
        assert!(free_for(&budget, id(1_000)) >= 10, "{}", budget.counters().free());
    }

    #[test]
    fn unproven_webhooks_leave_budget_to_responsive_ones() {
        let budget = DeliveryBudget::default();
        deliver(&budget, 0..5_000, QUICK);
        let unproven = fill(&budget, 10_000..30_000, 1);
        assert_eq!(unproven, unproven_share(CAPACITY));
        assert_eq!(fill(&budget, 0..5_000, 1), CAPACITY - unproven);
        assert_eq!(budget.counters().free(), 0);
    }

    #[test]
    fn a_slow_answer_makes_a_webhook_unproven_and_a_quick_one_responsive_again() {
        let budget = DeliveryBudget::default();
        assert!(!budget.counters().is_responsive(id(1)));
        for (took, is_responsive) in [(QUICK, true), (HANGING, false), (None, false), (QUICK, true), (None, true)] {
            deliver(&budget, 1..2, took);
            assert_eq!(budget.counters().is_responsive(id(1)), is_responsive);
        }
        // When a webhook becomes unproven or responsive, the deliveries held for it are counted there.
        assert!(budget.reserve(id(1), 7) && budget.reserve(id(1), 8));
        let mut counters = budget.counters();
        counters.start(id(1));
        assert!(counters.finish(id(1), 7, HANGING, false));
        assert_eq!((counters.unproven.deliveries, counters.unproven.bytes, counters.in_flight()), (1, 8, 0));
        counters.start(id(1));
        assert!(counters.finish(id(1), 8, QUICK, false));
        assert_eq!((counters.unproven, counters.total), (Load::default(), Load::default()));
        assert!(counters.by_webhook.is_empty());
    }

    #[test]
    fn the_first_slow_request_of_each_webhook_gives_its_permit_back_within_bounds() {
        const PERMITS: usize = 4;
        let budget = DeliveryBudget::default();
        deliver(&budget, 1..100, QUICK);
        let note_slow = |webhook: usize| {
            assert!(budget.reserve(id(webhook), 1));
            budget.counters().start(id(webhook));
            let slowed = budget.counters().note_slow(id(webhook), PERMITS);
            (slowed.has_changed, slowed.is_detached)
        };
        // Unknown webhooks leave a quarter to proven ones.
        let unknown: Vec<_> = (200..220).map(note_slow).collect();
        let limit = unproven_share(PERMITS * DETACHED);
        assert_eq!(unknown, [vec![(false, true); limit], vec![(false, false); 20 - limit]].concat());
        assert_eq!(
            [1, 1, 2, 3, 4].map(note_slow),
            [(true, true), (false, false), (true, true), (true, true), (true, false)]
        );
        let mut counters = budget.counters();
        assert_eq!((counters.in_flight(), counters.total.permits()), (25, 25 - PERMITS * DETACHED));
        // A quick answer to another request makes the webhook responsive. Its slow request still has no permit.
        assert!(counters.finish(id(1), 1, QUICK, false));
        assert_eq!((counters.total.permits(), counters.webhook(id(1)).load.detached), (24 - PERMITS * DETACHED, 1));
        assert!(counters.finish(id(1), 1, HANGING, true));
        assert_eq!(
            (counters.total.permits(), counters.total.detached),
            (24 - PERMITS * DETACHED, PERMITS * DETACHED - 1)
        );
        drop(counters);
        assert_eq!(note_slow(1), (false, false), "it is known to be slow");
        assert_eq!(note_slow(5), (true, true));
    }

    #[test]
    fn claims_are_limited_to_responsive_webhooks_when_unproven_ones_have_used_up_their_share() {
        let budget = DeliveryBudget::default();
        deliver(&budget, 1..3, QUICK);
        assert!(budget.reserve(id(2), 1) && budget.reserve(id(10), 1));
        let limits = || {
            let mut limits = budget.counters().claim_limits(16, &HashMap::from([(id(1), 5)]), Uuid::nil());
            limits.listed.sort_unstable();
            (limits.of_others, limits.listed, limits.ends_with)
        };
        assert_eq!(limits(), (16, vec![(id(1), 5), (id(2), 15), (id(10), 15)], None));
        fill(&budget, 10..20_000, 1);
        assert_eq!(limits(), (0, vec![(id(1), 5), (id(2), 15)], None));
    }
}
