//! Attempts that were in flight when their delivery was redelivered or cancelled. Their outcome
//! changes neither the delivery nor the webhook's counters, but each has a row in the attempt log.

use deadpool_postgres::Transaction;
use uuid::Uuid;

use super::statement::Statements;
use super::{Result, Store};
use crate::sql::store as sql;

/// Notes the attempts of these deliveries that are in flight. The deliveries stay locked.
pub async fn note(transaction: &Transaction<'_>, deliveries: &[Uuid]) -> Result<()> {
    transaction
        .run(sql::superseded_attempt::NOTE, &[&deliveries])
        .await?;
    Ok(())
}

/// Takes the notes of these attempts, each a delivery and a lease. Returns those that were noted.
pub async fn take(
    transaction: &Transaction<'_>,
    deliveries: &[Uuid],
    leases: &[Uuid],
) -> Result<Vec<(Uuid, Uuid)>> {
    transaction
        .fetch_all(sql::superseded_attempt::TAKE, &[&deliveries, &leases])
        .await
}

/// Locks these webhooks against deletion. Returns those that exist.
pub async fn hold_webhooks(transaction: &Transaction<'_>, webhooks: &[Uuid]) -> Result<Vec<Uuid>> {
    transaction
        .fetch_all(sql::webhook::LOCK, &[&webhooks])
        .await
}

/// Removes notes of attempts whose outcome can no longer be reported.
pub async fn remove_old(store: &Store) -> Result<()> {
    store.run(sql::superseded_attempt::REMOVE, &[]).await?;
    Ok(())
}
