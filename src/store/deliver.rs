//! Statements of the dispatcher: claim and release deliveries, and read the webhooks they go to.

use std::pin::pin;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use deadpool_postgres::Transaction;
use futures_util::StreamExt;
use postgres_types::ToSql;
use uuid::Uuid;

pub use super::claimed::Claimed;
use super::statement::Statements;
use super::{Result, Store, order, plan_by_index};
use crate::domain::delivery::{Delivery, Lease, lease_length};
use crate::failpoint::failpoint;
use crate::postgres::ANSWER_TIMEOUT;
use crate::sql::store as sql;

static CLAIM_RETRIES: LazyLock<String> =
    LazyLock::new(|| sql::delivery::CLAIM.replace("attempt = 1", "attempt > 1"));

/// First attempts and retries are claimed and queued separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryClass {
    Fresh,
    Retry,
}

impl DeliveryClass {
    pub fn of(delivery: &Delivery) -> DeliveryClass {
        if delivery.attempt > 1 {
            DeliveryClass::Retry
        } else {
            DeliveryClass::Fresh
        }
    }

    /// Returns the SQL statement that claims deliveries of this class.
    pub fn claim_statement(self) -> &'static str {
        match self {
            DeliveryClass::Fresh => sql::delivery::CLAIM,
            DeliveryClass::Retry => &CLAIM_RETRIES,
        }
    }
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

impl Store {
    /// Leases deliveries that are due and not leased.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        self.in_time(ANSWER_TIMEOUT, self.claim_due(request)).await
    }

    async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed> {
        let mut connection = self.connection().await?;
        let length = lease_length(request.timeout);

        // Computed before the transaction begins, when the database reads its clock: by this
        // process's clock the lease ends first.
        let lease = Lease {
            token: Uuid::now_v7(),
            until: Instant::now() + length,
        };

        let transaction = connection.transaction().await?;
        let ((), (claimed, refused)) = tokio::try_join!(biased; plan_by_index(&transaction), claim(&transaction, request, lease, length))?;

        release_leases(
            &transaction,
            refused.into_iter().map(|id| (id, lease.token)).collect(),
        )
        .await?;

        if !claimed.deliveries.is_empty() {
            failpoint!("deliveries_leased_claim_not_committed")?;
        }

        transaction.commit().await?;

        if !claimed.deliveries.is_empty() {
            failpoint!("claim_committed_deliveries_not_queued")?;
        }

        Ok(claimed)
    }

    /// Releases the leases of deliveries that were not attempted.
    pub async fn release(&self, deliveries: &[Delivery]) -> Result<()> {
        self.in_time(ANSWER_TIMEOUT, self.release_all(deliveries))
            .await
    }

    async fn release_all(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;

        plan_by_index(&transaction).await?;
        let held = deliveries
            .iter()
            .map(|delivery| (delivery.id, delivery.lease.token))
            .collect();
        release_leases(&transaction, held).await?;

        Ok(transaction.commit().await?)
    }

    /// Removes those of `deliveries` whose event does not exist. Deliveries that waited for them
    /// are due.
    pub async fn remove_orphans(&self, deliveries: &[Uuid]) -> Result<usize> {
        self.in_time(ANSWER_TIMEOUT, self.remove(deliveries)).await
    }

    async fn remove(&self, deliveries: &[Uuid]) -> Result<usize> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;

        plan_by_index(&transaction).await?;
        let removed: Vec<(Uuid, Option<i64>)> = transaction
            .fetch_all(sql::delivery::REMOVE_ORPHANS, &[&deliveries])
            .await?;
        let keys = removed
            .iter()
            .filter_map(|(webhook, key)| Some((*webhook, (*key)?)))
            .collect();

        order::promote(&transaction, &keys, None).await?;
        transaction.commit().await?;

        Ok(removed.len())
    }
}

/// Releases deliveries with these leases: they are due for any replica.
pub(super) async fn release_leases(
    transaction: &Transaction<'_>,
    mut held: Vec<(Uuid, Uuid)>,
) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }

    held.sort_unstable();
    let (ids, leases): (Vec<Uuid>, Vec<Uuid>) = held.into_iter().unzip();
    let statement = transaction.prepare_cached(sql::delivery::RELEASE).await?;
    transaction.execute(&statement, &[&ids, &leases]).await?;

    Ok(())
}

/// Claims deliveries. Also returns the ids of those beyond `max_bytes`. Reads rows one by one, so
/// that the data of the latter does not stay in memory.
async fn claim(
    transaction: &Transaction<'_>,
    request: &ClaimRequest,
    lease: Lease,
    length: Duration,
) -> Result<(Claimed, Vec<Uuid>)> {
    let statement = transaction
        .prepare_cached(request.class.claim_statement())
        .await?;
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

    let mut rows = pin!(transaction.query_raw(&statement, arguments).await?);
    let mut claimed = Claimed::default();
    let mut refused = Vec::new();
    let mut bytes = 0;

    while let Some(row) = rows.next().await.transpose()? {
        claimed.visited = row.get::<_, i64>("visited") as usize;
        claimed.last_visited = row
            .get::<_, Option<Uuid>>("last")
            .filter(|_| claimed.visited >= request.max_webhooks);
        bytes += row.get::<_, Option<&str>>("data").map_or(0, str::len);

        match row.get::<_, Option<Uuid>>("id") {
            Some(id) if bytes > request.max_bytes && !claimed.deliveries.is_empty() => {
                refused.push(id)
            }
            Some(id) => claimed.add(id, &row, lease)?,
            None => {}
        }
    }

    claimed.refused = refused.len();
    Ok((claimed, refused))
}
