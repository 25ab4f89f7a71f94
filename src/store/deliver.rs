//! What the dispatcher needs of the store: work to do, where to send it, and a way to give work back.

use std::pin::pin;
use std::time::{Duration, Instant};

use deadpool_postgres::Transaction;
use futures_util::StreamExt;
use postgres_types::ToSql;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Result, Store, StoreError, plan_by_index};
use crate::domain::delivery::{Delivery, Lease, lease_length};
use crate::domain::webhook::SealedTarget;
use crate::postgres::ANSWER_TIMEOUT;
use crate::telemetry::recurring;

const CLAIM_FRESH: &str = include_str!("../../sql/store/delivery_claim_fresh.sql");
const CLAIM_RETRY: &str = include_str!("../../sql/store/delivery_claim_retry.sql");
const RELEASE: &str = include_str!("../../sql/store/delivery_release.sql");
const REMOVE_ORPHANS: &str = include_str!("../../sql/store/delivery_remove_orphans.sql");
const TARGETS: &str = include_str!("../../sql/store/webhook_targets.sql");

/// First attempts and retries are claimed apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Fresh,
    Retries,
}

/// How much to claim, and where to begin.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub due: Due,
    /// How long a request may take: leases are longer.
    pub timeout: Duration,
    /// Webhooks are visited in order of id, from behind this one.
    pub behind: Uuid,
    pub max_webhooks: usize,
    pub max_rows: usize,
    /// Bytes of data in memory. What is found beyond is released at once; one delivery is always taken.
    pub max_bytes: usize,
    /// Rows of each webhook that is not in `rooms`.
    pub per_webhook: usize,
    pub rooms: Vec<(Uuid, usize)>,
}

#[derive(Debug, Default)]
pub struct Claimed {
    pub deliveries: Vec<Delivery>,
    /// Deliveries whose event is gone by age: they can only be removed.
    pub orphans: Vec<Uuid>,
    /// How many were found and released because they did not fit into `max_bytes`.
    pub refused: usize,
    /// Where the next claim should begin; none when all webhooks have been visited.
    pub behind: Option<Uuid>,
}

impl Store {
    /// Leases deliveries that are due and nobody's.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        self.in_time(ANSWER_TIMEOUT, self.claim_due(request)).await
    }

    async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed> {
        let mut connection = self.connection().await?;
        let token = Uuid::now_v7();
        let length = lease_length(request.timeout);
        // Read before the database reads its own clock, which is when the transaction begins: ours ends first.
        let until = Instant::now() + length;
        let transaction = connection.transaction().await?;
        let lease = Lease { token, until };
        let ((), (claimed, mut refused)) =
            tokio::try_join!(biased; plan_by_index(&transaction), claim(&transaction, request, lease, length))?;
        if !refused.is_empty() {
            refused.sort_unstable();
            let statement = transaction.prepare_cached(RELEASE).await?;
            transaction.execute(&statement, &[&refused, &vec![token; refused.len()]]).await?;
        }
        transaction.commit().await?;
        Ok(claimed)
    }

    /// Gives leases back that nothing was done with.
    pub async fn release(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        plan_by_index(&transaction).await?;
        let statement = transaction.prepare_cached(RELEASE).await?;
        let mut held: Vec<(Uuid, Uuid)> =
            deliveries.iter().map(|delivery| (delivery.id, delivery.lease.token)).collect();
        held.sort_unstable();
        let (ids, leases): (Vec<Uuid>, Vec<Uuid>) = held.into_iter().unzip();
        transaction.execute(&statement, &[&ids, &leases]).await?;
        Ok(transaction.commit().await?)
    }

    /// Removes the deliveries of those `webhooks` that are gone, and those of `deliveries` whose event is gone.
    pub async fn remove_orphans(&self, webhooks: &[Uuid], deliveries: &[Uuid]) -> Result<u64> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(REMOVE_ORPHANS).await?;
        Ok(connection.execute(&statement, &[&webhooks, &deliveries]).await?)
    }

    /// Those of `webhooks` that exist, as they are now.
    pub async fn targets(&self, webhooks: &[Uuid]) -> Result<Vec<SealedTarget>> {
        self.in_time(ANSWER_TIMEOUT, self.read_targets(webhooks)).await
    }

    async fn read_targets(&self, webhooks: &[Uuid]) -> Result<Vec<SealedTarget>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(TARGETS).await?;
        let rows = connection.query(&statement, &[&webhooks]).await?;
        let target = |row: &Row| SealedTarget {
            webhook: row.get("id"),
            url: row.get("url"),
            active: row.get("active"),
            secret: row.get("secret"),
            secret_key_id: row.get("secret_key_id"),
        };
        Ok(rows.iter().map(target).collect())
    }
}

/// What was claimed, and the deliveries that did not fit. Rows are read one by one, so that no more of them are in memory.
async fn claim(
    transaction: &Transaction<'_>,
    request: &ClaimRequest,
    lease: Lease,
    length: Duration,
) -> Result<(Claimed, Vec<Uuid>)> {
    let statement = match request.due {
        Due::Fresh => CLAIM_FRESH,
        Due::Retries => CLAIM_RETRY,
    };
    let statement = transaction.prepare_cached(statement).await?;
    let (webhooks, rooms): (Vec<Uuid>, Vec<i64>) =
        request.rooms.iter().map(|(webhook, room)| (*webhook, *room as i64)).unzip();
    let (seconds, max_webhooks) = (length.as_secs_f64(), i32::try_from(request.max_webhooks).unwrap_or(i32::MAX));
    let (max_rows, per_webhook) = (request.max_rows as i64, request.per_webhook as i64);
    let arguments: [&(dyn ToSql + Sync); 8] =
        [&lease.token, &seconds, &request.behind, &max_webhooks, &max_rows, &per_webhook, &webhooks, &rooms];
    let rows = transaction.query_raw(&statement, arguments).await?;
    let mut rows = pin!(rows);
    let (mut claimed, mut refused, mut bytes) = (Claimed::default(), Vec::new(), 0);
    while let Some(row) = rows.next().await.transpose()? {
        let visited: i64 = row.get("visited");
        claimed.behind = row.get::<_, Option<Uuid>>("last").filter(|_| visited as usize >= request.max_webhooks);
        bytes += row.get::<_, Option<&str>>("data").map_or(0, str::len);
        match row.get::<_, Option<Uuid>>("id") {
            Some(id) if bytes > request.max_bytes && !claimed.deliveries.is_empty() => refused.push(id),
            _ => claimed.add(&row, lease)?,
        }
    }
    claimed.refused = refused.len();
    Ok((claimed, refused))
}

impl Claimed {
    fn add(&mut self, row: &Row, lease: Lease) -> Result<()> {
        let Some(id) = row.get::<_, Option<Uuid>>("id") else { return Ok(()) };
        let Some(kind) = row.get::<_, Option<&str>>("kind") else {
            self.orphans.push(id);
            return Ok(());
        };
        let Ok(kind) = kind.parse() else {
            // Of a newer build, perhaps: its replicas know it. The lease keeps it from us for a while.
            recurring!(warn, delivery = %id, kind, "deliveries of an event that this build does not know are left alone");
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
            lease,
        });
        Ok(())
    }
}
