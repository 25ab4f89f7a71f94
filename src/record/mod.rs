//! The stage that writes down what attempts ended in: everything that waits in one transaction.

mod unmatched;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, Next, Outcome, next};
use crate::domain::disablement::Policy;
use crate::store::disable::Disabled;
use crate::store::record::{Entry, LogLine, Recorded};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, recurring};
use crate::traces::Tracer;
use crate::vault::random_bytes;

use self::unmatched::Unmatched;

/// Attempts recorded in one transaction at most.
pub const MAX_BATCH: usize = 512;
/// Of these, answers that the store has not matched before at most, so that they hold up no others.
const MAX_RETRIED: usize = 128;
/// For how long answers are gathered: a few cost the store little more than one.
const GATHERING: Duration = Duration::from_millis(25);
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// An attempt with everything decided, so that trying again to record it decides nothing anew.
struct Decided {
    id: Uuid,
    attempted: Attempted,
    next: Next,
    arrived_at: Instant,
}

impl Decided {
    fn new(mut attempted: Attempted, schedule: &RetrySchedule) -> Decided {
        let next = next(attempted.delivery.attempt, &attempted.attempt.answer, schedule, random);
        // Not recorded, and too large to be kept with an unmatched answer.
        attempted.delivery.data = Arc::default();
        Decided { id: log_id(attempted.attempt.started_at), attempted, next, arrived_at: Instant::now() }
    }

    /// Whether its delivery may be missing in the store because its first transaction has not committed yet.
    fn may_be_uncommitted(&self) -> bool {
        (self.attempted.delivery.round, self.attempted.delivery.attempt) == (1, 1)
    }

    fn entry(&self, with_response: bool) -> Entry<'_> {
        let line = LogLine { with_response, ..LogLine::new(self.id, &self.attempted, self.next.outcome()) };
        Entry { line, next: self.next }
    }

    /// From the commit to the receiver's answer, where the first attempt was accepted: what waits for a receiver to come back is
    /// no latency of ours.
    fn commit_to_receipt(&self, took: Duration) -> Option<f64> {
        let Attempted { delivery, attempt } = &self.attempted;
        let accepted = matches!(attempt.answer, Answer::Accepted { .. });
        let first = (delivery.round, delivery.attempt) == (1, 1);
        let waited = attempt.started_at.duration_since(delivery.occurred_at);
        (accepted && first).then(|| waited.as_secs_f64().max(0.0) + took.as_secs_f64())
    }

    fn count(&self) {
        let Attempted { delivery, attempt } = &self.attempted;
        if let Some(error) = attempt.answer.error() {
            tracing::debug!(event = %delivery.event, delivery = %delivery.id, webhook = %delivery.webhook,
                round = delivery.round, attempt = delivery.attempt, %error, status = attempt.answer.status(), "attempt failed");
        }
        let error = self.attempted.attempt.answer.error().map_or("none", |kind| kind.as_str());
        let outcome = self.next.outcome().as_str();
        metrics::counter!(telemetry::ATTEMPTS, "outcome" => outcome, "error_kind" => error).increment(1);
        if let Some(sent) = &self.attempted.attempt.sent {
            metrics::histogram!(telemetry::ATTEMPT_DURATION).record(sent.duration);
            if let Some(latency) = self.commit_to_receipt(sent.duration) {
                metrics::histogram!(telemetry::COMMIT_TO_RECEIPT).record(latency);
            }
        }
    }
}

/// Records until the channel is closed and empty. A store that does not answer is waited for, and holds up deliveries by
/// the channel's bound; `give_up` ends the waiting when the process must end.
pub async fn run(
    store: Store,
    schedule: RetrySchedule,
    policy: Policy,
    attempted: mpsc::Receiver<Attempted>,
    tracer: Tracer,
    give_up: CancellationToken,
) {
    let mut answers = Answers { attempted, unmatched: Unmatched::new(), is_last_try: false };
    while let Some((fresh, mut batch)) = answers.next().await {
        for attempted in fresh {
            let decided = Decided::new(attempted, &schedule);
            tracer.attempted(&decided.attempted, decided.next.outcome());
            batch.push(decided);
        }
        let counted = tokio::select! {
            counted = save(&store, &batch, &policy) => counted,
            () = give_up.cancelled() => {
                let count = batch.len() + answers.count();
                tracing::error!(count, "attempts were not recorded in time: they are made again when their leases end");
                return;
            }
        };
        answers
            .keep_unmatched(batch.into_iter().zip(counted).filter(|(_, counted)| !counted).map(|(decided, _)| decided));
    }
}

/// Answers to record: those that arrive, and those that the store has not matched yet.
struct Answers {
    attempted: mpsc::Receiver<Attempted>,
    unmatched: Unmatched<Decided>,
    /// No more answers will come, and all transactions that handed deliveries off have ended.
    is_last_try: bool,
}

impl Answers {
    /// Waits for the next answers to record: new ones, and unmatched ones that are to be tried again. None when there will be no more.
    async fn next(&mut self) -> Option<(Vec<Attempted>, Vec<Decided>)> {
        let retried = MAX_RETRIED.min(self.unmatched.len());
        let mut fresh = Vec::new();
        let retry_at = self.unmatched.next_retry_at();
        let retry = async {
            match retry_at {
                Some(retry_at) => tokio::time::sleep_until(retry_at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            count = self.attempted.recv_many(&mut fresh, MAX_BATCH - retried) => if count == 0 {
                self.is_last_try = true;
                let last = self.unmatched.take(MAX_BATCH);
                return (!last.is_empty()).then_some((fresh, last));
            },
            () = retry => {}
        }
        let missing = (MAX_BATCH - retried).saturating_sub(fresh.len());
        if missing > 0 {
            tokio::time::sleep(GATHERING).await;
            fresh.extend(std::iter::from_fn(|| self.attempted.try_recv().ok()).take(missing));
        }
        Some((fresh, self.unmatched.take_due(Instant::now(), retried)))
    }

    fn keep_unmatched(&mut self, answers: impl Iterator<Item = Decided>) {
        let now = Instant::now();
        for decided in answers.filter(|decided| !self.is_last_try && decided.may_be_uncommitted()) {
            let (since, lease_ends_at) = (decided.arrived_at, decided.attempted.delivery.lease.until);
            self.unmatched.keep(decided, since, lease_ends_at, now);
        }
    }

    fn count(&self) -> usize {
        self.unmatched.len() + self.attempted.len()
    }
}

/// Saves a batch. Returns for each attempt whether it counted, or was refused for good.
async fn save(store: &Store, batch: &[Decided], policy: &Policy) -> Vec<bool> {
    if let Ok(counted) = try_save(store, batch, policy, true).await {
        return counted;
    }
    let mut counted = Vec::new();
    // One of them is at fault: it must not hold up the others for ever.
    for decided in batch.chunks(1) {
        counted.push(save_alone(store, decided, policy).await);
    }
    counted
}

async fn save_alone(store: &Store, decided: &[Decided], policy: &Policy) -> bool {
    let delivery = decided[0].attempted.delivery.id;
    let error = match try_save(store, decided, policy, true).await {
        Ok(counted) => return counted[0],
        Err(error) => error,
    };
    recurring!(error, %delivery, %error, "the store refuses attempts; recording them without the receiver's words");
    try_save(store, decided, policy, false).await.map_or_else(
        |error| {
            recurring!(error, %delivery, %error, "the store refuses attempts; they are made again when their leases end");
            true
        },
        |counted| counted[0],
    )
}

/// Saves all or, where the store refuses what it was given, nothing. Any other error passes, and is waited for.
async fn try_save(
    store: &Store,
    batch: &[Decided],
    policy: &Policy,
    with_response: bool,
) -> Result<Vec<bool>, StoreError> {
    let entries: Vec<Entry<'_>> = batch.iter().map(|decided| decided.entry(with_response)).collect();
    let mut wait = FIRST_WAIT;
    loop {
        match store.record(&entries, policy).await {
            Ok(recorded) => {
                if wait > FIRST_WAIT {
                    tracing::info!("recording attempts works again");
                }
                tell(batch, &recorded);
                return Ok(recorded.counted);
            }
            Err(error) if error.refuses_data() => return Err(error),
            Err(error) => {
                if wait == FIRST_WAIT {
                    tracing::warn!(%error, "attempts cannot be recorded now; trying again until they can");
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// Says in metrics and the log what has been recorded.
fn tell(batch: &[Decided], recorded: &Recorded) {
    batch.iter().zip(&recorded.counted).filter(|(_, counted)| **counted).for_each(|(decided, _)| decided.count());
    for Disabled { webhook, user, failure } in &recorded.disabled {
        // Its owner is told, whose business it is.
        tracing::info!(%webhook, %user, reason = failure.in_words(), "a webhook kept failing and is switched off");
        metrics::counter!(telemetry::DISABLED_WEBHOOKS, "error_kind" => failure.kind.as_str()).increment(1);
    }
}

/// Writes a test's line of the log: it counts nowhere and nothing follows from it. Gives the line's id.
pub async fn record_test(store: &Store, tracer: &Tracer, attempted: &Attempted) -> Result<Uuid, StoreError> {
    let id = log_id(attempted.attempt.started_at);
    let outcome = match attempted.attempt.answer {
        Answer::Accepted { .. } => Outcome::Delivered,
        _ => Outcome::Failed,
    };
    tracer.tested(attempted, outcome);
    store.log(LogLine { test: true, ..LogLine::new(id, attempted, outcome) }).await?;
    Ok(id)
}

/// Ids of the log are in the order of their attempts.
fn log_id(started_at: Timestamp) -> Uuid {
    let seconds = u64::try_from(started_at.as_second()).unwrap_or(0);
    let nanos = u32::try_from(started_at.subsec_nanosecond()).unwrap_or(0);
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos))
}

/// Uniform in 0..1.
fn random() -> f64 {
    (u64::from_be_bytes(random_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
