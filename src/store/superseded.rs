//! Attempts that were under way when their delivery was redelivered or cancelled. What they end in changes neither the delivery nor
//! the webhook's counters, but each has a line in the attempt log.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use uuid::Uuid;

use super::record::CompletedAttempt;
use super::{Result, Store};
use crate::domain::delivery::Answer;

const NOTE: &str = include_str!("../../sql/store/superseded_note.sql");
const TAKE: &str = include_str!("../../sql/store/superseded_take.sql");
const REMOVE: &str = include_str!("../../sql/store/superseded_remove.sql");
const HOLD: &str = include_str!("../../sql/store/webhook_hold_many.sql");

/// Notes the attempts of these deliveries that are under way. The deliveries stay locked.
pub async fn note(transaction: &Transaction<'_>, deliveries: &[Uuid]) -> Result<()> {
    let statement = transaction.prepare_cached(NOTE).await?;
    transaction.execute(&statement, &[&deliveries]).await?;
    Ok(())
}

/// Those of the attempts that do not count and were superseded, rather than taken over by another replica when their lease ran out:
/// that replica makes the attempt again, and logs it.
pub async fn take<'a>(
    transaction: &Transaction<'_>,
    entries: &[CompletedAttempt<'a>],
    counted: &[bool],
) -> Result<Vec<CompletedAttempt<'a>>> {
    // Where the webhook was inactive nothing was sent, and the cancellation has its line already.
    let is_late = |entry: &CompletedAttempt<'_>| entry.row.attempted.attempt.answer != Answer::Inactive;
    let late = entries.iter().zip(counted).filter(|(entry, counted)| !**counted && is_late(entry));
    let late: Vec<CompletedAttempt<'a>> = late.map(|(entry, _)| *entry).collect();
    if late.is_empty() {
        return Ok(late);
    }
    let of = |entry: &CompletedAttempt<'_>| {
        let delivery = &entry.row.attempted.delivery;
        (delivery.id, delivery.lease.token)
    };
    let (ids, leases): (Vec<Uuid>, Vec<Uuid>) = late.iter().map(of).unzip();
    let statement = transaction.prepare_cached(TAKE).await?;
    let rows = transaction.query(&statement, &[&ids, &leases]).await?;
    let mut superseded: HashSet<(Uuid, Uuid)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    if superseded.is_empty() {
        return Ok(Vec::new());
    }
    // Nothing is written of a webhook that is gone: it may have been erased.
    let webhook = |entry: &CompletedAttempt<'_>| entry.row.attempted.delivery.webhook;
    let webhooks: Vec<Uuid> = late.iter().map(webhook).collect();
    let statement = transaction.prepare_cached(HOLD).await?;
    let rows = transaction.query(&statement, &[&webhooks]).await?;
    let existing: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    Ok(late.into_iter().filter(|entry| superseded.remove(&of(entry)) && existing.contains(&webhook(entry))).collect())
}

/// Forgets attempts whose outcome nobody will report any more.
pub async fn remove_old(store: &Store) -> Result<()> {
    store.connection().await?.execute(REMOVE, &[]).await?;
    Ok(())
}
