//! Fan-out: from events to the deliveries to store, and the reservations for those that go to the local dispatcher.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use crate::domain::delivery::{Delivery, Lease};
use crate::domain::event::{Event, UserId, delivery_id};
use crate::handoff::{Committing, Handed, Handoff};
use crate::store::enqueue::{NewDelivery, Subscription};

/// The events that one statement stores. Each may have fifty deliveries.
pub const EVENTS_AT_ONCE: usize = 256;

/// The webhooks of each user.
pub type Subscriptions = HashMap<UserId, Vec<Subscription>>;

/// The deliveries and missed events of a list of events.
#[derive(Debug, Default)]
pub struct FannedOut {
    pub deliveries: Vec<NewDelivery>,
    /// Webhook and event, for each event that an inactive webhook misses.
    pub missed: Vec<(Uuid, Uuid)>,
}

/// Fans out `events`. `keeps` decides which deliveries go to the local dispatcher.
pub fn fan_out(
    events: &[Event],
    subscriptions: &Subscriptions,
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

/// Deliveries with a reservation at the local dispatcher. Reservations are released unless the deliveries are handed over.
pub struct Reserved<'a> {
    handoff: Option<&'a Handoff>,
    lease: Lease,
    read_at: Instant,
    held: Vec<Delivery>,
}

impl<'a> Reserved<'a> {
    /// For a transaction that reads subscriptions after `read_at`.
    pub fn new(handoff: Option<&'a Handoff>, lease: Lease, read_at: Instant) -> Self {
        Reserved { handoff, lease, read_at, held: Vec::new() }
    }

    /// Reserves capacity for a delivery. Returns false if there is none.
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

    /// Hands the deliveries over with the subscriptions that the transaction read. They count as uncommitted until the returned
    /// value is dropped.
    pub fn hand_over(mut self, subscriptions: Subscriptions) -> Option<Committing<'a>> {
        let handoff = self.handoff?;
        let deliveries = std::mem::take(&mut self.held);
        if deliveries.is_empty() {
            return None;
        }
        let targets = subscriptions.into_values().flatten().map(|subscription| subscription.target).collect();
        let committing = handoff.committing(self.lease.token);
        if let Err(refused) = handoff.sender.send(Handed { deliveries, targets, read_at: self.read_at }) {
            // The dispatcher has stopped: the leases expire and another replica takes over.
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
