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

/// Where changes or events are read from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The URL of the primary, or of the log's store.
    pub url: &'a str,
    /// The name of the cell that the store is, if a log is divided among several.
    pub cell: Option<&'a str>,
}

impl<'a> Origin<'a> {
    /// A primary, or a log that is not divided.
    pub fn whole(url: &'a str) -> Origin<'a> {
        Origin { url, cell: None }
    }
}

/// The settings, handles and channels of capture.
pub(super) struct CaptureContext<'a> {
    pub source: &'a Source,
    pub url: &'a str,
    pub cell: Option<&'a str>,
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
