//! Finds the superseded attempts of a batch: their delivery was redelivered or cancelled in the
//! meantime, so they are logged but do not count.

use std::collections::HashSet;

use uuid::Uuid;

use crate::domain::delivery::Answer;
use crate::store::record::CompletedAttempt;
use crate::store::{Result, Transaction, superseded};

/// The superseded attempts of a batch.
pub(super) struct Superseded<'a> {
    /// For each attempt of the batch, whether it counted or is superseded.
    pub settled: Vec<bool>,
    /// The superseded attempts to log.
    pub logged: Vec<CompletedAttempt<'a>>,
}

/// Finds the superseded attempts. Of the other attempts that do not count, the lease has expired
/// and another replica, which logs its own attempt, has claimed the delivery; or the delivery is
/// not stored yet.
pub(super) async fn superseded<'a>(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'a>],
    counted: &[bool],
) -> Result<Superseded<'a>> {
    let mut settled = counted.to_vec();
    let id = |attempt: &CompletedAttempt<'_>| {
        let delivery = &attempt.row.attempted.delivery;
        (delivery.id, delivery.lease.token)
    };

    let uncounted = attempts
        .iter()
        .zip(counted)
        .filter(|(_, counted)| !**counted);
    let (deliveries, leases): (Vec<Uuid>, Vec<Uuid>) =
        uncounted.map(|(attempt, _)| id(attempt)).unzip();
    if deliveries.is_empty() {
        return Ok(Superseded {
            settled,
            logged: Vec::new(),
        });
    }

    let taken = superseded::take(transaction, &deliveries, &leases).await?;
    let mut noted: HashSet<(Uuid, Uuid)> = taken.into_iter().collect();
    if noted.is_empty() {
        return Ok(Superseded {
            settled,
            logged: Vec::new(),
        });
    }

    let mut late = Vec::new();

    for (attempt, settled) in attempts
        .iter()
        .zip(&mut settled)
        .filter(|(_, settled)| !**settled)
    {
        *settled = noted.remove(&id(attempt));

        // For an inactive webhook nothing was sent, and the cancellation is logged already.
        if *settled && attempt.row.attempted.attempt.answer != Answer::Inactive {
            late.push(*attempt);
        }
    }

    // Nothing is logged for a webhook that does not exist: its user may have been erased.
    let webhook = |attempt: &CompletedAttempt<'_>| attempt.row.attempted.delivery.webhook;
    let webhooks: Vec<Uuid> = late.iter().map(webhook).collect();
    let existing = superseded::hold_webhooks(transaction, &webhooks).await?;

    late.retain(|attempt| existing.contains(&webhook(attempt)));
    Ok(Superseded {
        settled,
        logged: late,
    })
}
