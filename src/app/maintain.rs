//! The store's upkeep: partitions are made and dropped, and what is too old is removed.

use std::time::Duration;

use jiff::SignedDuration;
use jiff::tz::TimeZone;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, SystemClock};
use crate::health::Health;
use crate::partitions::{self, Maintained};
use crate::store::{Store, StoreError, audit, idempotency, notices, sessions, superseded};
use crate::telemetry::Condition;

/// Under which name readiness reports it.
const STAGE: &str = "maintenance";
const INTERVAL: Duration = Duration::from_secs(3_600);
/// After a round that failed: a store that returns is maintained soon.
const AFTER_FAILURE: Duration = Duration::from_secs(15);
/// After a round that gave way to others' locks, such as those of a running `pg_dump`. Each try holds others up for a moment, and
/// partitions are made days ahead.
const AFTER_WAITING: Duration = Duration::from_secs(300);

/// Maintains the store until shutdown. Nothing that fails here ends the process: rows of a day without a partition go to the default
/// partition, and are moved when the day gets one. `first_round` is dropped when the first round has ended, well or not.
pub async fn run(
    store: Store,
    retention_days: u32,
    health: Health,
    first_round: oneshot::Sender<()>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let (failing, waiting) = (Condition::new(), Condition::new());
    let mut first_round = Some(first_round);
    loop {
        let result = round(&store, retention_days).await;
        drop(first_round.take());
        let wait = match result {
            Ok(done) => judge(&done, &health, &failing, &waiting),
            Err(error) => {
                if failing.begins() {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "the store cannot be maintained; trying again until it can"
                    );
                }
                // That the store does not answer is reported elsewhere.
                if error.downcast_ref().is_some_and(is_refusal) {
                    health.report_unhealthy(STAGE, "the store cannot be maintained; the log says why");
                }
                AFTER_FAILURE
            }
        };
        if shutdown.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return Ok(());
        }
    }
}

/// Reports what could not be done, and returns when to try again.
fn judge(done: &Maintained, health: &Health, failing: &Condition, waiting: &Condition) -> Duration {
    if !done.failed.is_empty() {
        if failing.begins() {
            tracing::warn!(partitions = ?done.failed, "partitions cannot be maintained; trying again until they can");
        }
        health.report_unhealthy(STAGE, "partitions cannot be maintained; the log says why");
        return AFTER_FAILURE;
    }
    if failing.ends() {
        tracing::info!("the store is maintained again");
    }
    health.report_healthy(STAGE);
    if done.waiting.is_empty() {
        waiting.ends();
        return INTERVAL;
    }
    // Expected while a backup runs, and no reason to stop serving.
    if waiting.begins() {
        tracing::info!(partitions = ?done.waiting, "the maintenance of partitions gave way to others' locks; trying again");
    }
    AFTER_WAITING
}

fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Query(error) if error.as_db_error().is_some())
}

/// Does everything once. What concerns single partitions is in the result, and no error.
pub async fn round(store: &Store, retention_days: u32) -> anyhow::Result<Maintained> {
    let now = SystemClock.now();
    let today = now.to_zoned(TimeZone::UTC).date();
    let done = partitions::maintain(store, today, retention_days).await?;
    if !done.dropped.is_empty() {
        tracing::info!(partitions = ?done.dropped, "dropped what is older than retention.days");
    }
    if done.expired > 0 {
        tracing::warn!(
            deliveries = done.expired,
            "deliveries were cancelled because their events are older than retention.days"
        );
    }
    // As partitions go, when their last moment is so old.
    let kept = SignedDuration::from_hours((i64::from(retention_days) + 1) * 24);
    store.expire_recoveries(now.checked_sub(kept)?).await?;
    audit::remove_old(store, retention_days).await?;
    idempotency::remove_old(store).await?;
    let unsent = notices::remove_old(store, retention_days).await?;
    if unsent > 0 {
        tracing::warn!(unsent, "notices to owners were dropped: they could not be sent while they were of use");
    }
    sessions::remove_old(store).await?;
    superseded::remove_old(store).await?;
    Ok(done)
}
