//! The store in memory, beside the real one: it must be in the same state. The simulation in
//! `tests/reliability/simulation` relies on it.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use jiff::Timestamp;
use uuid::Uuid;
use walhook::domain::delivery::{Delivery, Lease, lease_length};
use walhook::domain::disablement::Policy;
use walhook::domain::event::{Event, EventKind, UserId};
use walhook::domain::ordering::Ordering;
use walhook::domain::sequence::Sequences;
use walhook::domain::webhook::SealedTarget;
use walhook::record::{Recorded, record_in};
use walhook::recover::{Step, Turns, step_in};
use walhook::store::contract::EnqueueStatements;
use walhook::store::deliver::{ClaimRequest, Claimed};
use walhook::store::enqueue::{NewDelivery, NewLease};
use walhook::store::order::OrderedDelivery;
use walhook::store::record::CompletedAttempt;
use walhook::store::recovery::Criteria;
use walhook::store::replay::Selection;

use super::USER;
use super::pure::{ModelWebhook, Pending, View};
use crate::support::memory::{MemoryStore, Redelivered, Row, Switching};

/// Stores a delivery of an event as the enqueue stage does, in a transaction of either store.
pub async fn store_delivery(
    transaction: &impl EnqueueStatements,
    (id, webhook, event): (Uuid, Uuid, Uuid),
    key: Option<i64>,
    lease: Option<NewLease>,
) -> walhook::store::Result<Option<i64>> {
    let mut sequences = Sequences::default();
    transaction
        .start_sequences(&[webhook], &mut sequences)
        .await?;

    let sequence = sequences.next(webhook);
    let delivery = NewDelivery {
        id,
        webhook,
        event,
        leased: lease.is_some(),
        sequence,
    };

    match key {
        None => {
            transaction
                .insert_deliveries(&[delivery], lease.unwrap_or(NewLease::NONE))
                .await?
        }
        Some(key) => {
            let ordered = OrderedDelivery {
                delivery,
                key,
                is_first: true,
            };

            transaction
                .insert_ordered(&[ordered], NewLease::NONE)
                .await?;
        }
    }

    transaction.store_sequences(&sequences.changed()).await?;
    Ok(sequence)
}

/// The store in memory answers at once.
fn now<T>(future: impl Future<Output = walhook::store::Result<T>>) -> T {
    future
        .now_or_never()
        .expect("it answers at once")
        .expect("nothing fails")
}

pub struct Memory(pub MemoryStore);

impl Memory {
    pub fn new() -> Memory {
        Memory(MemoryStore::new(Timestamp::now()))
    }

    pub fn create_webhook(&mut self, target: SealedTarget, ordering: Ordering) {
        let transaction = self.0.begin();
        transaction.create_webhook(
            target,
            UserId(USER.into()),
            &[EventKind::ReleaseDistributed],
            ordering,
        );

        transaction.commit();
    }

    pub fn event(&mut self, event: &Event) {
        let transaction = self.0.begin();
        now(transaction.insert_events(std::slice::from_ref(event), false));
        transaction.commit();
    }

    /// Returns its number.
    pub fn store_delivery(
        &mut self,
        ids: (Uuid, Uuid, Uuid),
        key: Option<i64>,
        lease: Option<NewLease>,
    ) -> Option<i64> {
        let transaction = self.0.begin();
        let sequence = now(store_delivery(&transaction, ids, key, lease));
        transaction.commit();
        sequence
    }

    pub fn insert_missed(&mut self, webhook: Uuid, event: Uuid) {
        let transaction = self.0.begin();
        now(transaction.insert_missed(&[(webhook, event)]));
        transaction.commit();
    }

    /// Claims under the lease of the real claim.
    pub fn claim(&mut self, request: &ClaimRequest, real: &[Delivery]) -> Claimed {
        let none = || Lease {
            token: Uuid::now_v7(),
            until: Instant::now(),
        };

        let lease = real.first().map_or_else(none, |delivery| delivery.lease);
        let transaction = self.0.begin();
        let claimed = transaction.claim(request, lease, lease_length(request.timeout));

        transaction.commit();
        claimed
    }

    /// Records in one transaction, and cancels what the webhooks that it disables have pending.
    pub fn record(&mut self, attempts: &[CompletedAttempt<'_>], policy: &Policy) -> Recorded {
        let transaction = self.0.begin();
        let recorded = now(record_in(&transaction, attempts, policy, None));

        transaction.commit();
        recorded
            .disabled
            .iter()
            .for_each(|disabled| self.cancel_pending(disabled.webhook));

        recorded
    }

    pub fn release(&mut self, delivery: &Delivery) {
        let transaction = self.0.begin();
        transaction.release(std::slice::from_ref(delivery));
        transaction.commit();
    }

    pub fn end_leases(&mut self) {
        let transaction = self.0.begin();
        transaction.end_leases();
        transaction.commit();
    }

    pub fn set_active(&mut self, webhook: Uuid, active: bool) -> bool {
        self.cancel_pending(webhook);
        let transaction = self.0.begin();
        let done = transaction.set_active(webhook, active);

        transaction.commit();
        assert_ne!(done, Switching::Cancelling, "what was pending is cancelled");
        self.cancel_pending(webhook);

        done == Switching::Done
    }

    /// Cancels what is pending if the webhook is inactive or does not exist, in chunks.
    fn cancel_pending(&mut self, webhook: Uuid) {
        loop {
            let transaction = self.0.begin();
            let cancelled = transaction.cancel_pending(webhook, 2);
            transaction.commit();

            if cancelled == 0 {
                return;
            }
        }
    }

    pub fn delete(&mut self, webhook: Uuid) -> bool {
        let transaction = self.0.begin();
        let existed = transaction.delete_webhook(webhook);

        transaction.commit();
        self.cancel_pending(webhook);
        existed
    }

    pub fn edit(&mut self, webhook: Uuid, url: &str, ordering: Ordering) {
        let transaction = self.0.begin();
        transaction.set_url_and_ordering(webhook, url, ordering);
        transaction.commit();
    }

    pub fn set_secret(&mut self, webhook: Uuid, secret: Vec<u8>) {
        let transaction = self.0.begin();
        transaction.set_secret(webhook, secret);
        transaction.commit();
    }

    pub fn redeliver(&mut self, webhook: Uuid, delivery: Uuid) -> Redelivered {
        let transaction = self.0.begin();
        let done = transaction.redeliver(webhook, delivery);
        transaction.commit();
        done
    }

    /// Runs a recovery to its end. Returns how many deliveries it has started.
    pub fn recover(&mut self, id: Uuid, criteria: Criteria) -> i64 {
        let transaction = self.0.begin();
        transaction.begin_recovery(id, criteria);
        transaction.commit();
        self.run_jobs()
    }

    /// Runs a replay to its end. Returns how many deliveries it has created.
    pub fn replay(&mut self, id: Uuid, webhook: Uuid, selection: Selection) -> i64 {
        let transaction = self.0.begin();
        transaction.begin_replay(id, webhook, selection);
        transaction.commit();
        self.run_jobs()
    }

    fn run_jobs(&mut self) -> i64 {
        let mut recovered = 0;

        loop {
            // Steps are a moment apart.
            let later = self.0.state().now + Duration::from_millis(1);
            self.0.set_now(later);

            let transaction = self.0.begin();
            let step = now(step_in(&transaction, &mut Turns::default()));
            transaction.commit();

            match step {
                Step::Idle => return recovered,
                Step::Worked => {}
                Step::Finished {
                    recovered: count, ..
                } => recovered += count,
            }
        }
    }

    pub fn view(&self) -> View {
        let state = self.0.state();
        let mut view = View::default();

        for (id, webhook) in state.webhooks.iter() {
            let counters = [
                webhook.successes,
                webhook.failures,
                webhook.consecutive_failures,
            ]
            .map(|count| count as i64);

            let active = webhook.target.active;
            let secret = webhook.target.secret.clone();
            let is_failing = webhook.consecutive_failures > 0;

            assert_eq!(
                webhook.failing_since.is_some(),
                is_failing,
                "consecutive failures have a start"
            );
            let disabled = webhook.disabled_at.is_some();
            let url = webhook.target.url.clone();
            let ordering = webhook.ordering;
            let counters = counters.into();

            view.webhooks.insert(
                *id,
                ModelWebhook {
                    active,
                    disabled,
                    url,
                    ordering,
                    secret,
                    counters,
                },
            );
        }

        for (id, row) in state.deliveries.iter() {
            let round = row.round as i16;
            let attempt = row.attempt as i16;
            let parked = row.due_at.is_none();
            let Row {
                webhook,
                lease,
                sequence,
                ..
            } = *row;

            view.pending.insert(
                *id,
                Pending {
                    webhook,
                    round,
                    attempt,
                    lease,
                    parked,
                    sequence,
                },
            );
        }

        for line in state.log.iter() {
            let lines = view.log.entry(line.delivery).or_default();
            lines.push((
                line.round as i16,
                line.attempt as i16,
                line.outcome.as_str().to_owned(),
                line.sequence,
            ));

            lines.sort_unstable();
        }

        view.missed = state.missed.keys().copied().collect();
        let numbered = state.sequences.iter().filter(|(_, last)| **last > 0);
        view.sequences = numbered.map(|(webhook, last)| (*webhook, *last)).collect();

        view
    }
}
