//! Stores events with their deliveries inside a transaction.

use std::collections::HashSet;

use metrics::counter;
use uuid::Uuid;

use super::fan_out::{EVENTS_AT_ONCE, FannedOut, Subscriptions, fan_out};
use crate::domain::event::{Event, EventKind};
use crate::domain::sequence::Sequences;
use crate::domain::webhook::SealedTarget;
use crate::failpoint::failpoint;
use crate::handoff::HandoffBatch;
use crate::store::enqueue::{self, NewLease};
use crate::store::unrouted::Unrouted;
use crate::store::{GenericClient, StoreError, order, sequences};
use crate::telemetry::{self, recurring};

/// When fresh deliveries are handed off to the local dispatcher.
pub enum HandOffWhen {
    /// With the last statements: requests do not wait for the commit. If it fails, the same changes
    /// are read again and lead to the same deliveries. Those that may have to wait for others are
    /// always handed off after the commit.
    BeforeCommit,
    /// After the commit. For the first transaction, and after a failed one: otherwise receivers
    /// would get a request with each retry.
    AfterCommit,
}

/// Reads the webhooks of the owners of `events`. With `numbered`, also locks and returns the
/// numbers of their last deliveries. This takes another statement only for a webhook that has no
/// number yet.
pub async fn subscriptions_of(
    transaction: &impl GenericClient,
    events: &[Event],
    numbered: bool,
) -> Result<(Subscriptions, Sequences), StoreError> {
    let mut users: Vec<&str> = events.iter().map(|event| &*event.user.0).collect();
    users.sort_unstable();
    users.dedup();

    let mut kinds: Vec<EventKind> = events
        .iter()
        .filter(|_| numbered)
        .map(|event| event.kind)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();

    let mut by_user = Subscriptions::new();
    let mut numbers = Sequences::default();
    let mut unnumbered = Vec::new();

    if !users.is_empty() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        for subscription in enqueue::subscriptions(transaction, &users, &names).await? {
            let webhook = subscription.target.webhook;

            match subscription.last {
                Some(last) => numbers.insert(webhook, last),
                None if subscription.takes_any(&kinds) => unnumbered.push(webhook),
                None => {}
            }

            by_user
                .entry(subscription.user.clone())
                .or_default()
                .push(subscription);
        }
    }

    if !unnumbered.is_empty() {
        sequences::start(transaction, &unnumbered, &mut numbers).await?;
    }

    Ok((by_user, numbers))
}

/// Stores events with their deliveries, part by part. `commit` is sent with the last part.
pub async fn store_events(
    transaction: &impl GenericClient,
    events: &[Event],
    (subscriptions, mut numbers): (Subscriptions, Sequences),
    lease: NewLease,
    mut handoff: HandoffBatch<'_>,
    when: HandOffWhen,
    commit: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let mut fan_out = |part| {
        fan_out(
            part,
            &subscriptions,
            &mut numbers,
            |event, delivery, key, target| {
                handoff.add(
                    event,
                    delivery.id,
                    delivery.webhook,
                    delivery.sequence,
                    key,
                    target.activation,
                )
            },
        )
    };

    let mut parts = events.chunks(EVENTS_AT_ONCE);
    let last = parts.next_back().unwrap_or_default();
    let mut heads = HashSet::new();

    for part in parts {
        heads.extend(insert(transaction, part, &fan_out(part), lease).await?);
    }

    let fanned_out = fan_out(last);
    let numbers = numbers.changed();

    let store_last = async {
        tokio::try_join!(
            biased;
            insert(transaction, last, &fanned_out, lease),
            sequences::store(transaction, &numbers),
            commit
        )
    };

    let targets: Vec<SealedTarget> = subscriptions
        .into_values()
        .flatten()
        .map(|subscription| subscription.target)
        .collect();
    let targets_of_heads = if handoff.has_ordered() {
        targets.clone()
    } else {
        Vec::new()
    };

    match when {
        HandOffWhen::BeforeCommit => {
            handoff.send(targets);
            failpoint!("deliveries_handed_off_events_not_committed")?;
            heads.extend(store_last.await?.0);
        }
        HandOffWhen::AfterCommit => {
            heads.extend(store_last.await?.0);
            handoff.send(targets);
        }
    }

    if !heads.is_empty() {
        failpoint!("events_committed_heads_not_handed_off")?;
    }

    handoff.send_heads(&heads, targets_of_heads);
    Ok(())
}

/// Inserts events with their deliveries. Returns the deliveries with an order key that are leased.
async fn insert(
    transaction: &impl GenericClient,
    events: &[Event],
    fanned_out: &FannedOut,
    lease: NewLease,
) -> Result<Vec<Uuid>, StoreError> {
    let ((), (), heads, ()) = tokio::try_join!(
        biased;
        enqueue::insert_events(transaction, events, false),
        enqueue::insert_deliveries(transaction, &fanned_out.deliveries, lease),
        order::insert(transaction, &fanned_out.ordered, lease),
        enqueue::insert_missed(transaction, &fanned_out.missed),
    )?;
    Ok(heads)
}

/// Inserts events with their deliveries. None is leased, and all with an order key are parked.
pub(super) async fn insert_parked(
    transaction: &impl GenericClient,
    events: &[Event],
    fanned_out: &FannedOut,
    repaired: bool,
) -> Result<(), StoreError> {
    enqueue::insert_events(transaction, events, repaired).await?;
    enqueue::insert_deliveries(transaction, &fanned_out.deliveries, NewLease::NONE).await?;
    order::insert_parked(transaction, &fanned_out.ordered).await?;
    enqueue::insert_missed(transaction, &fanned_out.missed).await
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
            lsn = first.commit.map(tracing::field::display),
            "events that cannot be routed are kept: see `walhook unrouted list`"
        );
    }
}
