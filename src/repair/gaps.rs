//! Reports gaps in four places: a row in the store, readiness, a metric, and one line in the server
//! log.

use metrics::gauge;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Source;
use crate::domain::gap::Gap;
use crate::domain::lsn::Lsn;
use crate::primary::error::PrimaryError;
use crate::store::checkpoint::OpenGap;
use crate::store::{Store, StoreError};
use crate::telemetry::health::{GAP, Health};
use crate::telemetry::{self, Activity};

static RECORDING: Activity = Activity::new("recording a gap");

/// Records a gap in the store. `at` is the checkpoint from which it was determined.
pub(crate) async fn record(
    source: &Source,
    store: &Store,
    health: &Health,
    gap: &Gap,
    at: Option<Lsn>,
) -> Result<(), StoreError> {
    let new = store
        .record_gap(&source.slot, gap.reason(), &gap.to_string(), at)
        .await?;
    report_open(source, store, health).await?;

    if new {
        tracing::error!(reason = gap.reason(), "changes were lost: {gap}");
    }

    Ok(())
}

/// Records a gap after which reading cannot continue. Returns the error to end with: the gap, or
/// the reason why it could not be recorded.
pub(crate) async fn record_and_end(
    source: &Source,
    store: &Store,
    health: &Health,
    gap: Gap,
    at: Option<Lsn>,
) -> PrimaryError {
    match record(source, store, health, &gap, at).await {
        Ok(()) => PrimaryError::Gap(gap),
        Err(error) => error.into(),
    }
}

/// Reports the open gaps in readiness and in the metric, and returns them.
pub(crate) async fn report_open(
    source: &Source,
    store: &Store,
    health: &Health,
) -> Result<Vec<OpenGap>, StoreError> {
    let open = store.open_gaps(&source.slot).await?;
    gauge!(telemetry::GAPS).set(open.len() as f64);

    if open.is_empty() {
        health.report_healthy(GAP);
    } else {
        let reasons: Vec<&str> = open.iter().map(|gap| gap.reason.as_str()).collect();
        health.report_unhealthy(
            GAP,
            format!(
                "changes were lost ({}): run `walhook repair`",
                reasons.join(", ")
            ),
        );
    }

    Ok(open)
}

/// The capacity of the channel: more than the tables that can be reported at once.
const REPORTS: usize = 16;

/// Records gaps in the background, so that reading the stream does not wait for the store.
pub(crate) struct Reports {
    gaps: mpsc::Sender<Gap>,
    _task: AbortOnDropHandle<()>,
}

impl Reports {
    pub fn start(source: &Source, store: &Store, health: &Health) -> Reports {
        let (gaps, mut reported) = mpsc::channel(REPORTS);
        let source = source.clone();
        let store = store.clone();
        let health = health.clone();
        let task = tokio::spawn(async move {
            while let Some(gap) = reported.recv().await {
                try_record(&source, &store, &health, gap).await;
            }
        });

        Reports {
            gaps,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Records a gap in the background.
    pub fn report(&self, gap: Gap) {
        // If the channel is full, the same gaps are being recorded already.
        let _ = self.gaps.try_send(gap);
    }
}

/// Records a gap after which capture continues or retries. If the store does not answer, the gap is
/// recorded when it is found again.
pub(crate) async fn try_record(source: &Source, store: &Store, health: &Health, gap: Gap) {
    match record(source, store, health, &gap, None).await {
        Ok(()) => RECORDING.succeeded(),
        Err(error) => RECORDING.failed(&error),
    }
}
