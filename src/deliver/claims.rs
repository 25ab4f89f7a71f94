//! When to ask the store for what is due, and for how much. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::domain::delivery::Delivery;
use crate::handoff::{CAPACITY, Room};
use crate::store::deliver::{ClaimRequest, Claimed, Due};

/// Between two looks when the last one found all there was.
const IDLE: Duration = Duration::from_millis(200);
/// The same for first attempts while deliveries wait here: a webhook that had no room may have some now.
const BUSY: Duration = Duration::from_millis(50);
/// After a look that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// While more is known to wait, a look is worth its while once this many have left.
const STEP: usize = 256;
/// Rows of one claim at most.
pub const MAX_ROWS: usize = 1_024;
const MAX_WEBHOOKS: usize = 1_000;
/// Deliveries of one webhook to hold, in multiples of what it may have under way: enough to be busy until the next claim.
/// More would only wait here until their leases end.
const AHEAD: usize = 16;
/// What a delivery is taken to have in bytes before any was seen.
const FIRST_GUESS: usize = 1 << 10;
/// Retries to hold at most.
const MAX_RETRIES: usize = CAPACITY / 4;

/// What the dispatcher holds at the moment.
pub struct Holding {
    pub by_webhook: HashMap<Uuid, usize>,
    pub queued_retries: usize,
}

/// One class's way round the webhooks.
#[derive(Debug)]
pub struct Pace {
    due: Due,
    behind: Uuid,
    next_at: Instant,
    /// To look again as soon as there is room: the circle is not closed, or something was left behind on it.
    more: bool,
    /// Whether something was left behind since the circle began.
    left_behind: bool,
    left_since: usize,
    /// Bytes of a delivery, as of those of the last look: a look is for no more deliveries than fit.
    typical_bytes: usize,
}

impl Pace {
    pub fn new(due: Due, now: Instant) -> Pace {
        Pace {
            due,
            behind: Uuid::nil(),
            next_at: now,
            more: false,
            left_behind: false,
            left_since: 0,
            typical_bytes: FIRST_GUESS,
        }
    }

    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Notes that deliveries have left and made room.
    pub fn left(&mut self, count: usize) {
        self.left_since += count;
    }

    pub fn is_due(&self, now: Instant, queued: usize) -> bool {
        now >= self.next_at || (self.more && (self.left_since >= STEP || queued == 0))
    }

    /// The next look, unless there is no room for anything it could find.
    pub fn begin(
        &mut self,
        now: Instant,
        timeout: Duration,
        per_webhook: usize,
        holding: &Holding,
        room: &Room,
    ) -> Option<ClaimRequest> {
        let free = room.free();
        let for_retries = free.div_ceil(4).min(MAX_RETRIES.saturating_sub(holding.queued_retries));
        let max_rows = match self.due {
            Due::Fresh => free - free / 4,
            Due::Retries => for_retries,
        };
        let max_bytes = room.free_bytes();
        let fitting = max_bytes / self.typical_bytes.max(1);
        self.next_at = now + IDLE;
        self.left_since = 0;
        if max_rows == 0 || max_bytes == 0 {
            return None;
        }
        let ahead = per_webhook.saturating_mul(AHEAD);
        let room_of = |webhook: Uuid, held: usize| ahead.saturating_sub(held).min(room.free_for(webhook));
        Some(ClaimRequest {
            due: self.due,
            timeout,
            behind: self.behind,
            max_webhooks: MAX_WEBHOOKS,
            max_rows: max_rows.min(MAX_ROWS).min(fitting.max(1)),
            max_bytes,
            per_webhook: room_of(Uuid::nil(), 0),
            rooms: holding.by_webhook.iter().map(|(webhook, held)| (*webhook, room_of(*webhook, *held))).collect(),
        })
    }

    pub fn found(&mut self, now: Instant, request: &ClaimRequest, claimed: &Claimed, queued: usize) {
        let mut by_webhook: HashMap<Uuid, usize> = HashMap::new();
        for delivery in &claimed.deliveries {
            *by_webhook.entry(delivery.webhook).or_default() += 1;
        }
        let rooms: HashMap<Uuid, usize> = request.rooms.iter().copied().collect();
        let full = |(webhook, count): (&Uuid, &usize)| *count >= *rooms.get(webhook).unwrap_or(&request.per_webhook);
        let all_taken = claimed.deliveries.len() + claimed.orphans.len() + claimed.refused >= request.max_rows;
        self.left_behind |= all_taken || claimed.refused > 0 || by_webhook.iter().any(full);
        if let Some(typical) =
            claimed.deliveries.iter().map(Delivery::bytes).sum::<usize>().checked_div(claimed.deliveries.len())
        {
            self.typical_bytes = typical;
        }
        // Full, it may have stopped anywhere: go on behind the last webhook that had something.
        let stopped_at = claimed.deliveries.iter().map(|delivery| delivery.webhook).max().filter(|_| all_taken);
        self.behind = stopped_at.or(claimed.behind).unwrap_or(Uuid::nil());
        self.more = self.left_behind || !self.behind.is_nil();
        if self.behind.is_nil() {
            self.left_behind = false;
        }
        self.next_at = match claimed.behind {
            Some(_) => now,
            None if queued > 0 && self.due == Due::Fresh => now + BUSY,
            None => now + IDLE,
        };
    }

    pub fn failed(&mut self, now: Instant) {
        self.more = false;
        self.next_at = now + AFTER_ERROR;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::delivery::Lease;
    use crate::domain::event::EventKind;
    use crate::handoff::CAPACITY_BYTES;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn nothing() -> Holding {
        Holding { by_webhook: HashMap::new(), queued_retries: 0 }
    }

    fn claimed(webhook: u128, count: usize) -> Claimed {
        let delivery = Delivery {
            id: Uuid::nil(),
            webhook: Uuid::from_u128(webhook),
            event: Uuid::nil(),
            kind: EventKind::DeliveryCompleted,
            occurred_at: jiff::Timestamp::UNIX_EPOCH,
            data: "{}".into(),
            round: 1,
            attempt: 1,
            lease: Lease { token: Uuid::nil(), until: Instant::now() },
        };
        Claimed { deliveries: vec![delivery; count], ..Claimed::default() }
    }

    /// Asks for what is due with all the room there is, and finds this.
    fn look(pace: &mut Pace, now: Instant, found: &Claimed) -> ClaimRequest {
        let request = pace.begin(now, TIMEOUT, 4, &nothing(), &Room::default()).unwrap();
        pace.found(now, &request, found, 0);
        request
    }

    #[test]
    fn a_look_that_found_the_end_is_followed_by_a_rest() {
        let now = Instant::now();
        let mut pace = Pace::new(Due::Fresh, now);
        assert!(pace.is_due(now, 0));
        look(&mut pace, now, &claimed(1, 3));
        assert!(!pace.is_due(now, 0));
        assert!(pace.is_due(now + IDLE, 0));
    }

    /// As when many webhooks have retries that wait: to go round them without a rest would take a processor.
    #[test]
    fn a_circle_of_several_looks_that_left_nothing_is_followed_by_a_rest() {
        let now = Instant::now();
        let mut pace = Pace::new(Due::Retries, now);
        for last in [Some(Uuid::from_u128(77)), None] {
            assert!(pace.is_due(now, 0), "the circle is not closed");
            look(&mut pace, now, &Claimed { behind: last, ..claimed(1, 1) });
        }
        pace.left(10 * STEP);
        assert!(!pace.is_due(now, 0));
        assert!(pace.is_due(now + IDLE, 0));
    }

    #[test]
    fn a_circle_that_left_something_is_followed_by_another() {
        let now = Instant::now();
        let mut pace = Pace::new(Due::Fresh, now);
        let looks = [(Some(Uuid::from_u128(77)), 4 * AHEAD), (None, 1)];
        for (last, count) in looks {
            look(&mut pace, now, &Claimed { behind: last, ..claimed(1, count) });
        }
        assert!(pace.is_due(now, 0));
        look(&mut pace, now, &Claimed::default());
        assert!(!pace.is_due(now, 0));
    }

    #[test]
    fn a_look_that_did_not_is_repeated_as_soon_as_there_is_room() {
        let now = Instant::now();
        let mut pace = Pace::new(Due::Fresh, now);
        let request = pace.begin(now, TIMEOUT, 4, &nothing(), &Room::default()).unwrap();
        assert_eq!(request.per_webhook, 4 * AHEAD);
        pace.found(now, &request, &claimed(1, 4 * AHEAD), 60);
        assert!(!pace.is_due(now, 60));
        assert!(pace.is_due(now, 0));
        pace.left(STEP);
        assert!(pace.is_due(now, 60));
    }

    #[test]
    fn a_webhook_that_waits_here_gets_no_more() {
        let now = Instant::now();
        let webhook = Uuid::from_u128(1);
        let holding = Holding { by_webhook: HashMap::from([(webhook, 4 * AHEAD)]), queued_retries: 0 };
        let request = Pace::new(Due::Fresh, now).begin(now, TIMEOUT, 4, &holding, &Room::default()).unwrap();
        assert_eq!(request.rooms, [(webhook, 0)]);
    }

    #[test]
    fn the_circle_goes_on_where_it_stopped_and_begins_again_at_its_end() {
        let now = Instant::now();
        let mut pace = Pace::new(Due::Fresh, now);
        let request = pace.begin(now, TIMEOUT, 4, &nothing(), &Room::default()).unwrap();
        let last = Uuid::from_u128(77);
        pace.found(now, &request, &Claimed { behind: Some(last), ..claimed(1, 1) }, 0);
        assert!(pace.is_due(now, 1));
        let request = pace.begin(now, TIMEOUT, 4, &nothing(), &Room::default()).unwrap();
        assert_eq!(request.behind, last);
        pace.found(now, &request, &claimed(99, request.max_rows), 0);
        assert_eq!(look(&mut pace, now, &Claimed::default()).behind, Uuid::from_u128(99));
        assert_eq!(pace.begin(now, TIMEOUT, 4, &nothing(), &Room::default()).unwrap().behind, Uuid::nil());
    }

    #[test]
    fn a_look_is_for_no_more_than_fits_and_for_one_at_least() {
        let now = Instant::now();
        let (room, mut pace) = (Room::default(), Pace::new(Due::Fresh, now));
        let mut large = claimed(1, 3);
        large.deliveries.iter_mut().for_each(|delivery| delivery.data = "x".repeat(256 << 10).into());
        assert_eq!(look(&mut pace, now, &large).max_rows, MAX_ROWS);
        let request = pace.begin(now, TIMEOUT, 4, &nothing(), &room).unwrap();
        assert_eq!((request.max_rows, request.max_bytes), (256, CAPACITY_BYTES));
        assert!(room.reserve(Uuid::from_u128(1), CAPACITY_BYTES - 1));
        let request = pace.begin(now, TIMEOUT, 4, &nothing(), &room).unwrap();
        assert_eq!((request.max_rows, request.max_bytes), (1, 1));
        assert!(room.reserve(Uuid::from_u128(2), 1));
        assert!(pace.begin(now, TIMEOUT, 4, &nothing(), &room).is_none());
    }

    #[test]
    fn retries_are_held_in_bounds_and_a_full_room_asks_for_nothing() {
        let now = Instant::now();
        let holding = Holding { queued_retries: MAX_RETRIES, ..nothing() };
        assert!(Pace::new(Due::Retries, now).begin(now, TIMEOUT, 4, &holding, &Room::default()).is_none());
        let room = Room::default();
        for webhook in 0..CAPACITY as u128 {
            assert!(room.reserve(Uuid::from_u128(webhook), 1));
        }
        assert!(Pace::new(Due::Fresh, now).begin(now, TIMEOUT, 4, &nothing(), &room).is_none());
    }
}
