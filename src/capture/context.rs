//! The settings, handles and channels that both modes of capture use.

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::Source;
use crate::domain::change::Batch;
use crate::domain::position::Checkpoint;
use crate::repair::gaps::GapLog;
use crate::store::Store;
use crate::telemetry::health::Health;

/// The name of this stage in the health report.
pub const STAGE: &str = "capture";

/// The settings, handles and channels of capture.
pub(super) struct CaptureContext<'a> {
    pub source: &'a Source,
    pub url: &'a str,
    pub store: &'a Store,
    pub health: &'a Health,
    pub gaps: GapLog<'a>,
    pub batches: &'a mpsc::Sender<Batch>,
    /// The checkpoint that the store has committed last.
    pub durable: &'a watch::Receiver<Option<Checkpoint>>,
    pub shutdown: &'a CancellationToken,
}

/// Why a mode of capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Shutdown, or enqueue has stopped.
    Stopped,
    /// The other mode continues from here.
    Switched,
}
