//! The short way from the transaction that stores deliveries to the dispatcher of the same process: already leased, so that
//! nothing has to be polled for. It is bounded; what does not fit waits in the store and is claimed from there.
//!
//! Deliveries are handed over while the store is still at work on the transaction that brings them in. Should it fail, they
//! follow from the platform's log again, under the same ids; so requests need not wait for the store. What they end in does: it
//! is written down behind the commit, and forgotten when there was none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::domain::delivery::Delivery;
use crate::domain::webhook::SealedTarget;

/// Deliveries that one process holds in memory at most.
pub const CAPACITY: usize = 8_192;
/// Deliveries to one webhook that one process holds at most, so that a slow receiver cannot take all the room.
pub const PER_WEBHOOK: usize = 2_048;
/// A webhook may hold as much as this share of the places still free (a dynamic threshold): those of slow receivers shrink
/// as they get more, and leave room for those that are not.
const SHARE_OF_FREE: usize = 4;

/// Counts the deliveries that this process holds, in queues and under way.
#[derive(Debug, Default)]
struct Held {
    total: usize,
    by_webhook: HashMap<Uuid, usize>,
}

impl Held {
    /// What one webhook may hold now. At least one place while there is any, so an entry for a webhook is never empty.
    fn limit(&self) -> usize {
        PER_WEBHOOK.min((CAPACITY - self.total).div_ceil(SHARE_OF_FREE))
    }
}

/// Shared between whoever brings deliveries in and the dispatcher.
#[derive(Clone, Debug, Default)]
pub struct Room(Arc<Mutex<Held>>);

impl Room {
    /// Takes a place for one delivery to `webhook`, if there is one.
    pub fn reserve(&self, webhook: Uuid) -> bool {
        let mut held = self.0.lock().expect("no holder of this lock panics");
        if held.total >= CAPACITY {
            return false;
        }
        let limit = held.limit();
        let of_webhook = held.by_webhook.entry(webhook).or_default();
        if *of_webhook >= limit {
            return false;
        }
        *of_webhook += 1;
        held.total += 1;
        true
    }

    /// Gives a place back.
    pub fn release(&self, webhook: Uuid) {
        let mut held = self.0.lock().expect("no holder of this lock panics");
        let Some(of_webhook) = held.by_webhook.get_mut(&webhook) else { return };
        *of_webhook -= 1;
        if *of_webhook == 0 {
            held.by_webhook.remove(&webhook);
        }
        held.total -= 1;
    }

    /// Places free for any webhook at all.
    pub fn free(&self) -> usize {
        CAPACITY - self.0.lock().expect("no holder of this lock panics").total
    }

    /// Places free for one webhook.
    pub fn free_for(&self, webhook: Uuid) -> usize {
        let held = self.0.lock().expect("no holder of this lock panics");
        let of_webhook = held.by_webhook.get(&webhook).copied().unwrap_or(0);
        held.limit().saturating_sub(of_webhook)
    }
}

/// Deliveries that are being stored, each with a reserved place, and where they go.
#[derive(Debug)]
pub struct Handed {
    pub deliveries: Vec<Delivery>,
    /// As they were when the deliveries were made, not later than `read_at`'s question was put.
    pub targets: Vec<SealedTarget>,
    pub read_at: Instant,
}

/// The sending end.
#[derive(Clone, Debug)]
pub struct Handoff {
    pub room: Room,
    pub sender: mpsc::UnboundedSender<Handed>,
    /// The lease of deliveries whose commit is under way. One at a time: there is one enqueue stage.
    committing: watch::Sender<Option<Uuid>>,
}

impl Handoff {
    /// Says that deliveries under `lease` are handed over before their commit has ended. It has when the answer is dropped.
    pub fn committing(&self, lease: Uuid) -> Committing<'_> {
        self.committing.send_replace(Some(lease));
        Committing(&self.committing)
    }

    /// For whoever writes down what attempts end in.
    pub fn commits(&self) -> Commits {
        Commits(self.committing.subscribe())
    }
}

/// A commit under way.
#[derive(Debug)]
pub struct Committing<'a>(&'a watch::Sender<Option<Uuid>>);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// Tells which commit is under way.
#[derive(Clone, Debug)]
pub struct Commits(watch::Receiver<Option<Uuid>>);

impl Commits {
    /// The lease of deliveries that the store may not know yet.
    pub fn under_way(&mut self) -> Option<Uuid> {
        *self.0.borrow_and_update()
    }

    /// Waits until `under_way` may say something else.
    pub async fn change(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody commits any more.
            std::future::pending().await
        }
    }
}

/// The two ends. The channel itself needs no bound: the room has one.
pub fn handoff() -> (Handoff, mpsc::UnboundedReceiver<Handed>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Handoff { room: Room::default(), sender, committing: watch::Sender::new(None) }, receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_webhook_cannot_take_all_the_room() {
        let room = Room::default();
        let (slow, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let taken = (0..CAPACITY).filter(|_| room.reserve(slow)).count();
        assert!((1_000..=PER_WEBHOOK).contains(&taken), "{taken}");
        assert_eq!(room.free_for(slow), 0);
        assert!(room.reserve(other));
        room.release(other);
        room.release(slow);
        assert!(room.free_for(slow) > 0);
        assert!(room.reserve(slow));
    }

    #[test]
    fn many_slow_webhooks_cannot_take_all_the_room_either() {
        let room = Room::default();
        while (0..100).filter(|slow| room.reserve(Uuid::from_u128(*slow))).count() > 0 {}
        assert!(room.free_for(Uuid::from_u128(1_000)) >= 10, "{}", room.free());
    }

    #[test]
    fn the_room_is_bounded_over_all_webhooks() {
        let room = Room::default();
        let taken = (0..2 * CAPACITY as u128).filter(|webhook| room.reserve(Uuid::from_u128(*webhook))).count();
        assert_eq!(taken, CAPACITY);
        assert_eq!(room.free(), 0);
    }
}
