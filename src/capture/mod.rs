//! Captures committed changes, from the WAL or from the outbox, as batches with checkpoints.

pub(crate) mod acknowledgement;
mod client;
mod context;
mod decode;
mod deleted;
pub(crate) mod error;
mod fault_log;
mod heartbeat;
mod lag;
pub mod observe;
pub(crate) mod outbox;
pub(crate) mod replication;
mod switch;
mod visibility;
mod wal;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{self, CaptureMode};
use crate::domain::change::Batch;
use crate::domain::position::Checkpoint;
use crate::health::Health;
use crate::primary::{identity, triggers};
use crate::repair::{continuity, gaps};
use crate::store::Store;

use context::{Context, Ended};
use error::Gap;

pub use context::STAGE;
pub use error::CaptureError;

pub use crate::health::GAP;

/// Captures until shutdown or a permanent error. Reconnects with backoff after transient errors, and then resumes from the stored
/// checkpoint: changes that were sent before may be sent again, and the consumer skips those that its checkpoint includes.
/// `durable` has the checkpoint that the store has committed last.
pub async fn run(
    config: &config::Source,
    url: &str,
    store: Store,
    health: Health,
    batches: mpsc::Sender<Batch>,
    durable: watch::Receiver<Option<Checkpoint>>,
    shutdown: CancellationToken,
) -> Result<(), CaptureError> {
    let (store, health, batches, shutdown) = (&store, &health, &batches, &shutdown);
    let context = Context { source: config, url, store, health, batches, durable: &durable, shutdown };
    loop {
        let reads_outbox = store.checkpoint(&config.slot).await?.is_some_and(|stored| stored.progress.is_outbox());
        let ended = match reads_outbox {
            true => outbox::run(&context).await?,
            false => switch::read_log(&context).await?,
        };
        match (ended, reads_outbox) {
            (Ended::Stopped, _) => return Ok(()),
            (Ended::Switched, true) => switch::to_log(&context).await?,
            (Ended::Switched, false) => {
                tracing::info!("the WAL is read up to the switch: reading the outbox from there")
            }
        }
    }
}

/// Checks the requirements of capture. The caller may start regardless of an error that [`CaptureError::is_transient`].
pub async fn preflight(config: &config::Source, url: &str, store: &Store, health: &Health) -> Result<(), CaptureError> {
    let client = crate::postgres::connect(url).await?;
    let stored = store.stored_checkpoint(&config.slot).await?;
    let reads_outbox = stored.as_ref().is_some_and(|stored| stored.checkpoint.progress.is_outbox());
    let switch_is_prepared = reads_outbox && stored.as_ref().is_some_and(|stored| stored.switch.is_some());
    match (config.capture, reads_outbox) {
        (CaptureMode::Wal, false) => {
            continuity::verify(&client, config, store, health).await?;
            let verified = identity::verify(&client, config).await.map(drop);
            if let Some(gap) = verified.as_ref().err().and_then(Gap::by_drift) {
                gaps::note(config, store, health, gap).await;
            }
            verified
        }
        (CaptureMode::Wal, true) if switch_is_prepared => identity::verify(&client, config).await.map(drop),
        (CaptureMode::Wal, true) => Err(CaptureError::OutboxIsRead),
        (CaptureMode::Trigger, true) if switch_is_prepared => Err(CaptureError::SwitchToLog),
        (CaptureMode::Trigger, true) => outbox::verify(&client, config).await,
        (CaptureMode::Trigger, false) if stored.is_some() && triggers::catalog::state(&client).await?.installed => {
            outbox::verify(&client, config).await
        }
        (CaptureMode::Trigger, false) => Err(CaptureError::NotSetUp { slot: config.slot.clone() }),
    }
}
