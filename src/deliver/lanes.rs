//! Whose turn it is: one lane a webhook, turns in a circle, and limits that keep slots free for those who are not slow. Pure.

use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

use crate::domain::delivery::Delivery;

/// A webhook may hold as many slots as this share of those still free, beside its own limit (a dynamic threshold): the more
/// receivers hang the fewer each of them holds, and the others find a free slot.
const SHARE_OF_FREE: usize = 2;

/// First attempts and later ones queue apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Fresh,
    Retry,
}

impl Class {
    pub fn of(delivery: &Delivery) -> Class {
        if delivery.attempt > 1 { Class::Retry } else { Class::Fresh }
    }

    fn other(self) -> Class {
        match self {
            Class::Fresh => Class::Retry,
            Class::Retry => Class::Fresh,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Slots over all webhooks.
    pub total: usize,
    pub per_webhook: usize,
}

impl Limits {
    /// Slots that retries may hold: while many receivers are down, what is new still goes out.
    fn retries(self) -> usize {
        (self.total / 2).max(1)
    }
}

/// Deliveries waiting for their turn, and the slots that are taken.
#[derive(Debug)]
pub struct Lanes {
    limits: Limits,
    fresh: Circle,
    retry: Circle,
    /// Slots taken, by webhook; absent where none is.
    in_flight: HashMap<Uuid, usize>,
    taken: usize,
    taken_by_retries: usize,
    /// Which class has the next turn where both have work.
    turn: Class,
}

/// The queues of one class. `order` holds each webhook that has a queue exactly once.
#[derive(Debug, Default)]
struct Circle {
    queues: HashMap<Uuid, VecDeque<Delivery>>,
    order: VecDeque<Uuid>,
    queued: usize,
}

impl Circle {
    fn push(&mut self, delivery: Delivery) {
        let webhook = delivery.webhook;
        let queue = self.queues.entry(webhook).or_default();
        if queue.is_empty() {
            self.order.push_back(webhook);
        }
        queue.push_back(delivery);
        self.queued += 1;
    }

    /// The first delivery of the next webhook in the circle that `may` have one. Those passed over have a slot already, so
    /// there are never more of them than slots.
    fn pop(&mut self, may: impl Fn(Uuid) -> bool) -> Option<Delivery> {
        for _ in 0..self.order.len() {
            let webhook = self.order.pop_front()?;
            if !may(webhook) {
                self.order.push_back(webhook);
                continue;
            }
            let queue = self.queues.get_mut(&webhook)?;
            let delivery = queue.pop_front()?;
            if queue.is_empty() {
                self.queues.remove(&webhook);
            } else {
                self.order.push_back(webhook);
            }
            self.queued -= 1;
            return Some(delivery);
        }
        None
    }

    fn drain(&mut self) -> impl Iterator<Item = Delivery> + use<> {
        std::mem::take(self).queues.into_values().flatten()
    }
}

impl Lanes {
    pub fn new(limits: Limits) -> Lanes {
        Lanes {
            limits,
            fresh: Circle::default(),
            retry: Circle::default(),
            in_flight: HashMap::new(),
            taken: 0,
            taken_by_retries: 0,
            turn: Class::Fresh,
        }
    }

    pub fn push(&mut self, delivery: Delivery) {
        self.circle(Class::of(&delivery)).push(delivery);
    }

    /// The next delivery to start; it has a slot from now on. Retries only if they `may_retry`.
    pub fn pop(&mut self, may_retry: bool) -> Option<Delivery> {
        let first = if may_retry { self.turn } else { Class::Fresh };
        let second = first.other();
        let delivery = match self.pop_class(first) {
            None if second == Class::Fresh || may_retry => self.pop_class(second)?,
            popped => popped?,
        };
        let class = Class::of(&delivery);
        self.turn = class.other();
        *self.in_flight.entry(delivery.webhook).or_default() += 1;
        self.taken += 1;
        self.taken_by_retries += usize::from(class == Class::Retry);
        Some(delivery)
    }

    fn pop_class(&mut self, class: Class) -> Option<Delivery> {
        let free = self.limits.total.saturating_sub(self.taken);
        if free == 0 || (class == Class::Retry && self.taken_by_retries >= self.limits.retries()) {
            return None;
        }
        let limit = self.limits.per_webhook.min(free.div_ceil(SHARE_OF_FREE));
        let Lanes { fresh, retry, in_flight, .. } = self;
        let circle = if class == Class::Fresh { fresh } else { retry };
        circle.pop(|webhook| in_flight.get(&webhook).is_none_or(|taken| *taken < limit))
    }

    /// Gives the slot of a popped delivery back.
    pub fn finish(&mut self, webhook: Uuid, class: Class) {
        let Some(taken) = self.in_flight.get_mut(&webhook) else { return };
        *taken -= 1;
        if *taken == 0 {
            self.in_flight.remove(&webhook);
        }
        self.taken -= 1;
        self.taken_by_retries -= usize::from(class == Class::Retry);
    }

    pub fn in_flight(&self) -> usize {
        self.taken
    }

    pub fn queued(&self) -> usize {
        self.fresh.queued + self.retry.queued
    }

    pub fn queued_retries(&self) -> usize {
        self.retry.queued
    }

    /// Each webhook with deliveries here, queued or started, and how many.
    pub fn held(&self) -> HashMap<Uuid, usize> {
        let mut held = self.in_flight.clone();
        for (webhook, queue) in self.fresh.queues.iter().chain(&self.retry.queues) {
            *held.entry(*webhook).or_default() += queue.len();
        }
        held
    }

    /// Takes out everything that waits.
    pub fn drain(&mut self) -> Vec<Delivery> {
        self.fresh.drain().chain(self.retry.drain()).collect()
    }

    fn circle(&mut self, class: Class) -> &mut Circle {
        match class {
            Class::Fresh => &mut self.fresh,
            Class::Retry => &mut self.retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::domain::delivery::Lease;
    use crate::domain::event::EventKind;

    fn delivery(webhook: u128, number: u128, attempt: u16) -> Delivery {
        Delivery {
            id: Uuid::from_u128(number),
            webhook: Uuid::from_u128(webhook),
            event: Uuid::nil(),
            kind: EventKind::DeliveryCompleted,
            occurred_at: jiff::Timestamp::UNIX_EPOCH,
            data: "{}".into(),
            round: 1,
            attempt,
            lease: Lease { token: Uuid::nil(), until: Instant::now() },
        }
    }

    fn lanes(total: usize, per_webhook: usize) -> Lanes {
        Lanes::new(Limits { total, per_webhook })
    }

    fn pop_all(lanes: &mut Lanes) -> Vec<(u128, u128)> {
        std::iter::from_fn(|| lanes.pop(true)).map(|d| (d.webhook.as_u128(), d.id.as_u128())).collect()
    }

    #[test]
    fn webhooks_take_turns_and_each_keeps_its_order() {
        let mut lanes = lanes(100, 32);
        for number in 1..=5 {
            lanes.push(delivery(1, number, 1));
        }
        lanes.push(delivery(2, 10, 1));
        lanes.push(delivery(3, 20, 1));
        lanes.push(delivery(2, 11, 1));
        let order = pop_all(&mut lanes);
        assert_eq!(order, [(1, 1), (2, 10), (3, 20), (1, 2), (2, 11), (1, 3), (1, 4), (1, 5)]);
        assert_eq!((lanes.in_flight(), lanes.queued()), (8, 0));
    }

    #[test]
    fn a_webhook_at_its_limit_is_passed_over_until_it_finishes_one() {
        let mut lanes = lanes(100, 2);
        for number in 1..=4 {
            lanes.push(delivery(1, number, 1));
        }
        lanes.push(delivery(2, 10, 1));
        assert_eq!(pop_all(&mut lanes), [(1, 1), (2, 10), (1, 2)]);
        lanes.finish(Uuid::from_u128(2), Class::Fresh);
        assert_eq!(pop_all(&mut lanes), []);
        lanes.finish(Uuid::from_u128(1), Class::Fresh);
        assert_eq!(pop_all(&mut lanes), [(1, 3)]);
    }

    #[test]
    fn while_many_receivers_hang_another_finds_a_slot() {
        let mut lanes = lanes(64, 32);
        for webhook in 1..=20 {
            for number in 0..40 {
                lanes.push(delivery(webhook, number, 1));
            }
        }
        let hanging = pop_all(&mut lanes).len();
        assert!((50..64).contains(&hanging), "{hanging}");
        lanes.push(delivery(99, 1, 1));
        assert_eq!(pop_all(&mut lanes), [(99, 1)]);
    }

    #[test]
    fn every_slot_can_be_taken_by_webhooks_with_one_delivery_each() {
        let mut lanes = lanes(8, 4);
        for webhook in 1..=9 {
            lanes.push(delivery(webhook, 0, 1));
        }
        assert_eq!(pop_all(&mut lanes).len(), 8);
        lanes.finish(Uuid::from_u128(3), Class::Fresh);
        assert_eq!(pop_all(&mut lanes), [(9, 0)]);
    }

    #[test]
    fn retries_hold_at_most_half_of_the_slots() {
        let mut lanes = lanes(8, 8);
        for webhook in 1..=8 {
            lanes.push(delivery(webhook, 0, 2));
        }
        assert_eq!(pop_all(&mut lanes).len(), 4);
        for webhook in 11..=13 {
            lanes.push(delivery(webhook, 0, 1));
        }
        assert_eq!(pop_all(&mut lanes).len(), 3);
        lanes.finish(Uuid::from_u128(1), Class::Retry);
        assert_eq!(pop_all(&mut lanes), [(5, 0)]);
    }

    #[test]
    fn fresh_and_retries_of_one_webhook_alternate() {
        let mut lanes = lanes(100, 50);
        for number in 1..=3 {
            lanes.push(delivery(1, number, 1));
            lanes.push(delivery(1, 10 + number, 2));
        }
        let order: Vec<u128> = pop_all(&mut lanes).into_iter().map(|(_, number)| number).collect();
        assert_eq!(order, [1, 11, 2, 12, 3, 13]);
    }

    #[test]
    fn what_waits_can_be_taken_out() {
        let mut lanes = lanes(1, 1);
        for number in 1..=3 {
            lanes.push(delivery(1, number, number as u16));
        }
        assert!(lanes.pop(true).is_some());
        assert_eq!(lanes.held(), HashMap::from([(Uuid::from_u128(1), 3)]));
        assert_eq!((lanes.drain().len(), lanes.queued(), lanes.in_flight()), (2, 0, 1));
        assert!(lanes.pop(true).is_none());
    }
}
