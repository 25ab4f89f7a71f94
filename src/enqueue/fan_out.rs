//! Who gets an event: the deliveries to store, and those of them that this process keeps at hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use crate::domain::delivery::{Delivery, Lease};
use crate::domain::event::{Event, UserId, delivery_id};
use crate::handoff::{Committing, Handed, Handoff};
use crate::store::enqueue::{NewDelivery, Subscription};

/// Events that are stored together with all of their deliveries: each may go to fifty webhooks.
pub const EVENTS_AT_ONCE: usize = 256;

/// What follows from events.
#[derive(Debug, Default)]
pub struct FannedOut {
    pub deliveries: Vec<NewDelivery>,
    /// What webhooks miss by being inactive: webhook and event.
    pub missed: Vec<(Uuid, Uuid)>,
}

/// What follows from `events`; `keeps` says which deliveries this process keeps.
pub fn fan_out(
    events: &[Event],
    subscriptions: &HashMap<UserId, Vec<Subscription>>,
    mut keeps: impl FnMut(&Event, &NewDelivery) -> bool,
) -> FannedOut {
    let mut fanned_out = FannedOut::default();
    for event in events {
        let webhooks = subscriptions.get(&event.user).into_iter().flatten();
        for subscription in webhooks.filter(|subscription| subscription.events.contains(&event.kind)) {
            let webhook = subscription.target.webhook;
            if !subscription.target.active {
                fanned_out.missed.push((webhook, event.id));
                continue;
            }
            let id = delivery_id(event.id, webhook);
            let mut delivery = NewDelivery { id, webhook, event: event.id, leased: false };
            delivery.leased = keeps(event, &delivery);
            fanned_out.deliveries.push(delivery);
        }
    }
    fanned_out
}

/// Deliveries that have a place with the dispatcher. The places go back unless they are handed over.
pub struct Reserved<'a> {
    handoff: Option<&'a Handoff>,
    lease: Lease,
    read_at: Instant,
    held: Vec<Delivery>,
}

impl<'a> Reserved<'a> {
    /// For a transaction that asks for subscriptions after `read_at`.
    pub fn new(handoff: Option<&'a Handoff>, lease: Lease, read_at: Instant) -> Self {
        Reserved { handoff, lease, read_at, held: Vec::new() }
    }

    /// Takes a place for a delivery, if there is one.
    pub fn take(&mut self, event: &Event, delivery: &NewDelivery) -> bool {
        if !self.handoff.is_some_and(|handoff| handoff.room.reserve(delivery.webhook, event.data.len())) {
            return false;
        }
        self.held.push(Delivery {
            id: delivery.id,
            webhook: delivery.webhook,
            event: event.id,
            kind: event.kind,
            occurred_at: event.occurred_at,
            data: Arc::clone(&event.data),
            round: 1,
            attempt: 1,
            lease: self.lease,
        });
        true
    }

    /// With the subscriptions that the transaction found. While the answer is kept, the deliveries count as not committed.
    pub fn hand_over(mut self, subscriptions: HashMap<UserId, Vec<Subscription>>) -> Option<Committing<'a>> {
        let handoff = self.handoff?;
        let deliveries = std::mem::take(&mut self.held);
        if deliveries.is_empty() {
            return None;
        }
        let targets = subscriptions.into_values().flatten().map(|subscription| subscription.target).collect();
        let committing = handoff.committing(self.lease.token);
        if let Err(refused) = handoff.sender.send(Handed { deliveries, targets, read_at: self.read_at }) {
            // The dispatcher has ended: the leases run out and another replica takes over.
            self.held = refused.0.deliveries;
        }
        Some(committing)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let Some(handoff) = self.handoff else { return };
        for delivery in &self.held {
            handoff.room.release(delivery.webhook, delivery.bytes());
        }
    }
}
