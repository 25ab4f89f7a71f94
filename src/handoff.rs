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
/// Bytes of events' data that one process holds in memory at most.
pub const CAPACITY_BYTES: usize = 64 << 20;
/// A webhook may hold as much as this share of the places still free (a dynamic threshold): those of slow receivers shrink
/// as they get more, and leave room for those that are not.
const SHARE_OF_FREE: usize = 4;

/// Counts the deliveries that this process holds, in queues and under way.
#[derive(Debug, Default)]
struct Held {
    total: Share,
    by_webhook: HashMap<Uuid, Share>,
}

/// A number of deliveries, and the bytes of their data.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    deliveries: usize,
    bytes: usize,
}

impl Held {
    /// What one webhook may hold now. At least one place while there is any, so an entry for a webhook is never empty.
    fn limit(&self) -> usize {
        PER_WEBHOOK.min((CAPACITY - self.total.deliveries).div_ceil(SHARE_OF_FREE))
    }

    fn free_bytes(&self) -> usize {
        CAPACITY_BYTES.saturating_sub(self.total.bytes)
    }

    /// Whether a webhook that holds `share` may hold so many bytes more. A delivery that is larger than its webhook's part of the
    /// capacity goes by itself.
    fn has_bytes(&self, share: Share, bytes: usize) -> bool {
        let limit = self.free_bytes().div_ceil(SHARE_OF_FREE);
        let is_alone = share.deliveries == 0 && bytes <= self.free_bytes();
        share.bytes.saturating_add(bytes) <= limit || is_alone || self.total.deliveries == 0
    }
}

/// Shared between whoever brings deliveries in and the dispatcher.
#[derive(Clone, Debug, Default)]
pub struct Room(Arc<Mutex<Held>>);

impl Room {
    /// Takes a place for one delivery of so many bytes to `webhook`, if there is one.
    pub fn reserve(&self, webhook: Uuid, bytes: usize) -> bool {
        let mut held = self.0.lock().expect("no holder of this lock panics");
        let share = held.by_webhook.get(&webhook).copied().unwrap_or_default();
        let is_full = held.total.deliveries >= CAPACITY || share.deliveries >= held.limit();
        if is_full || !held.has_bytes(share, bytes) {
            return false;
        }
        held.total.add(bytes);
        held.by_webhook.entry(webhook).or_default().add(bytes);
        true
    }

    /// Gives a place back that was taken for so many bytes.
    pub fn release(&self, webhook: Uuid, bytes: usize) {
        let mut held = self.0.lock().expect("no holder of this lock panics");
        let Some(share) = held.by_webhook.get_mut(&webhook) else { return };
        share.remove(bytes);
        if share.deliveries == 0 {
            held.by_webhook.remove(&webhook);
        }
        held.total.remove(bytes);
    }

    /// Bytes free for any webhook at all.
    pub fn free_bytes(&self) -> usize {
        self.0.lock().expect("no holder of this lock panics").free_bytes()
    }

    /// Places free for any webhook at all.
    pub fn free(&self) -> usize {
        CAPACITY - self.0.lock().expect("no holder of this lock panics").total.deliveries
    }

    /// Places free for one webhook.
    pub fn free_for(&self, webhook: Uuid) -> usize {
        let held = self.0.lock().expect("no holder of this lock panics");
        let share = held.by_webhook.get(&webhook).copied().unwrap_or_default();
        held.limit().saturating_sub(share.deliveries)
    }
}

impl Share {
    fn add(&mut self, bytes: usize) {
        self.deliveries += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.deliveries -= 1;
        self.bytes -= bytes;
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
        let taken = (0..CAPACITY).filter(|_| room.reserve(slow, 1)).count();
        assert!((1_000..=PER_WEBHOOK).contains(&taken), "{taken}");
        assert_eq!(room.free_for(slow), 0);
        assert!(room.reserve(other, 1));
        room.release(other, 1);
        room.release(slow, 1);
        assert!(room.free_for(slow) > 0);
        assert!(room.reserve(slow, 1));
    }

    #[test]
    fn large_deliveries_are_bounded_by_their_bytes() {
        const LARGE: usize = 64 << 10;
        let room = Room::default();
        let slow = Uuid::from_u128(1);
        let taken = (0..CAPACITY).filter(|_| room.reserve(slow, LARGE)).count();
        assert!(taken * LARGE <= CAPACITY_BYTES / SHARE_OF_FREE, "{taken}");
        let all = (2..CAPACITY as u128).filter(|webhook| room.reserve(Uuid::from_u128(*webhook), LARGE)).count();
        assert_eq!((taken + all) * LARGE, CAPACITY_BYTES);
        assert_eq!(room.free_bytes(), 0);
        assert!(!room.reserve(Uuid::from_u128(77_777), 1));
        (0..taken).for_each(|_| room.release(slow, LARGE));
        assert_eq!(room.free_bytes(), taken * LARGE);
        // One that is larger than everything goes when nothing else is held.
        let room = Room::default();
        assert!(room.reserve(slow, 2 * CAPACITY_BYTES));
        assert!(!room.reserve(Uuid::from_u128(2), 1));
        room.release(slow, 2 * CAPACITY_BYTES);
        assert_eq!((room.free_bytes(), room.free()), (CAPACITY_BYTES, CAPACITY));
    }

    #[test]
    fn many_slow_webhooks_cannot_take_all_the_room_either() {
        let room = Room::default();
        while (0..100).filter(|slow| room.reserve(Uuid::from_u128(*slow), 1)).count() > 0 {}
        assert!(room.free_for(Uuid::from_u128(1_000)) >= 10, "{}", room.free());
    }

    #[test]
    fn the_room_is_bounded_over_all_webhooks() {
        let room = Room::default();
        let taken = (0..2 * CAPACITY as u128).filter(|webhook| room.reserve(Uuid::from_u128(*webhook), 1)).count();
        assert_eq!(taken, CAPACITY);
        assert_eq!(room.free(), 0);
    }
}
