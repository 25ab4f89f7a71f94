//! Reads what the platform commits, from the slot or from the triggers' outbox, as batches with checkpoints.

mod acknowledgement;
mod decode;
mod deleted;
mod error;
mod faults;
mod heartbeat;
mod lag;
pub mod observe;
mod outbox;
mod switch;
mod wal;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{self, CaptureMode};
use crate::domain::change::Batch;
use crate::domain::lsn::Checkpoint;
use crate::health::Health;
use crate::primary::error::PrimaryError;
use crate::primary::inspect;
use crate::primary::triggers::catalog::trigger_state;
use crate::repair::{continuity, gaps};
use crate::store::Store;
use crate::store::outbox::Place;

pub use error::CaptureError;

/// Under which name this stage says how it is.
pub const STAGE: &str = "capture";

pub use crate::health::GAP;

/// Streams until shutdown or a fault no retry can mend. Reconnects by itself with backoff; after a reconnect it resumes from
/// the durable position: changes already sent may be sent again, the consumer skips what lies at or before its stored
/// position. `durable` is the resume position of the last checkpoint that the store has committed.
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
        let reads_outbox = matches!(store.capture_place(&config.slot).await?, Some(Place::Outbox { .. }));
        let ended = match reads_outbox {
            true => outbox::run(&context).await?,
            false => switch::read_log(&context).await?,
        };
        match (ended, reads_outbox) {
            (Ended::Stopped, _) => return Ok(()),
            (Ended::HandedOver, true) => switch::to_log(&context).await?,
            (Ended::HandedOver, false) => {
                tracing::info!("the log is read up to the switch: the outbox is read from there")
            }
        }
    }
}

/// What a way of capturing works with.
struct Context<'a> {
    source: &'a config::Source,
    url: &'a str,
    store: &'a Store,
    health: &'a Health,
    batches: &'a mpsc::Sender<Batch>,
    durable: &'a watch::Receiver<Option<Checkpoint>>,
    shutdown: &'a CancellationToken,
}

/// How reading came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// At shutdown, or when nobody took batches any more.
    Stopped,
    /// At the place from which the other mode goes on.
    HandedOver,
}

/// What must hold before streaming can begin. An error that [`CaptureError::is_transient`] is no reason not to start.
pub async fn preflight(config: &config::Source, url: &str, store: &Store, health: &Health) -> Result<(), CaptureError> {
    let client = crate::postgres::connect(url).await?;
    let place = store.capture_place(&config.slot).await?;
    match (config.capture, place) {
        (CaptureMode::Wal, None | Some(Place::Log)) => {
            continuity::verify(&client, config, store, health).await?;
            let verified = inspect::tables_for_streaming(&client, config).await.map(drop).map_err(CaptureError::from);
            if let Some(gap) = verified.as_ref().err().and_then(CaptureError::gap_by_drift) {
                gaps::try_record(config, store, health, gap).await;
            }
            verified
        }
        (CaptureMode::Wal, Some(Place::Outbox { handover: Some(_), .. })) => {
            Ok(inspect::tables_for_streaming(&client, config).await.map(drop)?)
        }
        (CaptureMode::Wal, Some(Place::Outbox { .. })) => Err(PrimaryError::OutboxIsRead.into()),
        (CaptureMode::Trigger, Some(Place::Outbox { handover: Some(_), .. })) => Err(PrimaryError::SwitchToLog.into()),
        (CaptureMode::Trigger, None) => Err(PrimaryError::NotSetUp { slot: config.slot.clone() }.into()),
        (CaptureMode::Trigger, Some(Place::Log)) if !trigger_state(&client).await?.installed => {
            Err(PrimaryError::NotSetUp { slot: config.slot.clone() }.into())
        }
        (CaptureMode::Trigger, Some(_)) => outbox::verify(&client, config).await,
    }
}
