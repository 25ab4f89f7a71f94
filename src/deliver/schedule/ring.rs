//! The queues of one class of deliveries, one for each webhook, served round-robin. No I/O.

use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

use super::congestion::Congestion;
use super::fair_queue::Limits;
use crate::domain::delivery::Delivery;
use crate::handoff::{Counters, Permit, Speed, SpeedChange};

/// A webhook may hold this fraction of the free permits, besides its own limit (a dynamic threshold): the more receivers hang, the
/// fewer permits each of them holds.
const SHARE_OF_FREE: usize = 2;

/// What decides which webhooks get a permit.
#[derive(Clone, Copy)]
pub struct Permits<'a> {
    pub counters: &'a Counters,
    pub limits: Limits,
    pub congestion: &'a Congestion,
    /// The kind of permit that a request of this class gets.
    pub permit: Permit,
}

/// The queues of one class. Each webhook that has a queue is in the order of its speed, once.
#[derive(Debug, Default)]
pub struct Ring {
    queues: HashMap<Uuid, VecDeque<Delivery>>,
    orders: [Order; Speed::ALL.len()],
    queued: usize,
    /// Whose turn it is, if webhooks of several speeds wait.
    turn: usize,
}

/// The order in which the webhooks of one speed are served.
#[derive(Debug, Default)]
struct Order {
    webhooks: VecDeque<Uuid>,
    /// The share of the free permits at which no webhook was below this share and its own limit. None if a webhook has changed since.
    /// Thousands of webhooks may all wait for receivers that hang, and are not visited again each time.
    used_up: Option<usize>,
}

impl Order {
    fn push(&mut self, webhook: Uuid) {
        self.webhooks.push_back(webhook);
        self.used_up = None;
    }
}

impl Ring {
    pub fn push(&mut self, delivery: Delivery, speed: Speed) {
        let webhook = delivery.webhook;
        let queue = self.queues.entry(webhook).or_default();
        queue.push_back(delivery);
        self.queued += 1;
        if queue.len() == 1 {
            self.orders[speed as usize].push(webhook);
        }
    }

    /// Takes the next delivery for which there is a permit.
    pub fn pop(&mut self, permits: Permits<'_>) -> Option<Delivery> {
        let mut speeds = Speed::ALL.into_iter().cycle().skip(self.turn).take(Speed::ALL.len());
        let (speed, delivery) = speeds.find_map(|speed| Some((speed, self.pop_of(speed, permits)?)))?;
        self.turn = (speed as usize + 1) % Speed::ALL.len();
        Some(delivery)
    }

    /// Takes the next delivery of a webhook of this speed.
    fn pop_of(&mut self, speed: Speed, permits: Permits<'_>) -> Option<Delivery> {
        let Permits { counters, limits, congestion, permit } = permits;
        let free = counters.free_permits(limits.total, speed, permit);
        if free == 0 {
            return None;
        }
        let share = free.div_ceil(SHARE_OF_FREE);
        let order = &mut self.orders[speed as usize];
        if order.used_up.is_some_and(|used_up| share <= used_up) {
            return None;
        }
        for _ in 0..order.webhooks.len() {
            let webhook = order.webhooks.pop_front()?;
            if counters.in_flight_of(webhook) >= congestion.limit(webhook).min(share) {
                order.webhooks.push_back(webhook);
                continue;
            }
            let queue = self.queues.get_mut(&webhook)?;
            let delivery = queue.pop_front()?;
            if queue.is_empty() {
                self.queues.remove(&webhook);
            } else {
                order.webhooks.push_back(webhook);
            }
            self.queued -= 1;
            return Some(delivery);
        }
        order.used_up = Some(share);
        None
    }

    /// Moves a webhook whose speed has changed to its new order, if it has a queue.
    pub fn move_queue(&mut self, webhook: Uuid, change: SpeedChange) {
        let from = &mut self.orders[change.from as usize].webhooks;
        if let Some(position) = from.iter().position(|other| *other == webhook) {
            from.remove(position);
            self.orders[change.to as usize].push(webhook);
        }
    }

    /// Notes that a request to a webhook of this speed has ended.
    pub fn note_finished(&mut self, speed: Speed) {
        self.orders[speed as usize].used_up = None;
    }

    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn into_deliveries(self) -> impl Iterator<Item = Delivery> {
        self.queues.into_values().flatten()
    }
}
