//! Fan-out: from events to the deliveries to store, and the reservations for those that go to the
//! local dispatcher.

use std::collections::HashMap;

use uuid::Uuid;

use crate::domain::delivery::NewDelivery;
use crate::domain::event::{Event, UserId};
use crate::domain::sequence::Sequences;
use crate::domain::subject::Subject;
use crate::store::enqueue::Subscription;

/// The events that one statement stores. Each may have fifty deliveries.
pub const EVENTS_AT_ONCE: usize = 256;

/// The webhooks of each user.
pub type Subscriptions = HashMap<UserId, Vec<Subscription>>;

/// The deliveries and missed events of a list of events.
#[derive(Debug, Default)]
pub struct FannedOut {
    /// Those that get rows.
    pub deliveries: Vec<NewDelivery>,
    /// Webhook and event, for each event that an inactive webhook misses. Events that its filter
    /// excludes are not missed.
    pub missed: Vec<(Uuid, Uuid)>,
}

/// Fans out `events`, and numbers each webhook's deliveries in the order of the events. `keeps`
/// decides which deliveries go to the local dispatcher.
pub fn fan_out(
    events: &[Event],
    subscriptions: &Subscriptions,
    sequences: &mut Sequences,
    mut keeps: impl FnMut(&Event, &NewDelivery, &Subscription) -> bool,
) -> FannedOut {
    let mut fanned_out = FannedOut::default();

    for event in events {
        let webhooks = subscriptions.get(&event.user).into_iter().flatten();
        let subject = Subject::from(event);
        for subscription in webhooks.filter(|subscription| subscription.wants(&subject)) {
            let webhook = subscription.target.webhook;

            if !subscription.target.active {
                fanned_out.missed.push((webhook, event.id));
                continue;
            }

            let order_key = subscription.ordering.key(|| subject.release());
            let mut delivery = sequences.delivery(webhook, event.id, order_key);
            delivery.leased = !delivery.is_parked && keeps(event, &delivery, subscription);

            if delivery.has_row() {
                fanned_out.deliveries.push(delivery);
            }
        }
    }

    fanned_out
}
