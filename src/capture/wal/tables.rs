//! Verifies that the stream has what events need. Changes of some tables may be missing: that is a
//! gap, and the others go on.

use std::collections::HashMap;

use tokio_postgres::Client;

use crate::capture::error::CaptureError;
use crate::config::Source;
use crate::domain::table::Table;
use crate::primary::finding::Finding;
use crate::primary::inspect::Streamed;
use crate::primary::install::prepared_for_streaming;
use crate::repair::gaps;
use crate::store::Store;
use crate::telemetry::health::Health;

/// The name in the health report of tables whose changes are missing.
const TABLES: &str = "tables";

/// Returns the captured tables by their OIDs. Prepares new ones where it can, and records as a gap
/// what the stream lacks.
pub(in crate::capture) async fn verify(
    client: &Client,
    source: &Source,
    store: &Store,
    health: &Health,
) -> Result<HashMap<u32, Table>, CaptureError> {
    let Streamed { tables, missing } = prepared_for_streaming(client, source, store).await?;
    for gap in missing.iter().filter_map(Finding::gap) {
        gaps::record(source, store, health, &gap, None).await?;
    }

    match missing.is_empty() {
        true => health.report_healthy(TABLES),
        false => {
            let reasons: Vec<String> = missing.iter().map(Finding::message).collect();
            health.report_unhealthy(TABLES, reasons.join("; "));
        }
    }

    Ok(tables)
}
