//! Stores events with their deliveries inside a transaction.

use metrics::counter;

use super::fan_out::{EVENTS_AT_ONCE, FannedOut, Subscriptions, fan_out};
use crate::domain::event::{Event, EventKind};
use crate::domain::sequence::Sequences;
use crate::handoff::HandoffBatch;
use crate::store::enqueue::{NewLease, Unrouted, insert_deliveries, insert_events, insert_missed, subscriptions};
use crate::store::{GenericClient, StoreError, sequences};
use crate::telemetry::{self, recurring};

/// When fresh deliveries are handed off to the local dispatcher.
pub(super) enum HandOffWhen {
    /// With the last statements: requests do not wait for the commit. If it fails, the same changes are read again and lead to the same
    /// deliveries.
    BeforeCommit,
    /// After the commit. For the first transaction, and after a failed one: otherwise receivers would get a request with each retry.
    AfterCommit,
}

/// Reads the webhooks of the owners of `events`. With `numbered`, also locks and returns the numbers of their last deliveries. This takes
/// another statement only for a webhook that has no number yet.
pub(super) async fn subscriptions_of(
    transaction: &impl GenericClient,
    events: &[Event],
    numbered: bool,
) -> Result<(Subscriptions, Sequences), StoreError> {
    let mut users: Vec<&str> = events.iter().map(|event| &*event.user.0).collect();
    users.sort_unstable();
    users.dedup();
    let mut kinds: Vec<EventKind> = events.iter().filter(|_| numbered).map(|event| event.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let (mut by_user, mut sequences, mut unnumbered) = (Subscriptions::new(), Sequences::default(), Vec::new());
    if !users.is_empty() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        for subscription in subscriptions(transaction, &users, &names).await? {
            let webhook = subscription.target.webhook;
            match subscription.last {
                Some(last) => sequences.insert(webhook, last),
                None if subscription.takes_any(&kinds) => unnumbered.push(webhook),
                None => {}
            }
            by_user.entry(subscription.user.clone()).or_default().push(subscription);
        }
    }
    if !unnumbered.is_empty() {
        sequences::start(transaction, &unnumbered, &mut sequences).await?;
    }
    Ok((by_user, sequences))
}

/// Stores events with their deliveries, part by part. `commit` is sent with the last part.
pub(super) async fn store_events(
    transaction: &impl GenericClient,
    events: &[Event],
    (subscriptions, mut sequences): (Subscriptions, Sequences),
    lease: NewLease,
    mut handoff: HandoffBatch<'_>,
    when: HandOffWhen,
    commit: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let mut fan_out = |part| {
        fan_out(part, &subscriptions, &mut sequences, |event, delivery| {
            handoff.add(event, delivery.id, delivery.webhook, delivery.sequence)
        })
    };
    let mut parts = events.chunks(EVENTS_AT_ONCE);
    let last = parts.next_back().unwrap_or_default();
    for part in parts {
        insert(transaction, part, &fan_out(part), lease, false).await?;
    }
    let fanned_out = fan_out(last);
    let numbers = sequences.changed();
    let store_last = async {
        tokio::try_join!(
            biased;
            insert(transaction, last, &fanned_out, lease, false),
            sequences::store(transaction, &numbers),
            commit
        )
    };
    let targets = subscriptions.into_values().flatten().map(|subscription| subscription.target);
    match when {
        HandOffWhen::BeforeCommit => {
            handoff.send(targets);
            store_last.await?;
        }
        HandOffWhen::AfterCommit => {
            store_last.await?;
            handoff.send(targets);
        }
    }
    Ok(())
}

/// Inserts events with their deliveries. `repaired` marks events that a repair found.
pub(super) async fn insert(
    transaction: &impl GenericClient,
    events: &[Event],
    fanned_out: &FannedOut,
    lease: NewLease,
    repaired: bool,
) -> Result<(), StoreError> {
    tokio::try_join!(
        biased;
        insert_events(transaction, events, repaired),
        insert_deliveries(transaction, &fanned_out.deliveries, lease),
        insert_missed(transaction, &fanned_out.missed),
    )?;
    Ok(())
}

/// Counts stored events, unrouted events and ignored transitions.
pub(super) fn count(events: &[Event], unrouted: &[Unrouted], ignored: &[&'static str]) {
    for event in events {
        counter!(telemetry::EVENTS, "event" => event.kind.as_str()).increment(1);
    }
    for reason in ignored {
        counter!(telemetry::IGNORED_TRANSITIONS, "reason" => *reason).increment(1);
    }
    if let Some(first) = unrouted.first() {
        counter!(telemetry::UNROUTED_EVENTS).increment(unrouted.len() as u64);
        recurring!(
            warn,
            reason = first.reason,
            table = first.table,
            row = first.row,
            lsn = first.position.commit().map(tracing::field::display),
            "events without an owner: they are kept in walhook.unrouted_event"
        );
    }
}
