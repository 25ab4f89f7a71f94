//! The recording stage: writes the outcome of attempts to the store, in batches.

mod batches;
mod cancellation;
mod decided;
mod stranded;
mod superseded;
mod transaction;
mod unmatched;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, Delivery, Outcome};
use crate::domain::disablement::Policy;
use crate::failpoint::failpoint;
use crate::handoff::Handoff;
use crate::retry::Backoff;
use crate::store::record::{AttemptRow, CompletedAttempt};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Activity, recurring};
use crate::traces::Tracer;

use batches::Batches;
pub use batches::{Batching, MAX_BATCH};
pub use cancellation::{Cancelled, cancel_inactive, cancel_next};
pub use decided::Decided;
use decided::log_id;
pub use stranded::{promote_all_stranded, promote_stranded};
pub use transaction::{Disabled, PromotionLimits, Recorded, record};

/// The waits before a batch is recorded again.
pub const RETRIES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Where deliveries go that waited for one that has ended.
pub struct Promotion {
    pub handoff: Handoff,
    pub lease_length: Duration,
}

/// Records attempts until the channel is closed and empty. While the store does not answer,
/// recording is retried, and the full channel keeps the dispatcher from starting further requests;
/// `give_up` ends the retries when the process must end.
pub async fn run(
    store: Store,
    schedule: RetrySchedule,
    policy: Policy,
    promotion: Promotion,
    attempted: mpsc::Receiver<Attempted>,
    tracer: Tracer,
    give_up: CancellationToken,
) {
    let recorder = Recorder {
        store,
        policy,
        promotion,
    };

    let mut batches = Batches::new(attempted);
    while let Some((fresh, mut batch)) = batches.next().await {
        for attempted in fresh {
            let decided = Decided::new(attempted, &schedule);
            tracer.attempted(&decided.attempted, decided.next.outcome());
            batch.push(decided);
        }

        let _ = failpoint!("attempts_received_not_recorded");
        let settled = tokio::select! {
            settled = recorder.save(&batch) => settled,
            () = give_up.cancelled() => {
                let count = batch.len() + batches.count();
                tracing::error!(count, "attempts were not recorded before the shutdown; they are repeated when their leases end");
                return;
            }
        };

        batches.keep_unmatched(batch, settled);
    }
}

struct Recorder {
    store: Store,
    policy: Policy,
    promotion: Promotion,
}

impl Recorder {
    /// Saves a batch. Returns, for each attempt, whether it is settled: it was counted or
    /// superseded, or the store rejects it.
    async fn save(&self, batch: &[Decided]) -> Vec<bool> {
        if let Ok(settled) = self.try_save(batch, true).await {
            return settled;
        }

        // The store rejected one of the attempts, which must not delay the others.
        let mut settled = Vec::new();

        for decided in batch.chunks(1) {
            settled.push(self.save_alone(decided).await);
        }

        settled
    }

    async fn save_alone(&self, decided: &[Decided]) -> bool {
        let delivery = decided[0].attempted.delivery.id;
        let error = match self.try_save(decided, true).await {
            Ok(settled) => return settled[0],
            Err(error) => error,
        };

        recurring!(error, %delivery, %error, "the store rejects an attempt; recording it without the response's text");

        match self.try_save(decided, false).await {
            Ok(settled) => settled[0],
            Err(error) => {
                recurring!(error, %delivery, %error, "the store rejects an attempt; it is repeated when its lease ends");
                true
            }
        }
    }

    /// Saves the whole batch and returns, for each attempt, whether it is settled. Returns an error
    /// if the store rejects the data; after any other error it tries again.
    async fn try_save(
        &self,
        batch: &[Decided],
        with_response: bool,
    ) -> Result<Vec<bool>, StoreError> {
        let attempts: Vec<CompletedAttempt<'_>> = batch
            .iter()
            .map(|decided| decided.completed(with_response))
            .collect();
        let mut retries = RETRIES;
        let recording = Activity::new("recording attempts");
        let Promotion {
            handoff,
            lease_length,
        } = &self.promotion;

        loop {
            // After the dispatcher's end, any replica may claim them.
            let limits = (!handoff.is_closed()).then(|| PromotionLimits {
                lease_length: *lease_length,
                max_bytes: handoff.budget.counters().free_bytes(),
            });

            match record(&self.store, &attempts, &self.policy, limits).await {
                Ok(mut recorded) => {
                    recording.succeeded();
                    report(batch, &recorded);
                    self.hand_off(std::mem::take(&mut recorded.promoted)).await;
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

    /// Passes deliveries to the local dispatcher. Those for which it has no budget are due for any
    /// replica.
    async fn hand_off(&self, promoted: Vec<Delivery>) {
        if promoted.is_empty() {
            return;
        }

        let _ = failpoint!("delivery_promoted_not_handed_off");
        let refused = self.promotion.handoff.offer(promoted);
        if refused.is_empty() {
            return;
        }

        if let Err(error) = self.store.release(&refused).await {
            tracing::debug!(%error, "leases were not released; their deliveries are due when they end");
        }
    }
}

/// Updates the metrics and the server log.
fn report(batch: &[Decided], recorded: &Recorded) {
    batch
        .iter()
        .zip(&recorded.counted)
        .filter(|(_, counted)| **counted)
        .for_each(|(decided, _)| decided.report());

    for Disabled {
        webhook,
        user,
        error_kind,
        reason,
    } in &recorded.disabled
    {
        // No warning: the owner gets an e-mail, and the operator has nothing to fix.
        tracing::info!(%webhook, %user, reason, "a webhook was disabled");
        metrics::counter!(telemetry::DISABLED_WEBHOOKS, "error_kind" => *error_kind).increment(1);
    }
}

/// Inserts the attempt of a test into the attempt log. It changes no counter. Returns the row's id.
pub async fn record_test(
    store: &Store,
    tracer: &Tracer,
    attempted: &Attempted,
) -> Result<Uuid, StoreError> {
    let id = log_id(attempted.attempt.started_at);
    let outcome = match attempted.attempt.answer {
        Answer::Accepted { .. } => Outcome::Delivered,
        _ => Outcome::Failed,
    };

    tracer.tested(attempted, outcome);
    store
        .log_attempt(AttemptRow {
            test: true,
            ..AttemptRow::new(id, attempted, outcome)
        })
        .await?;

    Ok(id)
}
