//! The recording stage: writes the outcome of attempts to the store, in batches.

mod answers;
mod superseded;
mod transaction;

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, Next, Outcome, next};
use crate::domain::disablement::Policy;
use crate::handoff::Commits;
use crate::store::record::{AttemptRow, CompletedAttempt};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, recurring};
use crate::traces::Tracer;
use crate::vault::random_bytes;

use answers::Answers;
pub use answers::MAX_BATCH;
pub use transaction::{Disabled, Recorded, record};

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// An attempt with its log id and its next state, which stay the same when recording is retried.
struct Decided {
    id: Uuid,
    attempted: Attempted,
    next: Next,
}

impl Decided {
    fn new(attempted: Attempted, schedule: &RetrySchedule) -> Decided {
        let next = next(attempted.delivery.attempt, &attempted.attempt.answer, schedule, random);
        Decided { id: log_id(attempted.attempt.started_at), attempted, next }
    }

    fn completed(&self, with_response: bool) -> CompletedAttempt<'_> {
        let row = AttemptRow { with_response, ..AttemptRow::new(self.id, &self.attempted, self.next.outcome()) };
        CompletedAttempt { row, next: self.next }
    }

    /// Seconds from the primary's commit to the receiver's answer, if the first attempt succeeded: how long a receiver was down
    /// is not Walhook's latency.
    fn commit_to_receipt(&self, took: Duration) -> Option<f64> {
        let Attempted { delivery, attempt } = &self.attempted;
        let accepted = matches!(attempt.answer, Answer::Accepted { .. });
        let first = (delivery.round, delivery.attempt) == (1, 1);
        let waited = attempt.started_at.duration_since(delivery.occurred_at);
        (accepted && first).then(|| waited.as_secs_f64().max(0.0) + took.as_secs_f64())
    }

    /// Updates the metrics.
    fn report(&self) {
        let Attempted { delivery, attempt } = &self.attempted;
        if let Some(error) = attempt.answer.error() {
            tracing::debug!(event = %delivery.event, delivery = %delivery.id, webhook = %delivery.webhook,
                round = delivery.round, attempt = delivery.attempt, %error, status = attempt.answer.status(), "attempt failed");
        }
        let error = attempt.answer.error().map_or("none", |kind| kind.as_str());
        let outcome = self.next.outcome().as_str();
        metrics::counter!(telemetry::ATTEMPTS, "outcome" => outcome, "error_kind" => error).increment(1);
        if let Some(sent) = &attempt.sent {
            metrics::histogram!(telemetry::ATTEMPT_DURATION).record(sent.duration);
            if let Some(latency) = self.commit_to_receipt(sent.duration) {
                metrics::histogram!(telemetry::COMMIT_TO_RECEIPT).record(latency);
            }
        }
    }
}

/// Records attempts until the channel is closed and empty. While the store does not answer, recording is retried, and the channel's
/// bound holds back further requests; `give_up` ends the retries when the process must end.
pub async fn run(
    store: Store,
    schedule: RetrySchedule,
    policy: Policy,
    attempted: mpsc::Receiver<Attempted>,
    commits: Commits,
    tracer: Tracer,
    give_up: CancellationToken,
) {
    let mut answers = Answers::new(attempted, commits);
    while let Some(batch) = answers.next().await {
        let batch: Vec<Decided> = batch.into_iter().map(|attempted| Decided::new(attempted, &schedule)).collect();
        batch.iter().for_each(|decided| tracer.attempted(&decided.attempted, decided.next.outcome()));
        tokio::select! {
            () = save(&store, &batch, &policy) => {}
            () = give_up.cancelled() => {
                let count = batch.len() + answers.count();
                tracing::error!(count, "attempts were not recorded before the shutdown deadline; they are repeated when their leases end");
                return;
            }
        }
    }
}

async fn save(store: &Store, batch: &[Decided], policy: &Policy) {
    if try_save(store, batch, policy, true).await.is_ok() {
        return;
    }
    // The store rejected one of them, which must not hold back the others.
    for decided in batch.chunks(1) {
        let Err(error) = try_save(store, decided, policy, true).await else { continue };
        let delivery = decided[0].attempted.delivery.id;
        recurring!(error, %delivery, %error, "the store rejects an attempt; recording it without the response's text");
        let Err(error) = try_save(store, decided, policy, false).await else { continue };
        recurring!(error, %delivery, %error, "the store rejects an attempt; it is repeated when its lease ends");
    }
}

/// Saves the whole batch. Returns an error if the store rejects the data; after any other error it tries again.
async fn try_save(store: &Store, batch: &[Decided], policy: &Policy, with_response: bool) -> Result<(), StoreError> {
    let attempts: Vec<CompletedAttempt<'_>> = batch.iter().map(|decided| decided.completed(with_response)).collect();
    let mut wait = FIRST_WAIT;
    loop {
        match record(store, &attempts, policy).await {
            Ok(recorded) => {
                if wait > FIRST_WAIT {
                    tracing::info!("attempts are recorded again");
                }
                report(batch, &recorded);
                return Ok(());
            }
            Err(error) if error.refuses_data() => return Err(error),
            Err(error) => {
                if wait == FIRST_WAIT {
                    tracing::warn!(%error, "attempts cannot be recorded; retrying");
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// Updates the metrics and the server log.
fn report(batch: &[Decided], recorded: &Recorded) {
    batch.iter().zip(&recorded.counted).filter(|(_, counted)| **counted).for_each(|(decided, _)| decided.report());
    for Disabled { webhook, user, failure } in &recorded.disabled {
        // No warning: the owner gets an e-mail, and the operator has nothing to fix.
        tracing::info!(%webhook, %user, reason = failure.in_words(), "a webhook kept failing and was disabled");
        metrics::counter!(telemetry::DISABLED_WEBHOOKS, "error_kind" => failure.kind.as_str()).increment(1);
    }
}

/// Inserts a test into the attempt log, without counting it. Returns the row's id.
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

/// A UUIDv7 of the attempt's time, so that the log's ids are in the order of the attempts.
fn log_id(started_at: Timestamp) -> Uuid {
    let seconds = u64::try_from(started_at.as_second()).unwrap_or(0);
    let nanos = u32::try_from(started_at.subsec_nanosecond()).unwrap_or(0);
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos))
}

/// A uniformly distributed number in 0..1.
fn random() -> f64 {
    (u64::from_be_bytes(random_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
