//! Who gets an event: the deliveries to store, and those of them that this process keeps at hand.

use std::collections::HashMap;

use uuid::Uuid;

use crate::domain::event::{Event, UserId, delivery_id};
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
