//! The hand-off: passes fresh deliveries from the transaction that stores them to the dispatcher of
//! the same process. They are already leased, so they need not be claimed. Deliveries that exceed
//! the budget wait in the store and are claimed from there.
//!
//! Deliveries are handed off after their transaction has committed: nothing is sent that the store
//! does not know. Those that wait for others of their webhook are handed off when the one before has
//! ended.

mod budget;
mod load;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use uuid::Uuid;

pub use self::budget::{
    CAPACITY, CAPACITY_BYTES, ClaimLimits, DETACHED, DeliveryBudget, HandoffCounters, PER_WEBHOOK,
};
pub use self::load::{HANGING, RESPONSIVE, Speed};
use crate::domain::delivery::{Delivery, Lease, NewDelivery, Place};
use crate::domain::event::Event;
use crate::domain::webhook::SealedTarget;

/// Deliveries that were just stored. The budget for each is reserved.
#[derive(Debug)]
pub struct FreshDeliveries {
    pub deliveries: Vec<Delivery>,
    /// The webhooks as the transaction read them, at `read_at` or later.
    pub targets: Vec<SealedTarget>,
    pub read_at: Instant,
}

/// The sending end. The channel needs no bound: the budget has one.
#[derive(Clone, Debug)]
pub struct Handoff {
    pub budget: DeliveryBudget,
    sender: mpsc::UnboundedSender<FreshDeliveries>,
}

/// Creates the two ends of a hand-off.
pub fn handoff() -> (Handoff, mpsc::UnboundedReceiver<FreshDeliveries>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (
        Handoff {
            budget: DeliveryBudget::default(),
            sender,
        },
        receiver,
    )
}

impl Handoff {
    /// Passes deliveries to the dispatcher. If it has ended, releases their budget and returns them:
    /// another replica claims them when their leases end.
    pub fn send(&self, fresh: FreshDeliveries) -> Vec<Delivery> {
        let Err(refused) = self.sender.send(fresh) else {
            return Vec::new();
        };

        let deliveries = refused.0.deliveries;
        self.release(&deliveries);
        deliveries
    }

    fn release(&self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            self.budget.release(delivery.webhook, delivery.bytes());
        }
    }

    /// Whether the dispatcher has ended.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Passes leased deliveries to the dispatcher, as far as the budget allows. Returns the others:
    /// the caller releases their leases.
    pub fn offer(&self, deliveries: Vec<Delivery>) -> Vec<Delivery> {
        let is_admitted =
            |delivery: &Delivery| self.budget.reserve(delivery.webhook, delivery.bytes());
        let (admitted, mut refused): (Vec<Delivery>, Vec<Delivery>) =
            deliveries.into_iter().partition(is_admitted);
        let fresh = FreshDeliveries {
            deliveries: admitted,
            targets: Vec::new(),
            read_at: Instant::now(),
        };

        refused.extend(self.send(fresh));
        refused
    }
}

/// The deliveries of one transaction that are to be handed off. Dropping the batch releases the
/// budget of those that were not sent.
pub struct HandoffBatch<'a> {
    handoff: Option<&'a Handoff>,
    lease: Lease,
    read_at: Instant,
    deliveries: Vec<Delivery>,
}

impl<'a> HandoffBatch<'a> {
    /// Starts a batch for a transaction that reads webhooks after `read_at`. Without a dispatcher
    /// in this process it stays empty.
    pub fn new(handoff: Option<&'a Handoff>, lease: Lease, read_at: Instant) -> Self {
        HandoffBatch {
            handoff,
            lease,
            read_at,
            deliveries: Vec::new(),
        }
    }

    /// Adds a delivery if the budget allows. Then it must be stored under the lease.
    pub fn add(&mut self, event: &Event, new: &NewDelivery, activation: i32) -> bool {
        let is_admitted = self
            .handoff
            .is_some_and(|handoff| handoff.budget.reserve(new.webhook, event.data.len()));

        if is_admitted {
            self.deliveries.push(Delivery {
                id: new.id,
                webhook: new.webhook,
                event: event.id,
                kind: event.kind,
                occurred_at: event.occurred_at,
                data: Arc::clone(&event.data),
                round: 1,
                attempt: 1,
                sequence: new.sequence,
                order_key: new.order_key,
                activation,
                lease: self.lease,
            });
        }

        is_admitted
    }

    /// Gives the deliveries that have no row their places, and returns all deliveries.
    pub fn place(&mut self) -> &[Delivery] {
        let has_place = |delivery: &Delivery| delivery.order_key.is_none();
        let of = self.deliveries.iter().filter(|one| has_place(one)).count();
        let placed = self.deliveries.iter_mut().filter(|one| has_place(one));

        for (index, delivery) in placed.enumerate() {
            delivery.lease.place = Some(Place { index, of });
        }

        &self.deliveries
    }

    /// Sends the deliveries, except those in `parked`, with the webhooks that the transaction has
    /// read.
    pub fn send(mut self, parked: &HashSet<Uuid>, targets: Vec<SealedTarget>) {
        let (waiting, deliveries): (Vec<Delivery>, Vec<Delivery>) =
            std::mem::take(&mut self.deliveries)
                .into_iter()
                .partition(|delivery| parked.contains(&delivery.id));
        self.deliveries = waiting;

        let Some(handoff) = self.handoff.filter(|_| !deliveries.is_empty()) else {
            return;
        };

        handoff.send(FreshDeliveries {
            deliveries,
            targets,
            read_at: self.read_at,
        });
    }
}

impl Drop for HandoffBatch<'_> {
    fn drop(&mut self) {
        if let Some(handoff) = self.handoff {
            handoff.release(&self.deliveries);
        }
    }
}
