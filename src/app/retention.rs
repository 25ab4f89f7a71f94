//! Retention: creates the store's next partitions, drops expired ones, and removes expired rows.

use std::time::Duration;

use jiff::SignedDuration;
use jiff::tz::TimeZone;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, SystemClock};
use crate::store::partitions::Maintained;
use crate::store::{
    Store, StoreError, access, audit, idempotency, ignored, keys, notices, partitions, sequences,
    unrouted,
};
use crate::telemetry::Activity;
use crate::telemetry::health::Health;

/// The name of this stage in readiness.
const STAGE: &str = "maintenance";
const INTERVAL: Duration = Duration::from_secs(3_600);
/// After a failed run: soon, because the store may be back.
const AFTER_FAILURE: Duration = Duration::from_secs(15);
/// After a run that gave way to another session's lock, such as that of a running `pg_dump`. Each
/// try blocks other sessions for a moment, and partitions are created days ahead.
const AFTER_WAITING: Duration = Duration::from_secs(300);

/// The time limit of a run: longer than removing a day's rows takes. A longer run waits for a dead
/// connection.
const LONGEST_RUN: Duration = Duration::from_secs(3_600);

/// Maintains the store until shutdown. No failure here ends the process: rows of a day without a
/// partition go to the default partition, and are moved when the day gets one.
pub async fn run(
    store: Store,
    retention_days: u32,
    health: Health,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let maintaining = Activity::new("maintaining the store");
    let waiting = Activity::new("partition maintenance");

    loop {
        let result = store
            .in_time(LONGEST_RUN, run_once(&store, retention_days))
            .await;

        let wait = match result {
            Ok(done) => report(&done, &health, &maintaining, &waiting),
            Err(error) => {
                let text = format!("{error:#}");

                // The readiness check itself reports a store that does not answer.
                if error.downcast_ref().is_some_and(is_server_error) {
                    health.report_unhealthy(
                        STAGE,
                        "the store cannot be maintained; the server log says why",
                    );
                }

                maintaining.failed(&text);

                AFTER_FAILURE
            }
        };

        if shutdown
            .run_until_cancelled(tokio::time::sleep(wait))
            .await
            .is_none()
        {
            return Ok(());
        }
    }
}

/// Reports the partitions that could not be maintained, and returns how long to wait before the
/// next run.
fn report(
    done: &Maintained,
    health: &Health,
    maintaining: &Activity,
    waiting: &Activity,
) -> Duration {
    if !done.failed.is_empty() {
        let error = format!("partitions cannot be maintained: {:?}", done.failed);
        health.report_unhealthy(
            STAGE,
            "partitions cannot be maintained; the server log says why",
        );
        maintaining.failed(&error);
        return AFTER_FAILURE;
    }

    health.report_healthy(STAGE);
    maintaining.succeeded();

    if done.waiting.is_empty() {
        waiting.stops_failing();
        return INTERVAL;
    }

    // Expected while a backup runs, and no reason to be unready.
    if waiting.starts_failing() {
        tracing::info!(partitions = ?done.waiting, "partition maintenance gave way to locks of other sessions; retrying");
    }

    AFTER_WAITING
}

fn is_server_error(error: &StoreError) -> bool {
    matches!(error, StoreError::Query(error) if error.as_db_error().is_some())
}

/// Runs all maintenance once. Failures of single partitions are part of the result, not an error.
pub async fn run_once(store: &Store, retention_days: u32) -> anyhow::Result<Maintained> {
    let store = &store.with_limit(LONGEST_RUN);
    let now = SystemClock.now();
    let today = now.to_zoned(TimeZone::UTC).date();
    let done = partitions::maintain(store, today, retention_days).await?;
    if !done.dropped.is_empty() {
        tracing::info!(partitions = ?done.dropped, "dropped partitions older than retention.days");
    }

    if done.expired > 0 {
        tracing::warn!(
            deliveries = done.expired,
            "deliveries were cancelled because their events are older than retention.days"
        );
    }

    // One day more: a partition is dropped when its last row has expired.
    let kept = SignedDuration::from_hours((i64::from(retention_days) + 1) * 24);
    store.expire_jobs(now.checked_sub(kept)?).await?;
    audit::remove_old(store, retention_days).await?;
    idempotency::remove_old(store).await?;

    let unsent = notices::remove_old(store, retention_days).await?;
    if unsent > 0 {
        tracing::warn!(
            unsent,
            "unsent notices were dropped: they are older than retention.days"
        );
    }

    let given_up = unrouted::remove_old(store, retention_days).await?;
    if given_up > 0 {
        tracing::warn!(
            given_up,
            "unrouted events were dropped: they are older than retention.days"
        );
    }

    ignored::remove_old(store, retention_days).await?;
    access::remove_old(store).await?;
    keys::remove_expired(store).await?;
    sequences::remove_orphans(store).await?;

    Ok(done)
}
