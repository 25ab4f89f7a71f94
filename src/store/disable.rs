//! Statements that disable webhooks that keep failing, or warn their owners.

use std::collections::BTreeSet;

use deadpool_postgres::Transaction;
use uuid::Uuid;

use super::Result;
use super::record::CompletedAttempt;
use super::statement::Statements;
use crate::domain::event::UserId;
use crate::domain::webhook::Failure;

const LOCK: &str = include_str!("../../sql/store/delivery_lock_with.sql");
const DISABLE: &str = include_str!("../../sql/store/webhook_disable.sql");
const WARN: &str = include_str!("../../sql/store/webhook_warn.sql");

/// A webhook that keeps failing, and why.
#[derive(Clone, Copy, Debug)]
pub struct Failing {
    pub webhook: Uuid,
    pub failure: Failure,
    /// Failures that count towards the threshold.
    pub failures: u64,
    pub threshold: u32,
}

/// Locks all pending deliveries of `webhooks`, together with the batch's own.
pub async fn lock_pending(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
    webhooks: &BTreeSet<Uuid>,
) -> Result<()> {
    let deliveries: Vec<Uuid> = attempts.iter().map(|attempt| attempt.delivery().id).collect();
    let webhooks: Vec<Uuid> = webhooks.iter().copied().collect();
    transaction.run(LOCK, &[&deliveries, &webhooks]).await?;
    Ok(())
}

/// Inserts a warning for the webhook's owner.
pub async fn warn(transaction: &Transaction<'_>, failing: &Failing) -> Result<()> {
    failing.notify(transaction, WARN).await.map(drop)
}

/// Disables the webhook and inserts a notice for its owner, who is returned. Does nothing if the webhook is inactive.
pub async fn disable(transaction: &Transaction<'_>, failing: &Failing) -> Result<Option<UserId>> {
    failing.notify(transaction, DISABLE).await
}

impl Failing {
    async fn notify(&self, transaction: &Transaction<'_>, sql: &str) -> Result<Option<UserId>> {
        let (reason, kind) = (self.failure.in_words(), self.failure.kind.as_str());
        let (failures, threshold) = (self.failures as i64, i64::from(self.threshold));
        let notice = Uuid::now_v7();
        transaction.fetch_optional(sql, &[&self.webhook, &reason, &kind, &notice, &failures, &threshold]).await
    }
}
