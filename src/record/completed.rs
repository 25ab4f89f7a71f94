//! Decides what follows an attempt, and reports what was recorded.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::backoff::RetrySchedule;
use crate::domain::delivery::{Answer, Attempted, next};
use crate::store::attempt::CompletedAttempt;
use crate::telemetry;
use crate::vault::random_bytes;

/// Decides the attempt's log id and its delivery's next state, once: both stay the same when
/// recording is retried.
pub fn complete(mut attempted: Attempted, schedule: &RetrySchedule) -> CompletedAttempt {
    let Attempted { delivery, attempt } = &mut attempted;
    let mut next = next(delivery.attempt, &attempt.answer, schedule, random);

    if let Some(asked) = attempt.sent.as_ref().and_then(|sent| sent.retry_after) {
        next = next.not_before(asked);
    }

    // Frees the event's data, which is not recorded.
    delivery.data = Arc::default();

    CompletedAttempt::new(log_id(attempt.started_at), attempted, next)
}

/// Returns the seconds from the primary's commit to the receiver's answer, if the first attempt
/// succeeded. Later attempts would add the time that the receiver was down, which is not Walhook's
/// latency.
fn commit_to_receipt(Attempted { delivery, attempt }: &Attempted, took: Duration) -> Option<f64> {
    let accepted = matches!(attempt.answer, Answer::Accepted { .. });
    let first = (delivery.round, delivery.attempt) == (1, 1);
    let waited = attempt.started_at.duration_since(delivery.occurred_at);
    (accepted && first).then(|| waited.as_secs_f64().max(0.0) + took.as_secs_f64())
}

/// Updates the metrics and the server log.
pub fn report(completed: &CompletedAttempt) {
    let Attempted { delivery, attempt } = &completed.attempted;
    if let Some(error) = attempt.answer.error() {
        tracing::debug!(event = %delivery.event, delivery = %delivery.id, webhook = %delivery.webhook,
            round = delivery.round, attempt = delivery.attempt, %error, status = attempt.answer.status(), "attempt failed");
    }

    let error = attempt.answer.error().map_or("none", |kind| kind.as_str());
    let outcome = completed.outcome().as_str();
    metrics::counter!(telemetry::ATTEMPTS, "outcome" => outcome, "error_kind" => error)
        .increment(1);

    if let Some(sent) = &attempt.sent {
        metrics::histogram!(telemetry::ATTEMPT_DURATION).record(sent.duration);

        if let Some(latency) = commit_to_receipt(&completed.attempted, sent.duration) {
            metrics::histogram!(telemetry::COMMIT_TO_RECEIPT).record(latency);
        }
    }
}

/// Returns a UUIDv7 with the attempt's start, so that the ids of the attempt log are in the order
/// of the attempts.
pub fn log_id(started_at: Timestamp) -> Uuid {
    let seconds = u64::try_from(started_at.as_second()).unwrap_or(0);
    let nanos = u32::try_from(started_at.subsec_nanosecond()).unwrap_or(0);
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos))
}

/// A uniformly distributed number in 0..1.
fn random() -> f64 {
    (u64::from_be_bytes(random_bytes()) >> 11) as f64 / (1_u64 << 53) as f64
}
