//! What owners do with their webhooks.

use uuid::Uuid;
use walhook::domain::event::{EventKind, UserId};
use walhook::domain::ordering::Ordering;
use walhook::domain::webhook::SealedTarget;
use walhook::store::recovery::{Criteria, LoggedDeliveries};
use walhook::store::replay::Selection;

use super::jobs::{JobWork, MemoryJob};
use super::{MemoryTransaction, State, StoredEvent, Webhook};

/// The result of switching a webhook on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switching {
    Done,
    NotFound,
    /// It cannot be switched on yet: what it had pending when it was switched off is being
    /// cancelled.
    Cancelling,
}

/// The result of a request to redeliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivered {
    Started(u16),
    /// There is no log entry or no webhook.
    NotFound,
    Inactive,
}

impl MemoryTransaction<'_> {
    pub fn create_webhook(
        &self,
        target: SealedTarget,
        user: UserId,
        events: &[EventKind],
        ordering: Ordering,
    ) {
        let mut state = self.state();
        let id = target.webhook;

        let webhook = Webhook {
            user,
            target,
            events: events.to_vec(),
            ordering,
            successes: 0,
            failures: 0,
            consecutive_failures: 0,
            failing_since: None,
            warned_at: None,
            disabled_at: None,
            counted_from: 0,
        };

        state.webhooks.put(id, webhook);
        state.switch(id, true);
    }

    /// Inserts an event as the tests do.
    pub fn insert_event(&self, id: Uuid, user: UserId, kind: EventKind, data: &str) {
        let mut state = self.state();
        let occurred_at = state.now;
        let number = state.events.len() as i64 + 1;
        let transaction = state.transaction;

        let event = StoredEvent {
            user,
            kind,
            label: None,
            occurred_at,
            data: data.into(),
            number,
            transaction,
        };

        state.events.put(id, event);
    }

    /// Ends all leases, as if their holders had died.
    pub fn end_leases(&self) {
        let mut state = self.state();
        let leased = state
            .deliveries
            .iter()
            .filter(|(_, row)| row.lease.is_some());
        let (now, leased): (_, Vec<Uuid>) = (state.now, leased.map(|(id, _)| *id).collect());

        leased
            .iter()
            .for_each(|id| state.deliveries.change(id, |row| row.due_at = Some(now)));
    }

    /// Does what the transaction of `webhooks::update` does with `active`. The caller then cancels
    /// what is pending.
    pub fn set_active(&self, id: Uuid, active: bool) -> Switching {
        let mut state = self.state();
        let Some(webhook) = state.webhooks.get(&id) else {
            return Switching::NotFound;
        };

        if webhook.target.active == active {
            return Switching::Done;
        }

        if active && state.deliveries.values().any(|row| row.webhook == id) {
            return Switching::Cancelling;
        }

        let counted_from = state.log.len();
        state.webhooks.change(&id, |webhook| {
            webhook.target.active = active;
            webhook.target.activation += i32::from(active);

            if active && webhook.disabled_at.take().is_some() {
                (webhook.failures, webhook.consecutive_failures) = (0, 0);
                (webhook.failing_since, webhook.counted_from) = (None, counted_from);
            }
        });

        state.switch(id, active);
        Switching::Done
    }

    /// Does what `webhooks::update` does with `url` and `ordering`.
    pub fn set_url_and_ordering(&self, id: Uuid, url: &str, ordering: Ordering) {
        self.state().webhooks.change(&id, |webhook| {
            url.clone_into(&mut webhook.target.url);
            webhook.ordering = ordering;
        });
    }

    pub fn set_secret(&self, id: Uuid, secret: Vec<u8>) {
        self.state()
            .webhooks
            .change(&id, |webhook| webhook.target.secret = secret);
    }

    /// Does what the transaction of `webhooks::delete` does. Returns whether the webhook existed.
    /// The caller then cancels what is pending.
    pub fn delete_webhook(&self, id: Uuid) -> bool {
        self.state().webhooks.remove(&id).is_some()
    }

    /// Does what `recovery::redeliver` does with the delivery of a log entry.
    pub fn redeliver(&self, webhook: Uuid, delivery: Uuid) -> Redelivered {
        let mut state = self.state();
        let logged = state
            .log
            .iter()
            .find(|line| line.delivery == delivery && line.webhook == webhook)
            .cloned();
        let (Some(line), Some(found)) = (logged, state.webhooks.get(&webhook)) else {
            return Redelivered::NotFound;
        };

        if !found.target.active {
            return Redelivered::Inactive;
        }

        let logged = LoggedDeliveries {
            deliveries: vec![delivery],
            events: vec![line.event],
            rounds: vec![1],
            sequences: vec![line.sequence],
        };

        let started = state.start_next_rounds(webhook, &logged, false);
        Redelivered::Started(started[0].1)
    }

    /// Does what `recovery::begin` does.
    pub fn begin_recovery(&self, id: Uuid, criteria: Criteria) -> bool {
        self.begin_job(id, criteria.webhook, JobWork::recovery(criteria))
    }

    /// Does what `replay::begin` does.
    pub fn begin_replay(&self, id: Uuid, webhook: Uuid, selection: Selection) -> bool {
        let last = self.state().events.len() as i64;
        self.begin_job(id, webhook, JobWork::replay(selection, last))
    }

    fn begin_job(&self, id: Uuid, webhook: Uuid, work: JobWork) -> bool {
        const MAX_OPEN: usize = 10;
        let mut state = self.state();
        let is_open = |job: &&MemoryJob| job.webhook == webhook && !job.is_finished;
        if !state.webhooks.contains_key(&webhook)
            || state.jobs.values().filter(is_open).count() >= MAX_OPEN
        {
            return false;
        }

        let due_at = state.now;
        state.jobs.put(
            id,
            MemoryJob {
                webhook,
                due_at,
                created: 0,
                is_finished: false,
                work,
            },
        );

        true
    }

    /// Advances the checkpoint, if it is still where the reader believes it to be. Returns whether
    /// it is.
    pub fn advance_checkpoint(&self, from: u64, to: u64) -> bool {
        let mut state = self.state();
        let is_there = state.stored_changes() == from;
        if is_there {
            state.checkpoint.put((), to);
        }

        is_there
    }
}

impl State {
    /// How many changes of the stream are stored.
    pub fn stored_changes(&self) -> u64 {
        self.checkpoint.get(&()).copied().unwrap_or(0)
    }

    /// Does what `recovery::start_next_rounds` does.
    pub fn start_next_rounds(
        &mut self,
        webhook: Uuid,
        LoggedDeliveries {
            deliveries,
            events,
            rounds,
            sequences,
        }: &LoggedDeliveries,
        only_if_unchanged: bool,
    ) -> Vec<(Uuid, u16)> {
        for id in deliveries {
            if let Some(lease) = self.deliveries.get(id).and_then(|row| row.lease) {
                self.superseded.put((*id, lease), ());
            }
        }

        let mut started = Vec::new();

        for (index, id) in deliveries.iter().enumerate() {
            let known = self.rounds.get(id).copied();
            let expected = rounds[index] as u16;
            if only_if_unchanged && known.is_some_and(|known| known != expected) {
                continue;
            }

            let round = known.unwrap_or(expected) + 1;
            self.rounds.put(*id, round);

            let pending = self.deliveries.get(id).cloned();
            let row = match pending {
                Some(row) => super::Row {
                    round,
                    attempt: 1,
                    ..row
                },
                None => super::Row {
                    webhook,
                    event: events[index],
                    round,
                    attempt: 1,
                    lease: None,
                    due_at: None,
                    sequence: sequences[index],
                    order_key: None,
                },
            };

            self.deliveries.put(*id, row);
            let now = self.now;
            self.grant(*id, None, now);
            started.push((*id, round));
        }

        started
    }
}
