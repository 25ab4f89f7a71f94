//! A store in memory with the contract of the real one: each statement does what its SQL does. The
//! stages' own transactions run on it (`walhook::store::contract`). The model test in
//! `tests/delivery/model` holds it to the real store.
//!
//! A transaction has the store for itself, so it can be aborted but never conflicts with another.

mod claim;
mod enqueue;
mod jobs;
mod manage;
mod record;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;
use walhook::domain::delivery::{Delivery, Lease, Outcome};
use walhook::domain::event::{EventKind, UserId};
use walhook::domain::ordering::Ordering;
use walhook::domain::webhook::SealedTarget;
use walhook::store::order::{Key, PromotionLease};

pub use jobs::MemoryJob;
pub use manage::{Redelivered, Switching};
pub use table::{Journal, Table};

/// A pending delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub webhook: Uuid,
    pub event: Uuid,
    pub round: u16,
    pub attempt: u16,
    pub lease: Option<Uuid>,
    /// None while it is parked.
    pub due_at: Option<Timestamp>,
    pub sequence: Option<i64>,
    pub order_key: Option<i64>,
}

/// Why a row is in the attempt log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The attempt was made under the current lease.
    Counted,
    /// The delivery was redelivered or cancelled while the attempt was in flight.
    Superseded,
    /// The store cancelled the delivery.
    Cancelled,
}

/// A row of the attempt log.
#[derive(Clone, Debug)]
pub struct Line {
    pub id: Uuid,
    pub webhook: Uuid,
    pub delivery: Uuid,
    pub event: Uuid,
    pub round: u16,
    pub attempt: u16,
    pub outcome: Outcome,
    pub started_at: Timestamp,
    pub sequence: Option<i64>,
    pub reason: Reason,
    /// The lease under which the attempt was made.
    pub lease: Option<Uuid>,
    /// Whether it counts as a failure of the receiver.
    pub is_failure: bool,
    /// When it was recorded, by the store's clock.
    pub at: Timestamp,
    /// The transaction that recorded it.
    pub transaction: u64,
}

#[derive(Clone, Debug)]
pub struct Webhook {
    pub user: UserId,
    pub target: SealedTarget,
    pub events: Vec<EventKind>,
    pub ordering: Ordering,
    pub successes: u64,
    pub failures: u64,
    pub consecutive_failures: u64,
    pub failing_since: Option<Timestamp>,
    pub warned_at: Option<Timestamp>,
    pub disabled_at: Option<Timestamp>,
    /// The rows of the attempt log that `failures` counts begin here.
    pub counted_from: usize,
}

#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub user: UserId,
    pub kind: EventKind,
    pub label: Option<i64>,
    pub occurred_at: Timestamp,
    pub data: Arc<str>,
    pub number: i64,
    /// The transaction that stored it.
    pub transaction: u64,
}

/// A change of who holds a delivery.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub delivery: Uuid,
    /// None if the lease was ended.
    pub lease: Option<Uuid>,
    pub transaction: u64,
}

/// A delivery that was created.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    pub delivery: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    pub sequence: Option<i64>,
    pub order_key: Option<i64>,
    pub at: Timestamp,
    pub transaction: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    Warning,
    Disabled,
}

/// A notice for a webhook's owner.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    pub kind: NoticeKind,
    pub webhook: Uuid,
    pub transaction: u64,
}

/// A webhook was switched on or off.
#[derive(Clone, Copy, Debug)]
pub struct Switched {
    pub webhook: Uuid,
    pub active: bool,
    pub at: Timestamp,
    pub transaction: u64,
}

/// The tables. The journals are more than the real store has: they are what the invariants are
/// checked on.
#[derive(Debug)]
pub struct State {
    /// The store's clock.
    pub now: Timestamp,
    pub deliveries: Table<Uuid, Row>,
    pub webhooks: Table<Uuid, Webhook>,
    pub events: Table<Uuid, StoredEvent>,
    pub sequences: Table<Uuid, i64>,
    pub rounds: Table<Uuid, u16>,
    /// Delivery and lease.
    pub superseded: Table<(Uuid, Uuid), ()>,
    /// Webhook and event.
    pub missed: Table<(Uuid, Uuid), ()>,
    pub jobs: Table<Uuid, MemoryJob>,
    /// Replay and event.
    pub exclusions: Table<(Uuid, Uuid), ()>,
    /// How many changes of the stream are stored.
    pub checkpoint: Table<(), u64>,
    pub log: Journal<Line>,
    pub notices: Journal<Notice>,
    pub created: Journal<Created>,
    pub grants: Journal<Grant>,
    pub switched: Journal<Switched>,
    /// The number of the current transaction.
    pub transaction: u64,
    last_id: u64,
}

pub struct MemoryStore {
    state: State,
}

/// A transaction. Dropping it without [`commit`](Self::commit) rolls it back.
pub struct MemoryTransaction<'a> {
    state: Mutex<&'a mut State>,
    /// The superseded attempts that this transaction has taken.
    late: Mutex<BTreeSet<(Uuid, Uuid)>>,
}

/// Adds a duration to a time.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at + SignedDuration::try_from(by).expect("a wait is shorter than centuries")
}

impl MemoryStore {
    pub fn new(now: Timestamp) -> MemoryStore {
        let state = State {
            now,
            deliveries: Table::default(),
            webhooks: Table::default(),
            events: Table::default(),
            sequences: Table::default(),
            rounds: Table::default(),
            superseded: Table::default(),
            missed: Table::default(),
            jobs: Table::default(),
            exclusions: Table::default(),
            checkpoint: Table::default(),
            log: Journal::default(),
            notices: Journal::default(),
            created: Journal::default(),
            grants: Journal::default(),
            switched: Journal::default(),
            transaction: 0,
            last_id: 0,
        };
        MemoryStore { state }
    }

    pub fn set_now(&mut self, now: Timestamp) {
        self.state.now = now;
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn begin(&mut self) -> MemoryTransaction<'_> {
        self.state.transaction += 1;
        MemoryTransaction {
            state: Mutex::new(&mut self.state),
            late: Mutex::default(),
        }
    }
}

impl<'a> MemoryTransaction<'a> {
    pub fn commit(self) {
        self.state().end(true);
    }

    /// The tables, inside the transaction.
    pub fn state(&self) -> MutexGuard<'_, &'a mut State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl Drop for MemoryTransaction<'_> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.lock() {
            state.end(false);
        }
    }
}

impl State {
    fn end(&mut self, is_committed: bool) {
        self.deliveries.end(is_committed);
        self.webhooks.end(is_committed);
        self.events.end(is_committed);
        self.sequences.end(is_committed);
        self.rounds.end(is_committed);
        self.superseded.end(is_committed);
        self.missed.end(is_committed);
        self.jobs.end(is_committed);
        self.exclusions.end(is_committed);
        self.checkpoint.end(is_committed);
        self.log.end(is_committed);
        self.notices.end(is_committed);
        self.created.end(is_committed);
        self.grants.end(is_committed);
        self.switched.end(is_committed);
    }

    /// A UUIDv7 of now, as the real store generates for the rows of cancelled deliveries.
    pub fn next_id(&mut self) -> Uuid {
        self.last_id += 1;
        let millis = u64::try_from(self.now.as_millisecond()).unwrap_or(0);
        let [.., a, b, c, d, e, f, g, h] = self.last_id.to_be_bytes();
        uuid::Builder::from_unix_timestamp_millis(millis, &[0, 0, a, b, c, d, e, f, g, h])
            .into_uuid()
    }

    /// Leases a delivery, or ends its lease.
    pub fn grant(&mut self, delivery: Uuid, lease: Option<Uuid>, due_at: Timestamp) {
        let row = self
            .deliveries
            .get(&delivery)
            .cloned()
            .expect("only pending deliveries are leased");
        self.grants.push(Grant {
            delivery,
            lease,
            transaction: self.transaction,
        });

        self.deliveries.put(
            delivery,
            Row {
                lease,
                due_at: Some(due_at),
                ..row
            },
        );
    }

    pub fn remove_delivery(&mut self, delivery: Uuid) -> Option<Row> {
        self.grants.push(Grant {
            delivery,
            lease: None,
            transaction: self.transaction,
        });
        self.deliveries.remove(&delivery)
    }

    fn switch(&mut self, webhook: Uuid, active: bool) {
        self.switched.push(Switched {
            webhook,
            active,
            at: self.now,
            transaction: self.transaction,
        });
    }

    /// The pending deliveries of each webhook, in order of webhook and id.
    pub fn by_webhook(&self) -> BTreeMap<Uuid, Vec<(Uuid, &Row)>> {
        let mut by_webhook: BTreeMap<Uuid, Vec<(Uuid, &Row)>> = BTreeMap::new();

        for (id, row) in self.deliveries.iter() {
            by_webhook.entry(row.webhook).or_default().push((*id, row));
        }

        by_webhook
    }

    /// The first pending delivery of an order key.
    pub fn first_of(&self, (webhook, key): Key) -> Option<Uuid> {
        let of_key = self
            .deliveries
            .iter()
            .filter(|(_, row)| row.webhook == webhook && row.order_key == Some(key));

        // Rows without a number are last.
        of_key
            .min_by_key(|(id, row)| (row.sequence.is_none(), row.sequence, **id))
            .map(|(id, _)| *id)
    }

    /// Makes the first delivery of each key due if it is parked, or leases it.
    pub fn promote(
        &mut self,
        keys: &BTreeSet<Key>,
        lease: Option<PromotionLease>,
    ) -> Vec<Delivery> {
        let firsts: BTreeSet<Uuid> = keys.iter().filter_map(|key| self.first_of(*key)).collect();
        let parked: Vec<Uuid> = firsts
            .into_iter()
            .filter(|id| self.deliveries[id].due_at.is_none())
            .collect();
        let mut promoted = Vec::new();
        let mut bytes = 0;

        for id in parked {
            let Some(PromotionLease {
                lease,
                length,
                max_bytes,
            }) = lease
            else {
                self.grant(id, None, self.now);
                continue;
            };

            self.grant(id, Some(lease.token), later(self.now, length));
            let Some(held) = self.held(id, lease) else {
                continue;
            };

            bytes += held.bytes();

            if bytes > max_bytes && !promoted.is_empty() {
                self.grant(id, None, self.now);
            } else {
                promoted.push(held);
            }
        }

        promoted
    }

    /// The delivery as a claim returns it. None if its event no longer exists.
    pub fn held(&self, id: Uuid, lease: Lease) -> Option<Delivery> {
        let row = &self.deliveries[&id];
        let event = self.events.get(&row.event)?;
        let activation = self
            .webhooks
            .get(&row.webhook)
            .map_or(0, |webhook| webhook.target.activation);

        Some(Delivery {
            id,
            webhook: row.webhook,
            event: row.event,
            kind: event.kind,
            occurred_at: event.occurred_at,
            data: Arc::clone(&event.data),
            round: row.round,
            attempt: row.attempt,
            sequence: row.sequence,
            order_key: row.order_key,
            activation,
            lease,
        })
    }

    /// Whether the webhook exists and is active.
    pub fn is_active(&self, webhook: Uuid) -> bool {
        self.webhooks
            .get(&webhook)
            .is_some_and(|webhook| webhook.target.active)
    }

    /// Cancels and logs up to `chunk` pending deliveries of a webhook, those first that are due
    /// first, and notes the attempts in flight. Returns how many.
    fn cancel(&mut self, webhook: Uuid, chunk: usize) -> usize {
        let of_webhook = self
            .deliveries
            .iter()
            .filter(|(_, row)| row.webhook == webhook);
        let mut pending: Vec<_> = of_webhook
            .map(|(id, row)| (row.attempt > 1, row.due_at.is_none(), row.due_at, *id))
            .collect();

        pending.sort_unstable();
        pending.truncate(chunk);

        for (.., id) in &pending {
            let (id, row) = (*id, self.remove_delivery(*id).expect("it is pending"));
            if let Some(lease) = row.lease.filter(|_| self.webhooks.contains_key(&webhook)) {
                self.superseded.put((id, lease), ());
            }

            if !self.events.contains_key(&row.event) {
                continue;
            }

            let id_of_line = self.next_id();
            self.log.push(Line {
                id: id_of_line,
                webhook,
                delivery: id,
                event: row.event,
                round: row.round,
                attempt: row.attempt,
                outcome: Outcome::Cancelled,
                started_at: self.now,
                sequence: row.sequence,
                reason: Reason::Cancelled,
                lease: None,
                is_failure: false,
                at: self.now,
                transaction: self.transaction,
            });
        }

        pending.len()
    }
}
