//! Pending deliveries: they are inserted, claimed, released, promoted and cancelled here, and end in
//! `attempt.rs`.
//!
//! Of the deliveries of one webhook with the same order key, only the first is due or leased; the
//! others are parked, where no claim visits them. Transactions that insert deliveries lock the
//! webhook's number first (`sequences.rs`), so for one webhook they are consecutive: when a delivery
//! is visible, those with lower numbers are visible too, or have ended. Two things are left to
//! synchronise, an insert and the end of the delivery before it. The insert locks the last delivery
//! of the key against removal and only then looks whether one is pending. If the end comes first,
//! the insert waits for it and finds none. If the insert comes first, the end waits until it is
//! committed, and finds the delivery to promote. Locks are taken in this order: numbers, hand-offs
//! by lease (`handoffs.rs`), deliveries by id, webhooks by id. A promotion comes after other
//! deliveries were locked, so it skips rows that are locked.
//!
//! A webhook that is inactive or was deleted may have a million pending deliveries. They are not
//! part of the transaction that switches it off: that one changes the webhook, which ends its
//! requests, and its deliveries are then cancelled in chunks, each of which is one short
//! transaction. Any replica continues where another one ended. A webhook is activated only when
//! nothing of it is pending, so whatever an inactive webhook has pending is to be cancelled.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use deadpool_postgres::{GenericClient, Transaction};
use futures_util::TryStreamExt;
use postgres_types::ToSql;
use tokio_postgres::Row;
use uuid::Uuid;

use super::handoffs::{Handoffs, Locked, unpack};
use super::statement::{Statements, arrays, from_row, stream_rows};
use super::{Result, Store, StoreError, hours, plan_by_index};
use crate::domain::delivery::{Delivery, DeliveryClass, Lease, NewDelivery, lease_length};
use crate::failpoint::failpoint;
use crate::sql::store as sql;
use crate::telemetry::recurring;

/// Claims retries instead of first attempts.
static CLAIM_RETRIES: LazyLock<String> =
    LazyLock::new(|| sql::delivery::CLAIM.replace("attempt = 1", "attempt > 1"));

/// The most deliveries that one transaction cancels, which took about 0.15 seconds on a busy
/// machine.
const CANCELLED_AT_ONCE: i64 = 2_000;

/// A webhook and an order key.
pub type Key = (Uuid, i64);

/// A lease that a transaction grants to this process, and its length.
#[derive(Clone, Copy, Debug)]
pub struct NewLease {
    pub lease: Lease,
    pub length: Duration,
}

impl NewLease {
    /// Call it before the transaction begins, when the database reads its clock: by this process's
    /// clock the lease ends first.
    pub fn starting_now(length: Duration) -> NewLease {
        let lease = Lease {
            token: Uuid::now_v7(),
            until: Instant::now() + length,
            place: None,
        };

        NewLease { lease, length }
    }

    /// Returns the parameters of a statement. Both are null if no lease is granted.
    fn params(lease: Option<NewLease>) -> (Option<Uuid>, Option<f64>) {
        lease
            .map(|NewLease { lease, length }| (lease.token, length.as_secs_f64()))
            .unzip()
    }
}

/// Stores deliveries, those of a webhook in the order of their numbers. Returns the ids of those
/// that wait for others. The transaction has locked the webhooks' numbers.
pub async fn insert(
    transaction: &impl GenericClient,
    deliveries: &[NewDelivery],
    lease: Option<NewLease>,
) -> Result<Vec<Uuid>> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }

    let keys: BTreeSet<Key> = deliveries
        .iter()
        .filter(|new| !new.is_parked)
        .filter_map(|new| Some((new.webhook, new.order_key?)))
        .collect();
    let (token, seconds) = NewLease::params(lease);
    let rows = arrays!(deliveries, |new| (
        new.id,
        new.webhook,
        new.event,
        new.leased,
        new.sequence,
        new.order_key,
        new.is_parked,
    ));
    let rows = rows.followed_by(&[&token, &seconds]);

    // Otherwise they could be sent in another order. Usually the connection has prepared them.
    prepare_insert(transaction).await?;
    let ((), parked) = tokio::try_join!(
        biased;
        lock_tails(transaction, &keys),
        transaction.fetch_all(sql::delivery::INSERT, &rows),
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

/// Prepares the statements of [`insert`], so that they can be sent together.
pub(super) async fn prepare_insert(client: &impl GenericClient) -> Result<()> {
    for statement in [sql::delivery::LOCK_TAILS, sql::delivery::INSERT] {
        client.prepare_cached(statement).await?;
    }

    Ok(())
}

/// How much to claim, and from which webhooks.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub class: DeliveryClass,
    /// How long a request may take. Leases last longer.
    pub timeout: Duration,
    /// Webhooks are visited in order of id, starting after this one.
    pub start_after: Uuid,
    /// The last webhook that may be visited. None if all may be.
    pub end_with: Option<Uuid>,
    pub max_webhooks: usize,
    pub max_rows: usize,
    /// The most bytes of event data. Deliveries beyond that are released at once; the first is
    /// always taken.
    pub max_bytes: usize,
    /// The most deliveries of each webhook that is not listed in `limits`.
    pub per_webhook: usize,
    /// Webhooks with their own limits, sorted.
    pub limits: Vec<(Uuid, usize)>,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    pub deliveries: Vec<Delivery>,
    /// Deliveries whose event was removed by age. They can only be removed.
    pub orphans: Vec<Uuid>,
    /// Deliveries that were due but exceeded the limit of bytes, and were released.
    pub refused: Vec<Uuid>,
    /// How many webhooks were visited.
    pub visited: usize,
    /// The last webhook visited. None when all webhooks were visited.
    pub last_visited: Option<Uuid>,
    /// The bytes of event data that were read.
    pub bytes: usize,
}

impl Claimed {
    /// Adds the delivery of a row. Those beyond `max_bytes` are refused, except for the first.
    fn add(&mut self, row: &Row, lease: Lease, max_bytes: usize) -> Result<()> {
        let id = row.get("id");
        self.bytes += row.get::<_, Option<&str>>("data").map_or(0, str::len);

        if self.bytes > max_bytes && !self.deliveries.is_empty() {
            self.refused.push(id);
            return Ok(());
        }

        let Some(kind) = row.get::<_, Option<&str>>("kind") else {
            self.orphans.push(id);
            return Ok(());
        };

        let Ok(kind) = kind.parse() else {
            // Replicas of a newer build may know it. The lease keeps this replica from claiming it
            // again for a while.
            recurring!(warn, delivery = %id, kind, "deliveries of an event type that this build does not know are left alone");
            return Ok(());
        };

        let number = |name: &str| {
            let negative = |_| StoreError::Corrupt(format!("delivery {id}: {name} is negative"));
            u16::try_from(row.get::<_, i16>(name)).map_err(negative)
        };

        self.deliveries.push(Delivery {
            id,
            webhook: row.get("webhook_id"),
            event: row.get("event_id"),
            kind,
            occurred_at: row.get("occurred_at"),
            data: row.get::<_, &str>("data").into(),
            round: number("round")?,
            attempt: number("attempt")?,
            sequence: row.get("sequence"),
            order_key: row.get("order_key"),
            activation: row.get("activation"),
            lease,
        });

        Ok(())
    }
}

impl Store {
    /// Leases deliveries that are due and not leased.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        let lease = NewLease::starting_now(lease_length(request.timeout));
        let claim = self.transaction(async |transaction| {
            let ((), claimed) = tokio::try_join!(
                biased;
                plan_by_index(transaction),
                claim(transaction, request, lease)
            )?;

            release_refused(transaction, &claimed, lease.lease).await?;

            if !claimed.deliveries.is_empty() {
                failpoint!("deliveries_leased_claim_not_committed")?;
            }

            Ok::<_, StoreError>(claimed)
        });
        let claimed = claim.await?;

        if !claimed.deliveries.is_empty() {
            failpoint!("claim_committed_deliveries_not_queued")?;
        }

        Ok(claimed)
    }

    /// Releases the leases of deliveries that were not attempted.
    pub async fn release(&self, deliveries: &[Delivery]) -> Result<()> {
        let held: Vec<(Uuid, Uuid)> = deliveries
            .iter()
            .map(|delivery| (delivery.id, delivery.lease.token))
            .collect();
        let placed = deliveries
            .iter()
            .filter(|delivery| delivery.lease.place.is_some());
        let leases: BTreeSet<Uuid> = placed.map(|delivery| delivery.lease.token).collect();
        let leases: Vec<Uuid> = leases.into_iter().collect();

        self.transaction(async |transaction| {
            plan_by_index(transaction).await?;
            unpack(transaction, Handoffs::Leased(&leases), Locked::Wait).await?;
            release_leases(transaction, held).await
        })
        .await
    }

    /// Removes those of `deliveries` whose event does not exist. Deliveries that waited for them
    /// are due.
    pub async fn remove_orphans(&self, deliveries: &[Uuid]) -> Result<usize> {
        self.transaction(async |transaction| {
            plan_by_index(transaction).await?;
            let removed: Vec<(Uuid, Option<i64>)> = transaction
                .fetch_all(sql::delivery::REMOVE_ORPHANS, &[&deliveries])
                .await?;
            let keys = removed
                .iter()
                .filter_map(|(webhook, key)| Some((*webhook, (*key)?)))
                .collect();

            promote(transaction, &keys, None).await?;
            Ok(removed.len())
        })
        .await
    }
}

async fn release_refused(
    transaction: &Transaction<'_>,
    claimed: &Claimed,
    lease: Lease,
) -> Result<()> {
    let held = claimed.refused.iter().map(|id| (*id, lease.token));
    release_leases(transaction, held.collect()).await
}

/// Releases deliveries with these leases: they are due for any replica.
async fn release_leases(transaction: &Transaction<'_>, mut held: Vec<(Uuid, Uuid)>) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }

    held.sort_unstable();
    let (ids, leases): (Vec<Uuid>, Vec<Uuid>) = held.into_iter().unzip();
    transaction
        .run(sql::delivery::RELEASE, &[&ids, &leases])
        .await?;

    Ok(())
}

/// Returns the SQL statement that claims deliveries of this class.
pub fn claim_statement(class: DeliveryClass) -> &'static str {
    match class {
        DeliveryClass::Fresh => sql::delivery::CLAIM,
        DeliveryClass::Retry => &CLAIM_RETRIES,
    }
}

/// Claims deliveries. Reads rows one by one, so that the data of those that are refused does not
/// stay in memory.
async fn claim(
    transaction: &Transaction<'_>,
    request: &ClaimRequest,
    NewLease { lease, length }: NewLease,
) -> Result<Claimed> {
    let statement = claim_statement(request.class);
    let (webhooks, limits): (Vec<Uuid>, Vec<i64>) = request
        .limits
        .iter()
        .map(|(webhook, limit)| (*webhook, *limit as i64))
        .unzip();
    let seconds = length.as_secs_f64();
    let max_webhooks = i32::try_from(request.max_webhooks).unwrap_or(i32::MAX);
    let max_rows = request.max_rows as i64;
    let per_webhook = request.per_webhook as i64;
    let start_after = &request.start_after;
    let end_with = &request.end_with.unwrap_or(Uuid::max());

    let arguments: [&(dyn ToSql + Sync); 9] = [
        &lease.token,
        &seconds,
        start_after,
        &max_webhooks,
        &max_rows,
        &per_webhook,
        &webhooks,
        &limits,
        end_with,
    ];

    let mut rows = pin!(stream_rows(transaction, statement, &arguments).await?);
    let mut claimed = Claimed::default();

    while let Some(row) = rows.try_next().await? {
        claimed.visited = row.get::<_, i64>("visited") as usize;
        claimed.last_visited = row
            .get::<_, Option<Uuid>>("last")
            .filter(|_| claimed.visited >= request.max_webhooks);

        if row.get::<_, Option<Uuid>>("id").is_some() {
            claimed.add(&row, lease, request.max_bytes)?;
        }
    }

    Ok(claimed)
}

/// The lease of promoted deliveries, for the process that promotes them.
#[derive(Clone, Copy, Debug)]
pub struct PromotionLease {
    pub lease: NewLease,
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
    promotion: Option<PromotionLease>,
) -> Result<Vec<Delivery>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }

    let (token, seconds) = NewLease::params(promotion.map(|promotion| promotion.lease));
    let keys = arrays!(keys, |key| (key.0, key.1));

    let Some(PromotionLease { lease, max_bytes }) = promotion else {
        let params = keys.followed_by(&[&token, &seconds]);
        transaction.run(sql::delivery::PROMOTE, &params).await?;
        return Ok(Vec::new());
    };

    let params = keys.followed_by(&[&token, &seconds]);
    let mut rows = pin!(stream_rows(transaction, sql::delivery::PROMOTE, &params).await?);
    let mut promoted = Claimed::default();

    while let Some(row) = rows.try_next().await? {
        promoted.add(&row, lease.lease, max_bytes)?;
    }

    release_refused(transaction, &promoted, lease.lease).await?;
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
        self.fetch_by_index(sql::delivery::PROMOTE_STRANDED, &[&webhook, &key, &limit])
            .await
    }
}

/// Webhooks with pending deliveries that are to be cancelled.
#[derive(Clone, Debug)]
pub struct Cancellable {
    pub webhooks: Vec<Uuid>,
    /// How many webhooks were visited.
    pub visited: i64,
    /// The last one.
    pub last: Option<Uuid>,
}

from_row!(Cancellable {
    webhooks,
    visited,
    last
});

/// How many deliveries were removed, and how many of them have a row in the attempt log.
struct CancelledChunk {
    removed: i64,
    logged: i64,
}

from_row!(CancelledChunk { removed, logged });

impl Store {
    /// Visits up to `limit` webhooks with pending deliveries, in order of id, and returns those
    /// whose deliveries are to be cancelled.
    pub async fn find_cancellable(&self, after: Uuid, limit: i32) -> Result<Cancellable> {
        self.fetch_by_index(sql::delivery::FIND_CANCELLABLE, &[&after, &limit])
            .await
    }

    /// Cancels and logs a chunk of the webhook's pending deliveries, if it is inactive or was
    /// deleted. Skips deliveries that another transaction has locked. Returns how many are no
    /// longer pending.
    pub async fn cancel_pending(&self, webhook: Uuid) -> Result<u64> {
        self.transaction(async |transaction| {
            plan_by_index(transaction).await?;
            unpack(transaction, Handoffs::OfWebhook(webhook), Locked::Skip).await?;
            let CancelledChunk { removed, logged } = transaction
                .fetch_one(sql::delivery::CANCEL, &[&webhook, &CANCELLED_AT_ONCE])
                .await?;

            if removed > 0 {
                hours::add_cancelled(transaction, webhook, logged.unsigned_abs()).await?;
                failpoint!("deliveries_cancelled_chunk_not_committed")?;
            }

            Ok(removed.unsigned_abs())
        })
        .await
    }

    /// Cancels a chunk of the webhook's pending deliveries, so that few are cancelled at once. If
    /// it fails, or there are more, replicas cancel them later.
    pub(super) async fn cancel_some(&self, webhook: Uuid) {
        if let Err(error) = self.cancel_pending(webhook).await {
            tracing::debug!(%webhook, %error, "deliveries of a webhook that was switched off are cancelled later");
        }
    }
}

/// Whether the webhook has pending deliveries.
pub(super) async fn has_pending(transaction: &Transaction<'_>, webhook: Uuid) -> Result<bool> {
    plan_by_index(transaction).await?;
    transaction.fetch_one(sql::delivery::ANY, &[&webhook]).await
}
