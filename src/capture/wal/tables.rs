//! Verifies that the stream has what events need. Changes of some tables may be missing: that is a
//! gap, and the others go on.

use std::collections::HashMap;

use tokio_postgres::Client;

use crate::capture::error::CaptureError;
use crate::domain::table::Table;
use crate::primary::finding::Finding;
use crate::primary::inspect::Streamed;
use crate::primary::install::prepared_for_streaming;
use crate::repair::gaps::GapLog;

/// Returns the captured tables by their OIDs. Prepares new ones where it can, and records as a gap
/// what the stream lacks.
pub(super) async fn verify(
    client: &Client,
    gaps: GapLog<'_>,
) -> Result<HashMap<u32, Table>, CaptureError> {
    let Streamed { tables, missing } =
        prepared_for_streaming(client, gaps.source, gaps.store).await?;

    for gap in missing.iter().filter_map(Finding::gap) {
        gaps.record(&gap, None).await?;
    }

    gaps.report_tables(&missing);
    Ok(tables)
}
