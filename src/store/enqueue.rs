//! Events with their deliveries, events that webhooks miss or that have no owner, and the releases
//! that are distributed.

use std::collections::HashSet;

use deadpool_postgres::GenericClient;
use uuid::Uuid;

use super::statement::{Params, Statements, arrays, from_row};
use super::{Result, Store, delivery};
use crate::domain::about::SearchKeys;
use crate::domain::cell::Shard;
use crate::domain::event::{Event, EventKind, UserId};
use crate::domain::ordering::Ordering;
use crate::domain::subject::{EventFilter, Subject, is_wanted};
use crate::domain::webhook::SealedTarget;
use crate::sql::store as sql;

/// A webhook, as the transaction found it.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub user: UserId,
    /// An inactive webhook gets no deliveries. The events that it misses are stored.
    pub target: SealedTarget,
    pub events: Vec<EventKind>,
    pub ordering: Ordering,
    /// The number of its last delivery, which is locked. None for a webhook that gets no delivery,
    /// or whose first this is.
    pub last: Option<i64>,
    pub filter: Option<EventFilter>,
}

from_row!(Subscription { user = "user_id", target: SealedTarget::from_row, events: events, ordering, filter, last });

impl Subscription {
    /// Whether an event of one of `kinds` may make a delivery.
    pub fn takes_any(&self, kinds: &[EventKind]) -> bool {
        self.target.active && self.events.iter().any(|event| kinds.contains(event))
    }

    /// Returns whether the event goes to the webhook, if that is active.
    pub fn wants(&self, event: &Subject<'_>) -> bool {
        is_wanted(&self.events, self.filter.as_ref(), event)
    }
}

/// Leaves out the events of a newer version, which this one cannot raise.
fn events(row: &tokio_postgres::Row) -> Result<Vec<EventKind>> {
    let names: Vec<&str> = row.try_get("events")?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Claims releases for the event that is raised once per release. Returns those that were never
/// distributed before.
pub async fn claim_distributed(
    transaction: &impl GenericClient,
    releases: &HashSet<i64>,
) -> Result<HashSet<i64>> {
    releases_by(transaction, sql::distributed_release::CLAIM, releases).await
}

/// Returns the releases that were never distributed before, without claiming them.
pub async fn undistributed(
    transaction: &impl GenericClient,
    releases: &HashSet<i64>,
) -> Result<HashSet<i64>> {
    releases_by(transaction, sql::distributed_release::NEW, releases).await
}

async fn releases_by(
    client: &impl GenericClient,
    sql: &str,
    releases: &HashSet<i64>,
) -> Result<HashSet<i64>> {
    if releases.is_empty() {
        return Ok(HashSet::new());
    }

    let releases: Vec<i64> = releases.iter().copied().collect();
    Ok(client
        .fetch_all(sql, &[&releases])
        .await?
        .into_iter()
        .collect())
}

/// Stores releases that were distributed before capture began. Their event is not raised again.
pub async fn seed_distributed(transaction: &impl GenericClient, releases: &[i64]) -> Result<()> {
    transaction
        .run(sql::distributed_release::SEED, &[&releases])
        .await?;
    Ok(())
}

/// Returns the webhooks of `users`. Locks the numbers of those that may get a delivery of an event
/// of `kinds`.
pub async fn subscriptions(
    transaction: &impl GenericClient,
    users: &[&str],
    kinds: &[&str],
) -> Result<Vec<Subscription>> {
    transaction
        .fetch_all(sql::webhook::SUBSCRIPTIONS, &[&users, &kinds])
        .await
}

/// Prepares the statements that store events, deliveries, missed events and numbers, so that each
/// can be sent without waiting for an answer.
pub async fn prepare_inserts(client: &impl GenericClient) -> Result<()> {
    for statement in [
        sql::event::INSERT,
        sql::handoff::INSERT,
        sql::missed_event::INSERT,
        sql::webhook_sequence::STORE,
    ] {
        client.prepare_cached(statement).await?;
    }

    delivery::prepare_insert(client).await
}

impl Store {
    /// Opens a connection and prepares the statements that store a batch. The pool gives this
    /// connection to the next batch.
    pub async fn prepare_enqueue(&self) -> Result<()> {
        let connection = self.connection().await?;

        for statement in [
            sql::checkpoint::GET,
            sql::checkpoint::ADVANCE,
            sql::webhook::SUBSCRIPTIONS,
            sql::ledger::PUT,
            sql::lookup_row::LIST,
        ] {
            connection.prepare_cached(statement).await?;
        }

        prepare_inserts(&*connection).await
    }
}

/// Stores events, and numbers them in this order.
pub async fn insert_events(transaction: &impl GenericClient, events: &[Event]) -> Result<()> {
    let keyed: Vec<(&Event, SearchKeys)> = events
        .iter()
        .map(|event| (event, SearchKeys::of(&event.data)))
        .collect();
    let rows = arrays!(keyed, |(event, keys)| (
        event.id,
        &event.user,
        event.kind.as_str(),
        event.occurred_at,
        event.position.commit(),
        event.position.ordinal() as i64,
        event.label,
        &*event.data,
        keys.release,
        keys.catalogue,
        keys.track,
        event.repaired,
        Shard::of(&event.user).0 as i16,
    ));
    run_unless_empty(
        transaction,
        sql::event::INSERT,
        events.len(),
        &rows.params(),
    )
    .await
}

/// Stores which inactive webhooks missed which events.
pub async fn insert_missed(
    transaction: &impl GenericClient,
    missed: &[(Uuid, Uuid)],
) -> Result<()> {
    let rows = arrays!(missed, |pair| (pair.0, pair.1));
    run_unless_empty(
        transaction,
        sql::missed_event::INSERT,
        missed.len(),
        &rows.params(),
    )
    .await
}

async fn run_unless_empty(
    client: &impl GenericClient,
    sql: &str,
    rows: usize,
    params: &Params<'_>,
) -> Result<()> {
    if rows > 0 {
        client.run(sql, params).await?;
    }

    Ok(())
}
