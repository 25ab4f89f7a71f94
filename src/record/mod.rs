//! The recording stage: writes the outcome of attempts to the store, in batches.

mod cancellation;
mod completed;
mod stranded;
mod transaction;
mod unpacking;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, Delivery, Next};
use crate::domain::disablement::Policy;
use crate::failpoint::failpoint;
use crate::handoff::Handoff;
use crate::retry::Backoff;
use crate::store::attempt::{CompletedAttempt, Effect};
use crate::store::{Store, StoreError};
use crate::telemetry::traces::Tracer;
use crate::telemetry::{self, Activity, recurring};

pub use cancellation::{Cancelled, cancel_inactive, cancel_next};
use completed::{complete, log_id};
pub use stranded::{promote_all_stranded, promote_stranded};
pub use transaction::{Disabled, PromotionLimits, Recorded, record};
pub use unpacking::unpack_old;

/// The waits before a batch is recorded again.
pub const RETRIES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// The most attempts in one transaction.
pub const MAX_BATCH: usize = 512;
/// How long a batch is collected: a transaction that records several attempts costs little more
/// than one that records a single attempt.
const COLLECTION_TIME: Duration = Duration::from_millis(25);

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
    mut attempted: mpsc::Receiver<Attempted>,
    tracer: Tracer,
    give_up: CancellationToken,
) {
    let recorder = Recorder {
        store,
        policy,
        promotion,
    };

    while let Some(batch) = next_batch(&mut attempted).await {
        let mut batch: Vec<CompletedAttempt> = batch
            .into_iter()
            .map(|attempted| complete(attempted, &schedule))
            .collect();

        for completed in &batch {
            tracer.attempted(&completed.attempted, completed.next.outcome());
        }

        let count = batch.len();
        let _ = failpoint!("attempts_received_not_recorded");
        tokio::select! {
            () = recorder.save(&mut batch) => {}
            () = give_up.cancelled() => {
                let count = count + attempted.len();
                tracing::error!(count, "attempts were not recorded before the shutdown; they are repeated when their leases end");
                return;
            }
        }
    }
}

/// Waits for the next batch. Returns `None` after the last one.
async fn next_batch(attempted: &mut mpsc::Receiver<Attempted>) -> Option<Vec<Attempted>> {
    let mut batch = Vec::new();
    if attempted.recv_many(&mut batch, MAX_BATCH).await == 0 {
        return None;
    }

    if batch.len() < MAX_BATCH && !batch.iter().any(may_end_wait) {
        tokio::time::sleep(COLLECTION_TIME).await;
    }

    let missing = MAX_BATCH - batch.len();
    batch.extend(std::iter::from_fn(|| attempted.try_recv().ok()).take(missing));
    Some(batch)
}

/// Whether other deliveries may wait for the end of this one. It is recorded at once.
fn may_end_wait(attempted: &Attempted) -> bool {
    attempted.delivery.order_key.is_some()
        && matches!(attempted.attempt.answer, Answer::Accepted { .. })
}

struct Recorder {
    store: Store,
    policy: Policy,
    promotion: Promotion,
}

impl Recorder {
    /// Saves a batch. If the store rejects one of the attempts, saves each alone, so that it does
    /// not delay the others.
    async fn save(&self, batch: &mut [CompletedAttempt]) {
        if self.try_save(batch).await.is_ok() {
            return;
        }

        for alone in batch.chunks_mut(1) {
            let Err(error) = self.try_save(alone).await else {
                continue;
            };

            let delivery = alone[0].delivery().id;
            recurring!(error, %delivery, %error, "the store rejects an attempt; recording it without the response's text");
            alone[0].remove_response();

            if let Err(error) = self.try_save(alone).await {
                recurring!(error, %delivery, %error, "the store rejects an attempt; it is repeated when its lease ends");
            }
        }
    }

    /// Saves the whole batch. Returns an error if the store rejects the data; after any other error
    /// it tries again.
    async fn try_save(&self, batch: &mut [CompletedAttempt]) -> Result<(), StoreError> {
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

            match record(&self.store, batch, &self.policy, limits).await {
                Ok(Recorded { disabled, promoted }) => {
                    recording.succeeded();
                    report(batch, &disabled);
                    self.hand_off(promoted).await;
                    return Ok(());
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
fn report(batch: &[CompletedAttempt], disabled: &[Disabled]) {
    batch
        .iter()
        .filter(|completed| completed.is_counted())
        .for_each(completed::report);

    for Disabled {
        webhook,
        user,
        error_kind,
        reason,
    } in disabled
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
    let outcome = attempted.attempt.answer.outcome();
    tracer.tested(attempted, outcome);

    let id = log_id(attempted.attempt.started_at);
    let completed = CompletedAttempt {
        effect: Effect::Test,
        ..CompletedAttempt::new(id, attempted.clone(), Next::End(outcome))
    };
    store.log_attempt(&completed).await?;

    Ok(id)
}
