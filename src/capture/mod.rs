//! Captures committed changes, from the WAL or from the outbox, or reads the events of a log, as
//! batches with checkpoints.

mod client;
mod context;
mod error;
pub mod log;
mod outbox;
mod session;
mod switch;
mod wal;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{self, CaptureMode};
use crate::domain::change::Batch;
use crate::domain::position::Checkpoint;
use crate::primary::error::PrimaryError;
use crate::primary::triggers::catalog::trigger_state;
use crate::primary::{catalog, lineage};
use crate::repair::continuity;
use crate::repair::gaps::GapLog;
use crate::store::Store;
use crate::telemetry::health::Health;

use context::{CaptureContext, Ended};
use wal::tables;

pub use context::{Origin, STAGE};
pub use error::CaptureError;

/// Captures until shutdown or a permanent error. Reconnects with backoff after transient errors,
/// and then resumes from the stored checkpoint: changes may be sent again, and the consumer skips
/// those that its checkpoint includes. `durable` has the checkpoint that the store has committed
/// last.
pub async fn run(
    config: &config::Source,
    origin: Origin<'_>,
    store: Store,
    health: Health,
    batches: mpsc::Sender<Batch>,
    durable: watch::Receiver<Option<Checkpoint>>,
    shutdown: CancellationToken,
) -> Result<(), CaptureError> {
    let store = &store;
    let health = &health;
    let batches = &batches;
    let shutdown = &shutdown;

    let context = CaptureContext {
        source: config,
        url: origin.url,
        cell: origin.cell,
        store,
        health,
        gaps: GapLog::new(config, store, health),
        batches,
        durable: &durable,
        shutdown,
    };

    if config.capture == CaptureMode::Log {
        return log::run(&context).await.map(drop);
    }

    loop {
        let reads_outbox = store
            .checkpoint(&config.slot)
            .await?
            .is_some_and(|stored| stored.progress.is_outbox());
        let ended = match reads_outbox {
            true => outbox::run(&context).await?,
            false => switch::read_wal(&context).await?,
        };

        match (ended, reads_outbox) {
            (Ended::Stopped, _) => return Ok(()),
            (Ended::Switched, true) => switch::wait_for_last_outbox_batch(&context).await?,
            (Ended::Switched, false) => {
                tracing::info!("the WAL is read up to the switch: reading the outbox from there")
            }
        }
    }
}

/// Checks the requirements of capture. The caller may start regardless of an error that
/// [`CaptureError::is_transient`].
pub async fn preflight(
    config: &config::Source,
    origin: Origin<'_>,
    store: &Store,
    health: &Health,
) -> Result<(), CaptureError> {
    if config.capture == CaptureMode::Log {
        return log::preflight(config, origin, store).await;
    }

    let gaps = GapLog::new(config, store, health);
    let client = crate::postgres::connect(origin.url).await?;
    let stored = store.stored_checkpoint(&config.slot).await?;
    let reads_outbox = stored
        .as_ref()
        .is_some_and(|stored| stored.checkpoint.progress.is_outbox());

    if let Some(stored) = &stored {
        if stored.checkpoint.progress.log().is_some() {
            return Err(PrimaryError::LogIsRead.into());
        }

        let found = catalog::lineage(&client).await?;
        lineage::verify(found, stored.checkpoint.lineage)?;
    }

    let switch_is_prepared = reads_outbox
        && stored
            .as_ref()
            .is_some_and(|stored| stored.switch.is_some());

    match (config.capture, reads_outbox) {
        (CaptureMode::Wal, false) => {
            continuity::verify(&client, gaps).await?;
            let verified = tables::verify(&client, gaps).await.map(drop);
            if let Some(gap) = verified.as_ref().err().and_then(CaptureError::gap_by_drift) {
                gaps.try_record(gap).await;
            }

            verified
        }
        (CaptureMode::Wal, true) if switch_is_prepared => {
            tables::verify(&client, gaps).await.map(drop)
        }
        (CaptureMode::Wal, true) => Err(PrimaryError::OutboxIsRead.into()),
        (CaptureMode::Trigger, true) if switch_is_prepared => Err(PrimaryError::SwitchToWal.into()),
        (CaptureMode::Trigger, true) => outbox::verify(&client, config).await,
        (CaptureMode::Trigger, false)
            if stored.is_some() && trigger_state(&client).await?.is_installed() =>
        {
            outbox::verify(&client, config).await
        }
        (CaptureMode::Trigger, false) | (CaptureMode::Log, _) => Err(PrimaryError::NotSetUp {
            slot: config.slot.clone(),
        }
        .into()),
    }
}
