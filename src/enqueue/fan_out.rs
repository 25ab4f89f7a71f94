//! Fan-out: from events to the deliveries to store, and the reservations for those that go to the
//! local dispatcher.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::domain::event::{Event, UserId, delivery_id};
use crate::domain::sequence::Sequences;
use crate::domain::subject::Subject;
use crate::domain::webhook::SealedTarget;
use crate::store::enqueue::{NewDelivery, Subscription};
use crate::store::order::OrderedDelivery;

/// The events that one statement stores. Each may have fifty deliveries.
pub const EVENTS_AT_ONCE: usize = 256;

/// The webhooks of each user.
pub type Subscriptions = HashMap<UserId, Vec<Subscription>>;

/// The deliveries and missed events of a list of events.
#[derive(Debug, Default)]
pub struct FannedOut {
    pub deliveries: Vec<NewDelivery>,
    /// Deliveries that may have to wait for others.
    pub ordered: Vec<OrderedDelivery>,
    /// Webhook and event, for each event that an inactive webhook misses. Events that its filter
    /// excludes are not missed.
    pub missed: Vec<(Uuid, Uuid)>,
}

/// Fans out `events`, and numbers each webhook's deliveries in the order of the events. `keeps`
/// decides which deliveries go to the local dispatcher, with its order key and its webhook.
///
/// If the transaction fails after deliveries were handed off, the next one numbers them again: from
/// the same number, unless a recovery has made deliveries of the same webhook in between. Then a
/// receiver sees a delivery under two numbers.
pub fn fan_out(
    events: &[Event],
    subscriptions: &Subscriptions,
    sequences: &mut Sequences,
    mut keeps: impl FnMut(&Event, &NewDelivery, Option<i64>, &SealedTarget) -> bool,
) -> FannedOut {
    let mut fanned_out = FannedOut::default();
    let mut keys = HashSet::new();

    for event in events {
        let webhooks = subscriptions.get(&event.user).into_iter().flatten();
        let subject = Subject::from(event);
        for subscription in webhooks.filter(|subscription| subscription.wants(&subject)) {
            let webhook = subscription.target.webhook;

            if !subscription.target.active {
                fanned_out.missed.push((webhook, event.id));
                continue;
            }

            let id = delivery_id(event.id, webhook);
            let sequence = sequences.next(webhook);

            let mut delivery = NewDelivery {
                id,
                webhook,
                event: event.id,
                leased: false,
                sequence,
            };

            let Some(key) = subscription.ordering.key(|| subject.release()) else {
                delivery.leased = keeps(event, &delivery, None, &subscription.target);
                fanned_out.deliveries.push(delivery);
                continue;
            };

            let is_first = keys.insert((webhook, key));
            delivery.leased = is_first && keeps(event, &delivery, Some(key), &subscription.target);
            fanned_out.ordered.push(OrderedDelivery {
                delivery,
                key,
                is_first,
            });
        }
    }

    fanned_out
}
