//! The waiting deliveries of one class, in a queue for each webhook. No I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};

use uuid::Uuid;

use crate::domain::delivery::{Delivery, DeliveryClass};
use crate::handoff::{HandoffCounters, Speed};

/// A webhook may hold this fraction of the free permits, besides its own limit (a dynamic
/// threshold): the more receivers hang, the fewer permits each of them holds.
const SHARE_OF_FREE: usize = 2;

/// What a webhook has in flight, in both classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InFlight {
    /// Whether the webhook's own limit allows no more.
    pub is_at_limit: bool,
    pub requests: usize,
}

impl InFlight {
    /// Whether one more request may start if no webhook may have more than `share`.
    fn allows(self, share: usize) -> bool {
        !self.is_at_limit && self.requests < share
    }
}

/// The place of a webhook among those of its speed: the one with the fewest requests in flight
/// comes first, of several the one that was served longest ago, and those at their own limit come
/// last. So if the first may start no request, none may: thousands that wait for receivers that
/// hang need not be visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    in_flight: InFlight,
    turn: u64,
}

/// The queue of one webhook. It is not empty.
#[derive(Debug)]
struct WebhookQueue {
    deliveries: VecDeque<Delivery>,
    speed: Speed,
    place: Place,
}

/// The queues of one class.
#[derive(Debug, Default)]
pub struct ClassQueue {
    queues: HashMap<Uuid, WebhookQueue>,
    /// The webhooks that have a queue, by speed.
    orders: [BTreeMap<Place, Uuid>; Speed::ALL.len()],
    queued: usize,
    /// Which speed is served first, if webhooks of several speeds wait.
    next_speed: usize,
    next_turn: u64,
}

impl ClassQueue {
    /// Queues a delivery of a webhook that has this speed and these requests in flight.
    pub fn push(&mut self, delivery: Delivery, speed: Speed, in_flight: InFlight) {
        let webhook = delivery.webhook;
        self.queued += 1;

        if let Some(queue) = self.queues.get_mut(&webhook) {
            queue.deliveries.push_back(delivery);
            return;
        }

        let place = Place {
            in_flight,
            turn: self.take_turn(),
        };

        self.orders[speed as usize].insert(place, webhook);

        self.queues.insert(
            webhook,
            WebhookQueue {
                deliveries: VecDeque::from([delivery]),
                speed,
                place,
            },
        );
    }

    /// Takes the next delivery for which there is a permit of `permits` in total. The deliveries are
    /// of this class.
    pub fn pop(
        &mut self,
        counters: &HandoffCounters,
        permits: usize,
        class: DeliveryClass,
    ) -> Option<Delivery> {
        let mut speeds = Speed::ALL
            .into_iter()
            .cycle()
            .skip(self.next_speed)
            .take(Speed::ALL.len());
        let (speed, webhook) = speeds.find_map(|speed| {
            let share = counters
                .free_permits(permits, speed, class)
                .div_ceil(SHARE_OF_FREE);
            let (place, webhook) = self.orders[speed as usize].first_key_value()?;
            place.in_flight.allows(share).then_some((speed, *webhook))
        })?;

        let turn = self.take_turn();
        let queue = self.queues.get_mut(&webhook)?;
        let delivery = queue.deliveries.pop_front()?;
        let order = &mut self.orders[speed as usize];

        order.remove(&queue.place);
        queue.place.turn = turn;

        if queue.deliveries.is_empty() {
            self.queues.remove(&webhook);
        } else {
            order.insert(queue.place, webhook);
        }

        self.next_speed = (speed as usize + 1) % Speed::ALL.len();
        self.queued -= 1;

        Some(delivery)
    }

    /// Notes the speed of a webhook and what it has in flight, if it has a queue.
    pub fn update(&mut self, webhook: Uuid, speed: Speed, in_flight: InFlight) {
        let Some(queue) = self.queues.get_mut(&webhook) else {
            return;
        };

        let place = Place {
            in_flight,
            ..queue.place
        };

        if (speed, place) != (queue.speed, queue.place) {
            self.orders[queue.speed as usize].remove(&queue.place);
            self.orders[speed as usize].insert(place, webhook);
            (queue.speed, queue.place) = (speed, place);
        }
    }

    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn into_deliveries(self) -> impl Iterator<Item = Delivery> {
        self.queues.into_values().flat_map(|queue| queue.deliveries)
    }

    fn take_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }
}
