//! The hand-off: passes fresh deliveries from the transaction that stores them to the dispatcher of the same process. They are already
//! leased, so they need not be claimed. Deliveries that exceed the budget wait in the store and are claimed from there.
//!
//! Deliveries are handed off before their transaction commits, so that requests do not wait for the store. If the commit fails, the
//! same changes are read again and lead to the same delivery ids. An answer that arrives before the store knows the delivery is
//! kept by the recording stage until the commit or the end of the lease, whichever is first.

mod budget;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use uuid::Uuid;

pub use self::budget::{
    CAPACITY, CAPACITY_BYTES, ClaimLimits, Counters, DeliveryBudget, PER_WEBHOOK, RESPONSIVE, unproven_share,
};
use crate::domain::delivery::{Delivery, Lease};
use crate::domain::event::Event;
use crate::domain::webhook::SealedTarget;

/// Deliveries that are being stored. The budget for each is reserved.
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
    (Handoff { budget: DeliveryBudget::default(), sender }, receiver)
}

impl Handoff {
    /// Passes deliveries to the dispatcher. Returns them if it has ended: another replica claims them when their leases end.
    pub fn send(&self, fresh: FreshDeliveries) -> Result<(), FreshDeliveries> {
        self.sender.send(fresh).map_err(|refused| refused.0)
    }
}

/// The deliveries of one transaction that are to be handed off. If the batch is dropped before it is sent, their budget is released.
pub struct HandoffBatch<'a> {
    handoff: Option<&'a Handoff>,
    lease: Lease,
    read_at: Instant,
    deliveries: Vec<Delivery>,
}

impl<'a> HandoffBatch<'a> {
    /// Starts a batch for a transaction that reads webhooks after `read_at`. Without a dispatcher in this process it stays empty.
    pub fn new(handoff: Option<&'a Handoff>, lease: Lease, read_at: Instant) -> Self {
        HandoffBatch { handoff, lease, read_at, deliveries: Vec::new() }
    }

    /// Adds a delivery if the budget allows. Then it must be stored under the lease.
    pub fn add(&mut self, event: &Event, id: Uuid, webhook: Uuid) -> bool {
        if !self.handoff.is_some_and(|handoff| handoff.budget.reserve(webhook, event.data.len())) {
            return false;
        }
        self.deliveries.push(Delivery {
            id,
            webhook,
            event: event.id,
            kind: event.kind,
            occurred_at: event.occurred_at,
            data: Arc::clone(&event.data),
            round: 1,
            attempt: 1,
            // Set when the batch is sent, with the webhooks.
            activation: 0,
            lease: self.lease,
        });
        true
    }

    /// Sends the deliveries, with the webhooks that the transaction has read.
    pub fn send(mut self, targets: impl IntoIterator<Item = SealedTarget>) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        let Some(handoff) = self.handoff.filter(|_| !deliveries.is_empty()) else { return };
        let targets: Vec<SealedTarget> = targets.into_iter().collect();
        let activations: HashMap<Uuid, i32> = targets
            .iter()
            .map(|target| (target.webhook, target.activation))
            .filter(|(_, activation)| *activation != 0)
            .collect();
        if !activations.is_empty() {
            for delivery in &mut deliveries {
                delivery.activation = activations.get(&delivery.webhook).copied().unwrap_or_default();
            }
        }
        let fresh = FreshDeliveries { deliveries, targets, read_at: self.read_at };
        if let Err(refused) = handoff.send(fresh) {
            self.deliveries = refused.deliveries;
        }
    }
}

impl Drop for HandoffBatch<'_> {
    fn drop(&mut self) {
        let Some(handoff) = self.handoff else { return };
        for delivery in &self.deliveries {
            handoff.budget.release(delivery.webhook, delivery.bytes());
        }
    }
}
