//! Stores events with their deliveries inside a transaction.

use std::collections::HashSet;

use metrics::counter;
use uuid::Uuid;

use super::fan_out::{EVENTS_AT_ONCE, FannedOut, Subscriptions, fan_out};
use crate::domain::event::{Event, EventKind};
use crate::domain::sequence::Sequences;
use crate::failpoint::failpoint;
use crate::handoff::HandoffBatch;
use crate::store::delivery::{self, NewLease};
use crate::store::enqueue;
use crate::store::ignored::IgnoredTransitions;
use crate::store::unrouted::Unrouted;
use crate::store::{GenericClient, StoreError, handoffs, sequences};
use crate::telemetry::{self, recurring};

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

/// Stores events with their deliveries, part by part. `commit` is sent with the last part. After it,
/// fresh deliveries are handed off.
pub async fn store_events(
    transaction: &impl GenericClient,
    events: &[Event],
    (subscriptions, mut numbers): (Subscriptions, Sequences),
    lease: NewLease,
    mut handoff: HandoffBatch<'_>,
    commit: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let mut fan_out = |part| {
        fan_out(
            part,
            &subscriptions,
            &mut numbers,
            |event, new, subscription| handoff.add(event, new, subscription.target.activation),
        )
    };

    let mut parts = events.chunks(EVENTS_AT_ONCE);
    let last = parts.next_back().unwrap_or_default();
    let mut parked = HashSet::new();

    for part in parts {
        parked.extend(insert(transaction, part, &fan_out(part), Some(lease)).await?);
    }

    let fanned_out = fan_out(last);
    let numbers = numbers.changed();

    let (last, (), (), ()) = tokio::try_join!(
        biased;
        insert(transaction, last, &fanned_out, Some(lease)),
        handoffs::insert(transaction, handoff.place(), lease),
        sequences::store(transaction, &numbers),
        commit
    )?;

    failpoint!("events_committed_answer_not_received")?;
    parked.extend(last);

    let targets = subscriptions
        .into_values()
        .flatten()
        .map(|subscription| subscription.target)
        .collect();
    handoff.send(&parked, targets);

    Ok(())
}

/// Inserts events with their deliveries. Returns the deliveries that wait for others.
pub(super) async fn insert(
    transaction: &impl GenericClient,
    events: &[Event],
    fanned_out: &FannedOut,
    lease: Option<NewLease>,
) -> Result<Vec<Uuid>, StoreError> {
    let ((), parked, ()) = tokio::try_join!(
        biased;
        enqueue::insert_events(transaction, events),
        delivery::insert(transaction, &fanned_out.deliveries, lease),
        enqueue::insert_missed(transaction, &fanned_out.missed),
    )?;
    Ok(parked)
}

/// Counts stored events, unrouted events and ignored transitions.
pub(super) fn count(events: &[Event], unrouted: &[Unrouted], ignored: &[IgnoredTransitions]) {
    for event in events {
        counter!(telemetry::EVENTS, "event" => event.kind.as_str()).increment(1);
    }

    for IgnoredTransitions {
        reason,
        transitions,
        ..
    } in ignored
    {
        counter!(telemetry::IGNORED_TRANSITIONS, "reason" => reason.clone())
            .increment(*transitions as u64);
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
