//! Cancels the pending deliveries of webhooks that are inactive or were deleted. A webhook may have
//! a million of them, so they are not part of the transaction that switches it off: that one
//! changes the webhook, which ends its requests, and its deliveries are then cancelled in chunks,
//! each of which is one short transaction. Any replica continues where another one ended.
//!
//! A webhook is activated only when nothing of it is pending, so whatever an inactive webhook has
//! pending is to be cancelled.

use uuid::Uuid;

use super::statement::{Statements, from_row};
use super::{Result, Store, Transaction, hours, plan_by_index};
use crate::failpoint::failpoint;
use crate::postgres::ANSWER_TIMEOUT;
use crate::sql::store as sql;

/// The most deliveries that one transaction cancels, which took about 0.15 seconds on a busy
/// machine.
const CHUNK: i64 = 2_000;

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
struct Cancelled {
    removed: i64,
    logged: i64,
}

from_row!(Cancelled { removed, logged });

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
        self.in_time(ANSWER_TIMEOUT, self.cancel_chunk(webhook))
            .await
    }

    async fn cancel_chunk(&self, webhook: Uuid) -> Result<u64> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;

        plan_by_index(&transaction).await?;
        let Cancelled { removed, logged } = transaction
            .fetch_one(sql::delivery::CANCEL, &[&webhook, &CHUNK])
            .await?;
        if removed == 0 {
            return Ok(0);
        }

        hours::add_cancelled(&transaction, webhook, logged.unsigned_abs()).await?;
        failpoint!("deliveries_cancelled_chunk_not_committed")?;
        transaction.commit().await?;

        Ok(removed.unsigned_abs())
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
