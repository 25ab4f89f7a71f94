//! The stage that writes down what attempts ended in: everything that waits in one transaction.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, Next, Outcome, next};
use crate::domain::disablement::Policy;
use crate::handoff::Commits;
use crate::retry::Backoff;
use crate::store::disable::Disabled;
use crate::store::record::{Entry, LogLine, Recorded};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Activity, recurring};
use crate::traces::Tracer;
use crate::vault::random_bytes;

/// Attempts recorded in one transaction at most.
pub const MAX_BATCH: usize = 512;
/// For how long answers are gathered: a few cost the store little more than one.
const GATHERING: Duration = Duration::from_millis(25);
const RETRIES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// An attempt with everything decided, so that trying again to record it decides nothing anew.
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
    commits: Commits,
    tracer: Tracer,
    give_up: CancellationToken,
) {
    let mut answers = Answers { attempted, commits, early: Vec::new(), ready: Vec::new() };
    while let Some(ready) = answers.next().await {
        let batch: Vec<Decided> = ready.into_iter().map(|attempted| Decided::new(attempted, &schedule)).collect();
        batch.iter().for_each(|decided| tracer.attempted(&decided.attempted, decided.next.outcome()));
        tokio::select! {
            () = save(&store, &batch, &policy) => {}
            () = give_up.cancelled() => {
                let count = batch.len() + answers.count();
                tracing::error!(count, "attempts were not recorded in time: they are made again when their leases end");
                return;
            }
        }
    }
}

/// Answers as they come. What comes before the store knows of its delivery stays here until it does, and holds up nothing else.
struct Answers {
    attempted: mpsc::Receiver<Attempted>,
    commits: Commits,
    /// Under the lease whose commit is under way, so they are of one transaction: which is how many there can be.
    early: Vec<Attempted>,
    ready: Vec<Attempted>,
}

impl Answers {
    /// What to record next; nothing when there will be no more.
    async fn next(&mut self) -> Option<Vec<Attempted>> {
        loop {
            if self.ready.is_empty() && !self.gather().await {
                return None;
            }
            self.top_up();
            let committing = self.commits.under_way();
            let answers = self.early.drain(..).chain(self.ready.drain(..));
            (self.early, self.ready) = answers.partition(|answer| committing == Some(answer.delivery.lease.token));
            if !self.ready.is_empty() {
                let rest = self.ready.split_off(self.ready.len().min(MAX_BATCH));
                return Some(std::mem::replace(&mut self.ready, rest));
            }
        }
    }

    /// Waits for answers, or for the end of the commit that those here wait for. False when there is neither.
    async fn gather(&mut self) -> bool {
        tokio::select! {
            count = self.attempted.recv_many(&mut self.ready, MAX_BATCH) => match count {
                0 if self.early.is_empty() => return false,
                0 => self.commits.change().await,
                _ => {}
            },
            () = self.commits.change(), if !self.early.is_empty() => {}
        }
        if self.ready.len() < MAX_BATCH {
            tokio::time::sleep(GATHERING).await;
        }
        true
    }

    fn top_up(&mut self) {
        let room = MAX_BATCH.saturating_sub(self.ready.len());
        self.ready.extend(std::iter::from_fn(|| self.attempted.try_recv().ok()).take(room));
    }

    fn count(&self) -> usize {
        self.early.len() + self.ready.len() + self.attempted.len()
    }
}

async fn save(store: &Store, batch: &[Decided], policy: &Policy) {
    if try_save(store, batch, policy, true).await.is_ok() {
        return;
    }
    // One of them is at fault: it must not hold up the others for ever.
    for decided in batch.chunks(1) {
        let Err(error) = try_save(store, decided, policy, true).await else { continue };
        let delivery = decided[0].attempted.delivery.id;
        recurring!(error, %delivery, %error, "the store refuses attempts; recording them without the receiver's words");
        let Err(error) = try_save(store, decided, policy, false).await else { continue };
        recurring!(error, %delivery, %error, "the store refuses attempts; they are made again when their leases end");
    }
}

/// Saves all or, where the store refuses what it was given, nothing. Any other error passes, and is waited for.
async fn try_save(store: &Store, batch: &[Decided], policy: &Policy, with_response: bool) -> Result<(), StoreError> {
    let entries: Vec<Entry<'_>> = batch.iter().map(|decided| decided.entry(with_response)).collect();
    let (mut retries, recording) = (RETRIES, Activity::new("recording attempts"));
    loop {
        match store.record(&entries, policy).await {
            Ok(recorded) => {
                recording.succeeded();
                tell(batch, &recorded);
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
