//! Measures the slot from outside, so that it is watched while nobody reads it too: what fills the primary's disk is a slot
//! that has been left alone.

use std::time::Duration;

use metrics::gauge;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::CaptureError;
use crate::{postgres, telemetry};

const SLOT_LAG: &str = include_str!("../../sql/primary/slot_lag.sql");
const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);
/// As the server names them, and one for a slot that is not there.
const STATUSES: [&str; 6] = ["reserved", "extended", "unreserved", "lost", "unknown", MISSING];
const MISSING: &str = "missing";

/// Looks at the slot at intervals until shutdown. A primary that does not answer leaves the figures as they were: capture
/// itself says so.
pub async fn run(url: &str, slot: &str, shutdown: &CancellationToken) {
    let mut client = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let looked = tokio::time::timeout(TIMEOUT, look(&mut client, url, slot)).await;
        if !matches!(looked, Ok(Ok(()))) {
            client = None;
        }
    }
}

async fn look(kept: &mut Option<Client>, url: &str, slot: &str) -> Result<(), CaptureError> {
    let client = match kept.take().filter(|client| !client.is_closed()) {
        Some(client) => client,
        None => postgres::connect(url).await?,
    };
    let row = client.query_opt(SLOT_LAG, &[&slot]).await?;
    let status = row.as_ref().map_or(MISSING, |row| row.get("wal_status"));
    for known in STATUSES {
        gauge!(telemetry::SLOT_STATUS, "status" => known).set(f64::from(known == status));
    }
    gauge!(telemetry::SLOT_ACTIVE).set(f64::from(row.as_ref().is_some_and(|row| row.get("active"))));
    let bytes = [
        (telemetry::SLOT_RETAINED, "retained"),
        (telemetry::SLOT_UNACKNOWLEDGED, "unacknowledged"),
        (telemetry::SLOT_LEFT, "left_to_limit"),
    ];
    for (metric, column) in bytes {
        if let Some(bytes) = row.as_ref().and_then(|row| row.get::<_, Option<f64>>(column)) {
            gauge!(metric).set(bytes);
        }
    }
    *kept = Some(client);
    Ok(())
}
