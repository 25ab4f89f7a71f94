//! Reads what the platform commits: the slot's changes as batches with checkpoints, and the commands that prepare, examine
//! and clear the primary for it.

mod acknowledgement;
pub mod check;
mod conninfo;
mod decode;
mod error;
mod gaps;
mod heartbeat;
mod identity;
pub mod observe;
mod primary;
pub mod repair;
pub mod setup;
mod slot;
mod snapshot;
pub mod teardown;
mod wal;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::domain::change::Batch;
use crate::domain::lsn::Lsn;
use crate::domain::table::Table;
use crate::health::Health;
use crate::store::Store;

pub use error::CaptureError;

/// Under which name this stage says how it is.
pub const STAGE: &str = "capture";

/// The same for what was lost and is not repaired.
pub const GAP: &str = "gap";

/// Streams until shutdown or a fault no retry can mend. Reconnects by itself with backoff; after a reconnect it resumes from
/// the durable position: changes already sent may be sent again, the consumer skips what lies at or before its stored
/// position. `durable` is the resume position of the last checkpoint that the store has committed.
pub async fn run(
    config: &config::Source,
    url: &str,
    store: Store,
    health: Health,
    batches: mpsc::Sender<Batch>,
    durable: watch::Receiver<Lsn>,
    shutdown: CancellationToken,
) -> Result<(), CaptureError> {
    refuse_triggers(config)?;
    wal::run(config, url, &store, &health, &batches, &durable, &shutdown).await
}

/// What must hold before streaming can begin. An error that [`CaptureError::is_transient`] is no reason not to start.
pub async fn preflight(config: &config::Source, url: &str, store: &Store, health: &Health) -> Result<(), CaptureError> {
    refuse_triggers(config)?;
    let client = crate::postgres::connect(url).await?;
    slot::verify(&client, config, store, health).await?;
    identity::verify(&client, config).await.map(drop)
}

fn refuse_triggers(config: &config::Source) -> Result<(), CaptureError> {
    match config.capture {
        config::CaptureMode::Wal => Ok(()),
        config::CaptureMode::Trigger => Err(CaptureError::TriggerMode),
    }
}

/// Whether events or their routing need the table; the rest is for e-mail alone.
const fn is_required(table: Table) -> bool {
    !matches!(table, Table::AppUser)
}
