//! Statements on deliveries that wait for each other. Of the deliveries of one webhook with the
//! same order key, only the first is due or leased; the others are parked, where no claim visits
//! them.
//!
//! Transactions that insert deliveries lock the webhook's number first (`sequences.rs`), so for one
//! webhook they are consecutive: when a delivery is visible, those with lower numbers are visible
//! too, or have ended. Two things are left to synchronise, an insert and the end of the delivery
//! before it. The insert locks the last delivery of the key against removal and only then looks
//! whether one is pending. If the end comes first, the insert waits for it and finds none. If the
//! insert comes first, the end waits until it is committed, and finds the delivery to promote.
//! Locks are taken in this order: numbers, deliveries by id, webhooks by id. A promotion comes
//! after other deliveries were locked, so it skips rows that are locked.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use deadpool_postgres::Transaction;
use futures_util::StreamExt;
use uuid::Uuid;

use super::claimed::Claimed;
use super::deliver::release_leases;
use super::new_delivery::NewLease;
use super::statement::{Statements, arrays, from_row};
use super::{GenericClient, Result, Store, plan_by_index};
use crate::domain::delivery::{Delivery, Lease, NewDelivery};
use crate::domain::ordering::Ordering;
use crate::sql::store as sql;

/// A webhook and an order key.
pub type Key = (Uuid, i64);

/// Stores deliveries, those of a webhook in the order of their numbers. Returns the ids of those
/// that wait for others. The transaction has locked the webhooks' numbers.
pub async fn insert(
    transaction: &impl GenericClient,
    deliveries: &[NewDelivery],
    lease: NewLease,
) -> Result<Vec<Uuid>> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }

    let keys: BTreeSet<Key> = deliveries
        .iter()
        .filter(|new| !new.is_parked)
        .filter_map(|new| Some((new.webhook, new.order_key?)))
        .collect();

    // Otherwise they could be sent in another order. Usually the connection has prepared them.
    prepare_insert(transaction).await?;
    let ((), parked) = tokio::try_join!(
        biased;
        lock_tails(transaction, &keys),
        insert_rows(transaction, deliveries, lease),
    )?;

    Ok(parked)
}

async fn lock_tails(transaction: &impl GenericClient, keys: &BTreeSet<Key>) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }

    let tails = arrays!(keys, |key| (key.0, key.1));
    let tails = tails.params();
    tokio::try_join!(
        biased;
        plan_by_index(transaction),
        transaction.run(sql::delivery::LOCK_TAILS, &tails),
    )?;

    Ok(())
}

async fn insert_rows(
    transaction: &impl GenericClient,
    deliveries: &[NewDelivery],
    lease: NewLease,
) -> Result<Vec<Uuid>> {
    let rows = arrays!(deliveries, |new| (
        new.id,
        new.webhook,
        new.event,
        new.leased,
        new.sequence,
        new.order_key,
        new.is_parked,
    ));
    transaction
        .fetch_all(
            sql::delivery::INSERT,
            &rows.followed_by(&[&lease.token, &lease.seconds]),
        )
        .await
}

/// Prepares the statements of [`insert`], so that they can be sent together.
pub(super) async fn prepare_insert(client: &impl GenericClient) -> Result<()> {
    for statement in [sql::delivery::LOCK_TAILS, sql::delivery::INSERT] {
        client.prepare_cached(statement).await?;
    }

    Ok(())
}

/// The lease of promoted deliveries, for the process that promotes them.
#[derive(Clone, Copy, Debug)]
pub struct PromotionLease {
    pub lease: Lease,
    pub length: Duration,
    /// The most bytes of event data. Deliveries beyond that are due for any replica; the first is
    /// always leased.
    pub max_bytes: usize,
}

/// Makes the first delivery of each key due, if it is parked: after the delivery before it was
/// removed. Returns those that are leased. Reads rows one by one, so that the data of deliveries
/// beyond the limit does not stay in memory.
pub async fn promote(
    transaction: &Transaction<'_>,
    keys: &BTreeSet<Key>,
    lease: Option<PromotionLease>,
) -> Result<Vec<Delivery>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }

    let (token, seconds) = lease
        .map(|lease| (lease.lease.token, lease.length.as_secs_f64()))
        .unzip();
    let keys = arrays!(keys, |key| (key.0, key.1));
    let statement = transaction.prepare_cached(sql::delivery::PROMOTE).await?;
    let mut rows = pin!(
        transaction
            .query_raw(&statement, keys.followed_by(&[&token, &seconds]))
            .await?
    );
    let mut promoted = Claimed::default();
    let mut refused = Vec::new();
    let mut bytes = 0;

    while let Some(row) = rows.next().await.transpose()? {
        let Some(PromotionLease {
            lease, max_bytes, ..
        }) = lease
        else {
            continue;
        };

        bytes += row.get::<_, Option<&str>>("data").map_or(0, str::len);
        let id = row.get("id");

        if bytes > max_bytes && !promoted.deliveries.is_empty() {
            refused.push((id, lease.token));
        } else {
            promoted.add(id, &row, lease)?;
        }
    }

    release_leases(transaction, refused).await?;
    Ok(promoted.deliveries)
}

/// The result of looking for deliveries that are parked although nothing is pending before them.
#[derive(Clone, Copy, Debug)]
pub struct Visited {
    pub keys: i64,
    /// The last key that was visited. None if there was none.
    webhook: Option<Uuid>,
    key: Option<i64>,
    /// How many deliveries were made due.
    pub promoted: i64,
}

from_row!(Visited { keys = "visited", webhook, key, promoted });

impl Visited {
    /// The last key that was visited.
    pub fn last(&self) -> Option<Key> {
        self.webhook.zip(self.key)
    }
}

impl Store {
    /// Visits up to `limit` keys after `after`, and makes their first deliveries due if they are
    /// parked.
    pub async fn promote_stranded(&self, (webhook, key): Key, limit: i32) -> Result<Visited> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;

        plan_by_index(&transaction).await?;
        let visited = transaction
            .fetch_one(sql::delivery::PROMOTE_STRANDED, &[&webhook, &key, &limit])
            .await?;
        transaction.commit().await?;

        Ok(visited)
    }
}

/// Returns the ordering of a webhook's new deliveries.
pub async fn ordering(transaction: &Transaction<'_>, webhook: Uuid) -> Result<Ordering> {
    let ordering: Option<Ordering> = transaction
        .fetch_optional(sql::webhook::ORDERING, &[&webhook])
        .await?;
    Ok(ordering.unwrap_or(Ordering::None))
}
