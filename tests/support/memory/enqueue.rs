//! The statements that store events with their deliveries.

use uuid::Uuid;
use walhook::domain::event::Event;
use walhook::domain::sequence::Sequences;
use walhook::store::Result;
use walhook::store::contract::EnqueueStatements;
use walhook::store::enqueue::{NewDelivery, NewLease, Subscription};
use walhook::store::order::OrderedDelivery;

use super::{Created, MemoryTransaction, Row, State, StoredEvent, later};

impl State {
    fn insert(
        &mut self,
        new: &NewDelivery,
        lease: NewLease,
        order_key: Option<i64>,
        is_parked: bool,
    ) -> bool {
        let leased = new.leased && !is_parked;
        let length = std::time::Duration::from_secs_f64(lease.seconds);
        let due_at = if leased {
            later(self.now, length)
        } else {
            self.now
        };

        let NewDelivery {
            id,
            webhook,
            event,
            sequence,
            ..
        } = *new;

        assert!(
            !self.deliveries.contains_key(&id),
            "the primary key of deliveries"
        );

        let row = Row {
            webhook,
            event,
            round: 1,
            attempt: 1,
            lease: None,
            due_at: None,
            sequence,
            order_key,
        };

        self.deliveries.put(id, row);
        let at = self.now;
        let transaction = self.transaction;

        self.created.push(Created {
            delivery: id,
            webhook,
            event,
            sequence,
            order_key,
            at,
            transaction,
        });

        if !is_parked {
            self.grant(id, leased.then_some(lease.token), due_at);
        }

        leased
    }
}

impl EnqueueStatements for MemoryTransaction<'_> {
    async fn plan_by_index(&self) -> Result<()> {
        Ok(())
    }

    async fn subscriptions(&self, users: &[&str], kinds: &[&str]) -> Result<Vec<Subscription>> {
        let state = self.state();
        let of_users = state
            .webhooks
            .iter()
            .filter(|(_, webhook)| users.contains(&&*webhook.user.0));

        let subscription = |(id, webhook): (&Uuid, &super::Webhook)| {
            let takes_any = webhook
                .events
                .iter()
                .any(|event| kinds.contains(&event.as_str()));
            let is_held = webhook.target.active && takes_any;

            Subscription {
                user: webhook.user.clone(),
                target: webhook.target.clone(),
                events: webhook.events.clone(),
                ordering: webhook.ordering,
                last: state.sequences.get(id).copied().filter(|_| is_held),
                filter: None,
            }
        };

        Ok(of_users.map(subscription).collect())
    }

    async fn start_sequences(&self, webhooks: &[Uuid], into: &mut Sequences) -> Result<()> {
        let mut state = self.state();

        for webhook in webhooks {
            let last = state.sequences.get(webhook).copied().unwrap_or(0);
            state.sequences.put(*webhook, last);
            into.insert(*webhook, last);
        }

        Ok(())
    }

    async fn store_sequences(&self, changed: &[(Uuid, i64)]) -> Result<()> {
        let mut state = self.state();
        changed
            .iter()
            .for_each(|(webhook, last)| state.sequences.put(*webhook, *last));
        Ok(())
    }

    async fn insert_events(&self, events: &[Event], _repaired: bool) -> Result<()> {
        let mut state = self.state();

        for event in events {
            let Event {
                id,
                kind,
                user,
                label,
                occurred_at,
                data,
                ..
            } = event.clone();

            assert!(!state.events.contains_key(&id), "the primary key of events");
            let number = state.events.len() as i64 + 1;
            let transaction = state.transaction;

            state.events.put(
                id,
                StoredEvent {
                    user,
                    kind,
                    label,
                    occurred_at,
                    data,
                    number,
                    transaction,
                },
            );
        }

        Ok(())
    }

    async fn insert_deliveries(&self, deliveries: &[NewDelivery], lease: NewLease) -> Result<()> {
        let mut state = self.state();

        for new in deliveries {
            state.insert(new, lease, None, false);
        }

        Ok(())
    }

    async fn insert_ordered(
        &self,
        ordered: &[OrderedDelivery],
        lease: NewLease,
    ) -> Result<Vec<Uuid>> {
        let mut state = self.state();

        // The statement does not see the rows that it inserts.
        let waits = |new: &OrderedDelivery| {
            !new.is_first || state.first_of((new.delivery.webhook, new.key)).is_some()
        };

        let parked: Vec<bool> = ordered.iter().map(waits).collect();
        let mut heads = Vec::new();

        for (new, is_parked) in ordered.iter().zip(parked) {
            if state.insert(&new.delivery, lease, Some(new.key), is_parked) {
                heads.push(new.delivery.id);
            }
        }

        Ok(heads)
    }

    async fn insert_missed(&self, missed: &[(Uuid, Uuid)]) -> Result<()> {
        let mut state = self.state();
        missed.iter().for_each(|pair| state.missed.put(*pair, ()));
        Ok(())
    }
}
