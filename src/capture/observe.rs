//! Measures the slot whether or not it is read: a slot without a reader fills the primary's disk.

use std::time::Duration;

use metrics::gauge;
use tokio_util::sync::CancellationToken;

use super::client::KeptClient;
use super::error::CaptureError;
use crate::sql::primary as sql;
use crate::telemetry;

const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);
/// PostgreSQL's values of `wal_status`, and one for a missing slot.
const STATUSES: [&str; 6] = [
    "reserved",
    "extended",
    "unreserved",
    "lost",
    "unknown",
    MISSING,
];
const MISSING: &str = "missing";

/// Measures the slot at intervals until shutdown. While the primary does not answer, the metrics
/// keep their values: capture reports the outage.
pub async fn run(url: &str, slot: &str, shutdown: &CancellationToken) {
    let mut client = KeptClient::new(url, None);
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);

    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let measured = tokio::time::timeout(TIMEOUT, measure(&mut client, slot)).await;
        if !matches!(measured, Ok(Ok(()))) {
            client.close();
        }
    }
}

async fn measure(client: &mut KeptClient, slot: &str) -> Result<(), CaptureError> {
    let row = client
        .get()
        .await?
        .query_opt(sql::slot::LAG, &[&slot])
        .await?;
    let status = row.as_ref().map_or(MISSING, |row| row.get("wal_status"));

    for known in STATUSES {
        gauge!(telemetry::SLOT_STATUS, "status" => known).set(f64::from(known == status));
    }

    gauge!(telemetry::SLOT_ACTIVE)
        .set(f64::from(row.as_ref().is_some_and(|row| row.get("active"))));
    let bytes = [
        (telemetry::SLOT_RETAINED, "retained"),
        (telemetry::SLOT_UNACKNOWLEDGED, "unacknowledged"),
        (telemetry::SLOT_LEFT, "left_to_limit"),
    ];
    for (metric, column) in bytes {
        if let Some(bytes) = row
            .as_ref()
            .and_then(|row| row.get::<_, Option<f64>>(column))
        {
            gauge!(metric).set(bytes);
        }
    }

    Ok(())
}
