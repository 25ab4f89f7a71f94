//! Finds the superseded attempts of a batch: their delivery was redelivered or cancelled in the meantime, so they are logged but do
//! not count.

use std::collections::HashSet;

use uuid::Uuid;

use crate::domain::delivery::Answer;
use crate::store::record::CompletedAttempt;
use crate::store::{Result, Transaction, superseded};

/// Returns the superseded attempts. Of the other attempts that do not count, the lease has expired and another replica, which logs its
/// own attempt, has claimed the delivery; or the delivery is not stored yet.
pub(super) async fn superseded<'a>(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'a>],
    counted: &[bool],
) -> Result<Vec<CompletedAttempt<'a>>> {
    // For an inactive webhook nothing was sent, and the cancellation is logged already.
    let is_late = |attempt: &CompletedAttempt<'_>| attempt.row.attempted.attempt.answer != Answer::Inactive;
    let late = attempts.iter().zip(counted).filter(|(attempt, counted)| !**counted && is_late(attempt));
    let late: Vec<CompletedAttempt<'a>> = late.map(|(attempt, _)| *attempt).collect();
    if late.is_empty() {
        return Ok(late);
    }
    let id = |attempt: &CompletedAttempt<'_>| {
        let delivery = &attempt.row.attempted.delivery;
        (delivery.id, delivery.lease.token)
    };
    let (deliveries, leases): (Vec<Uuid>, Vec<Uuid>) = late.iter().map(id).unzip();
    let taken = superseded::take(transaction, &deliveries, &leases).await?;
    let mut noted: HashSet<(Uuid, Uuid)> = taken.into_iter().collect();
    if noted.is_empty() {
        return Ok(Vec::new());
    }
    // Nothing is logged for a webhook that does not exist: its user may have been erased.
    let webhook = |attempt: &CompletedAttempt<'_>| attempt.row.attempted.delivery.webhook;
    let webhooks: Vec<Uuid> = late.iter().map(webhook).collect();
    let existing = superseded::hold_webhooks(transaction, &webhooks).await?;
    Ok(late.into_iter().filter(|attempt| noted.remove(&id(attempt)) && existing.contains(&webhook(attempt))).collect())
}
