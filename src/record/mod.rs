//! The recording stage: writes the outcome of attempts to the store, in batches.

mod batches;
mod decided;
mod superseded;
mod transaction;
mod unmatched;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, Outcome};
use crate::domain::disablement::Policy;
use crate::retry::Backoff;
use crate::store::record::{AttemptRow, CompletedAttempt};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Activity, recurring};
use crate::traces::Tracer;

use batches::Batches;
pub use batches::MAX_BATCH;
use decided::{Decided, log_id};
pub use transaction::{Disabled, Recorded, record};

const RETRIES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Records attempts until the channel is closed and empty. While the store does not answer, recording is retried, and the full
/// channel keeps the dispatcher from starting further requests; `give_up` ends the retries when the process must end.
pub async fn run(
    store: Store,
    schedule: RetrySchedule,
    policy: Policy,
    attempted: mpsc::Receiver<Attempted>,
    tracer: Tracer,
    give_up: CancellationToken,
) {
    let mut batches = Batches::new(attempted);
    while let Some((fresh, mut batch)) = batches.next().await {
        for attempted in fresh {
            let decided = Decided::new(attempted, &schedule);
            tracer.attempted(&decided.attempted, decided.next.outcome());
            batch.push(decided);
        }
        let settled = tokio::select! {
            settled = save(&store, &batch, &policy) => settled,
            () = give_up.cancelled() => {
                let count = batch.len() + batches.count();
                tracing::error!(count, "attempts were not recorded before the shutdown; they are repeated when their leases end");
                return;
            }
        };
        let unmatched = batch.into_iter().zip(settled).filter(|(_, settled)| !settled);
        batches.keep_unmatched(unmatched.map(|(decided, _)| decided));
    }
}

/// Saves a batch. Returns, for each attempt, whether it is settled: it was counted or superseded, or the store rejects it.
async fn save(store: &Store, batch: &[Decided], policy: &Policy) -> Vec<bool> {
    if let Ok(settled) = try_save(store, batch, policy, true).await {
        return settled;
    }
    // The store rejected one of the attempts, which must not delay the others.
    let mut settled = Vec::new();
    for decided in batch.chunks(1) {
        settled.push(save_alone(store, decided, policy).await);
    }
    settled
}

async fn save_alone(store: &Store, decided: &[Decided], policy: &Policy) -> bool {
    let delivery = decided[0].attempted.delivery.id;
    let error = match try_save(store, decided, policy, true).await {
        Ok(settled) => return settled[0],
        Err(error) => error,
    };
    recurring!(error, %delivery, %error, "the store rejects an attempt; recording it without the response's text");
    match try_save(store, decided, policy, false).await {
        Ok(settled) => settled[0],
        Err(error) => {
            recurring!(error, %delivery, %error, "the store rejects an attempt; it is repeated when its lease ends");
            true
        }
    }
}

/// Saves the whole batch and returns, for each attempt, whether it is settled. Returns an error if the store rejects the data; after any
/// other error it tries again.
async fn try_save(
    store: &Store,
    batch: &[Decided],
    policy: &Policy,
    with_response: bool,
) -> Result<Vec<bool>, StoreError> {
    let attempts: Vec<CompletedAttempt<'_>> = batch.iter().map(|decided| decided.completed(with_response)).collect();
    let (mut retries, recording) = (RETRIES, Activity::new("recording attempts"));
    loop {
        match record(store, &attempts, policy).await {
            Ok(recorded) => {
                recording.succeeded();
                report(batch, &recorded);
                return Ok(recorded.settled);
            }
            Err(error) if error.refuses_data() => return Err(error),
            Err(error) => {
                recording.failed(&error);
                retries.wait().await;
            }
        }
    }
}

/// Updates the metrics and the server log.
fn report(batch: &[Decided], recorded: &Recorded) {
    batch.iter().zip(&recorded.counted).filter(|(_, counted)| **counted).for_each(|(decided, _)| decided.report());
    for Disabled { webhook, user, failure, reason } in &recorded.disabled {
        // No warning: the owner gets an e-mail, and the operator has nothing to fix.
        tracing::info!(%webhook, %user, reason, "a webhook was disabled");
        metrics::counter!(telemetry::DISABLED_WEBHOOKS, "error_kind" => failure.kind.as_str()).increment(1);
    }
}

/// Inserts the attempt of a test into the attempt log. It changes no counter. Returns the row's id.
pub async fn record_test(store: &Store, tracer: &Tracer, attempted: &Attempted) -> Result<Uuid, StoreError> {
    let id = log_id(attempted.attempt.started_at);
    let outcome = match attempted.attempt.answer {
        Answer::Accepted { .. } => Outcome::Delivered,
        _ => Outcome::Failed,
    };
    tracer.tested(attempted, outcome);
    store.log_attempt(AttemptRow { test: true, ..AttemptRow::new(id, attempted, outcome) }).await?;
    Ok(id)
}
