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
use crate::domain::position::{Checkpoint, Progress};
use crate::primary::error::PrimaryError;
use crate::primary::triggers::catalog::trigger_state;
use crate::repair::gaps::GapLog;
use crate::store::Store;
use crate::telemetry::health::Health;

use context::{CaptureContext, Ended};
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

/// Checks that the settings name the mode in which the store is read, and that the triggers'
/// functions are current. Everything else is verified before the first change is read. The caller
/// may start regardless of an error that [`CaptureError::is_transient`].
pub async fn preflight(
    config: &config::Source,
    origin: Origin<'_>,
    store: &Store,
) -> Result<(), CaptureError> {
    if config.capture == CaptureMode::Log {
        return log::preflight(config, origin, store).await;
    }

    let stored = store.stored_checkpoint(&config.slot).await?;
    let progress = stored.as_ref().map(|stored| &stored.checkpoint.progress);

    if progress.is_some_and(|progress| progress.log().is_some()) {
        return Err(PrimaryError::LogIsRead.into());
    }

    let reads_outbox = progress.is_some_and(Progress::is_outbox);
    let switch = stored.as_ref().and_then(|stored| stored.switch.as_ref());
    let switches_to_wal = reads_outbox && switch.is_some();

    match config.capture {
        CaptureMode::Wal if reads_outbox && !switches_to_wal => {
            Err(PrimaryError::OutboxIsRead.into())
        }
        CaptureMode::Trigger if switches_to_wal => Err(PrimaryError::SwitchToWal.into()),
        CaptureMode::Trigger => {
            let client = crate::postgres::connect(origin.url).await?;
            let is_set_up = match &stored {
                Some(_) if reads_outbox => true,
                Some(_) => trigger_state(&client).await?.is_installed(),
                None => false,
            };

            if !is_set_up {
                let slot = config.slot.clone();
                return Err(PrimaryError::NotSetUp { slot }.into());
            }

            outbox::verify(&client, config).await
        }
        CaptureMode::Wal | CaptureMode::Log => Ok(()),
    }
}
