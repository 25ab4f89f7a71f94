//! The state that the store should be in. No SQL, no time.

use std::collections::BTreeMap;

use uuid::Uuid;
use walhook::domain::delivery::{Answer, Delivery, Next, Outcome};
use walhook::domain::event::delivery_id;
use walhook::domain::ordering::Ordering;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWebhook {
    pub active: bool,
    /// Whether its failures have switched it off.
    pub disabled: bool,
    pub url: String,
    pub ordering: Ordering,
    pub secret: Vec<u8>,
    /// Successes, failures, consecutive failures.
    pub counters: (i64, i64, i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub webhook: Uuid,
    pub round: i16,
    pub attempt: i16,
    pub lease: Option<Uuid>,
    /// Whether it waits for another with the same order key.
    pub parked: bool,
    pub sequence: Option<i64>,
}

pub type Line = (i16, i16, String, Option<i64>);

/// The observable state of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub webhooks: BTreeMap<Uuid, ModelWebhook>,
    pub pending: BTreeMap<Uuid, Pending>,
    /// Round, attempt, outcome and sequence number of each delivery's entries in the attempt log,
    /// in order.
    pub log: BTreeMap<Uuid, Vec<Line>>,
    /// Webhook and event.
    pub missed: Vec<(Uuid, Uuid)>,
    /// The number of the last delivery of each webhook that has had one.
    pub sequences: BTreeMap<Uuid, i64>,
}

pub struct Model {
    pub view: View,
    /// The round that each delivery is in.
    pub rounds: BTreeMap<Uuid, i16>,
    /// The number of each delivery.
    pub numbers: BTreeMap<Uuid, i64>,
    /// Every delivery so far, with its webhook.
    pub created: Vec<(Uuid, Uuid)>,
    /// Webhook, order key and number of the pending deliveries that have an order key.
    pub order: BTreeMap<Uuid, (Uuid, i64, usize)>,
    /// Deliveries whose leases ended without an answer.
    pub ended_leases: Vec<Uuid>,
    /// Delivery and lease of attempts that were in flight when their delivery was redelivered or
    /// cancelled.
    pub superseded: Vec<(Uuid, Uuid)>,
}

impl Model {
    pub fn log(&mut self, delivery: Uuid, round: i16, attempt: i16, outcome: Outcome) {
        let number = self.numbers.get(&delivery).copied();
        let lines = self.view.log.entry(delivery).or_default();
        lines.push((round, attempt, outcome.as_str().to_owned(), number));
        lines.sort_unstable();
    }

    pub fn create(&mut self, webhook: Uuid, event: Uuid, order_key: Option<i64>) {
        let id = delivery_id(event, webhook);
        self.created.push((id, webhook));
        self.rounds.insert(id, 1);

        let last = self.view.sequences.entry(webhook).or_default();
        *last += 1;
        self.numbers.insert(id, *last);
        self.view
            .missed
            .retain(|missed| *missed != (webhook, event));

        let sequence = Some(*last);
        self.view.pending.insert(
            id,
            Pending {
                webhook,
                round: 1,
                attempt: 1,
                lease: None,
                parked: false,
                sequence,
            },
        );

        self.order
            .extend(order_key.map(|key| (id, (webhook, key, self.created.len()))));
    }

    /// After each operation: a delivery waits while an earlier one with the same key is pending.
    pub fn settle(&mut self) {
        self.order
            .retain(|id, _| self.view.pending.contains_key(id));

        for (id, pending) in &mut self.view.pending {
            let waits_for = |(webhook, key, number): &(Uuid, i64, usize)| {
                self.order
                    .values()
                    .any(|(of, other, earlier)| of == webhook && other == key && earlier < number)
            };
            pending.parked = self.order.get(id).is_some_and(waits_for);
        }
    }

    pub fn claimable(&self, retries: bool) -> Vec<Uuid> {
        let due = |(id, pending): (&Uuid, &Pending)| {
            let is_free = pending.lease.is_none() || self.ended_leases.contains(id);
            (is_free && !pending.parked && (pending.attempt > 1) == retries).then_some(*id)
        };
        self.view.pending.iter().filter_map(due).collect()
    }

    /// Applies an answer. Returns whether it counts.
    pub fn answer(&mut self, held: &Delivery, answer: &Answer, next: Next) -> bool {
        let holds = |pending: &&Pending| pending.lease == Some(held.lease.token);
        let Some(pending) = self.view.pending.get(&held.id).filter(holds) else {
            self.answer_late(held, answer, next);
            return false;
        };

        let Pending {
            webhook,
            round,
            attempt,
            sequence,
            ..
        } = *pending;

        assert_eq!(
            (round, attempt),
            (held.round as i16, held.attempt as i16),
            "a lease is for one attempt"
        );
        self.log(held.id, round, attempt, next.outcome());
        self.ended_leases.retain(|id| *id != held.id);

        match next {
            Next::End(_) => drop(self.view.pending.remove(&held.id)),
            Next::Retry { attempt, .. } => {
                let retry = Pending {
                    webhook,
                    round,
                    attempt: attempt as i16,
                    lease: None,
                    parked: false,
                    sequence,
                };
                self.view.pending.insert(held.id, retry);
            }
        }

        let webhook = self
            .view
            .webhooks
            .get_mut(&webhook)
            .expect("a deleted webhook has nothing pending");
        let (successes, failures, consecutive) = &mut webhook.counters;

        match answer {
            Answer::Accepted { .. } => (*successes, *consecutive) = (*successes + 1, 0),
            Answer::Failed { .. } => (*failures, *consecutive) = (*failures + 1, *consecutive + 1),
            Answer::TooLarge { .. } | Answer::Inactive => {}
        }

        true
    }

    /// Disables a webhook after a failure, if it has failed so often in a row or is gone. Returns
    /// whether it does.
    pub fn disable(&mut self, webhook: Uuid, threshold: i64, is_gone: bool) -> bool {
        let Some(state) = self.view.webhooks.get_mut(&webhook) else {
            return false;
        };

        let is_disabled = state.active && (is_gone || state.counters.2 >= threshold);
        if is_disabled {
            (state.active, state.disabled) = (false, true);
            self.cancel(webhook);
        }

        is_disabled
    }

    /// An attempt that was in flight when its delivery was redelivered or cancelled is logged once
    /// if a request was made, and changes nothing else.
    fn answer_late(&mut self, held: &Delivery, answer: &Answer, next: Next) {
        let attempt = (held.id, held.lease.token);
        if self.superseded.contains(&attempt) {
            self.superseded.retain(|other| *other != attempt);

            if *answer != Answer::Inactive && self.view.webhooks.contains_key(&held.webhook) {
                self.log(
                    held.id,
                    held.round as i16,
                    held.attempt as i16,
                    next.outcome(),
                );
            }
        }
    }

    pub fn cancel(&mut self, webhook: Uuid) {
        let of_webhook = |(id, pending): (&Uuid, &Pending)| {
            (pending.webhook == webhook).then(|| (*id, pending.clone()))
        };

        let cancelled: Vec<(Uuid, Pending)> =
            self.view.pending.iter().filter_map(of_webhook).collect();
        for (id, pending) in cancelled {
            self.view.pending.remove(&id);
            self.superseded
                .extend(pending.lease.map(|lease| (id, lease)));
            self.ended_leases.retain(|ended| *ended != id);
            self.log(id, pending.round, pending.attempt, Outcome::Cancelled);
        }
    }

    pub fn next_round(&mut self, delivery: Uuid, webhook: Uuid) -> i16 {
        let round = self.rounds.get_mut(&delivery).expect("it was created");
        *round += 1;

        let sequence = self.numbers.get(&delivery).copied();
        let pending = Pending {
            webhook,
            round: *round,
            attempt: 1,
            lease: None,
            parked: false,
            sequence,
        };

        let before = self.view.pending.insert(delivery, pending);
        self.superseded.extend(
            before
                .and_then(|before| before.lease)
                .map(|lease| (delivery, lease)),
        );
        self.ended_leases.retain(|ended| *ended != delivery);

        *self.rounds.get(&delivery).expect("it was created")
    }

    /// Deliveries of the webhook whose last round failed permanently or was cancelled, and was not
    /// delivered.
    pub fn recoverable(&self, webhook: Uuid) -> Vec<Uuid> {
        let has_failed = |(id, of): &&(Uuid, Uuid)| {
            let in_last_round = |line: &&Line| line.0 == self.rounds[id];
            let is_failed =
                |line: &Line| matches!(line.2.as_str(), "permanently_failed" | "cancelled");
            let is_delivered = |line: &Line| line.2 == "delivered";

            let last = || {
                self.view
                    .log
                    .get(id)
                    .into_iter()
                    .flatten()
                    .filter(in_last_round)
            };

            *of == webhook && last().any(is_failed) && !last().any(is_delivered)
        };

        self.created
            .iter()
            .filter(has_failed)
            .map(|(id, _)| *id)
            .collect()
    }
}
