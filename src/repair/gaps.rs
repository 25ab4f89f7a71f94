//! Reports gaps in four places: a row in the store, readiness, a metric, and one line in the server
//! log.

use metrics::gauge;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Source;
use crate::domain::gap::Gap;
use crate::domain::lsn::Lsn;
use crate::primary::error::PrimaryError;
use crate::primary::finding::Finding;
use crate::store::checkpoint::OpenGap;
use crate::store::{Store, StoreError};
use crate::telemetry::health::{GAP, Health};
use crate::telemetry::{self, Activity};

/// The name in the health report of tables whose changes are missing.
const TABLES: &str = "tables";

static RECORDING: Activity = Activity::new("recording a gap");

/// Records and reports the gaps of a slot.
#[derive(Clone, Copy)]
pub(crate) struct GapLog<'a> {
    pub source: &'a Source,
    pub store: &'a Store,
    health: &'a Health,
}

impl<'a> GapLog<'a> {
    pub fn new(source: &'a Source, store: &'a Store, health: &'a Health) -> GapLog<'a> {
        GapLog {
            source,
            store,
            health,
        }
    }

    /// Returns the name of the slot.
    pub fn slot(&self) -> String {
        self.source.slot.clone()
    }

    /// Records a gap in the store. `at` is the checkpoint from which it was determined.
    pub async fn record(&self, gap: &Gap, at: Option<Lsn>) -> Result<(), StoreError> {
        let new = self.store.record_gap(&self.source.slot, gap, at).await?;
        self.report_open().await?;

        if new {
            tracing::error!(reason = gap.reason(), "changes were lost: {gap}");
        }

        Ok(())
    }

    /// Records a gap after which reading cannot continue. Returns the error to end with: the gap,
    /// or the reason why it could not be recorded.
    pub async fn record_and_end(&self, gap: Gap, at: Option<Lsn>) -> PrimaryError {
        match self.record(&gap, at).await {
            Ok(()) => PrimaryError::Gap(gap),
            Err(error) => error.into(),
        }
    }

    /// Records a gap after which capture continues or retries. If the store does not answer, the
    /// gap is recorded when it is found again.
    pub async fn try_record(&self, gap: Gap) {
        match self.record(&gap, None).await {
            Ok(()) => RECORDING.succeeded(),
            Err(error) => RECORDING.failed(&error),
        }
    }

    /// Reports the open gaps in readiness and in the metric, and returns them.
    pub async fn report_open(&self) -> Result<Vec<OpenGap>, StoreError> {
        let open = self.store.open_gaps(&self.source.slot).await?;
        gauge!(telemetry::GAPS).set(open.len() as f64);

        if open.is_empty() {
            self.health.report_healthy(GAP);
        } else {
            let reasons: Vec<&str> = open.iter().map(|gap| gap.reason.as_str()).collect();
            let reasons = reasons.join(", ");
            self.health.report_unhealthy(
                GAP,
                format!("changes were lost ({reasons}): run `walhook repair`"),
            );
        }

        Ok(open)
    }

    /// Reports in readiness whether the captured tables have all that events need.
    pub fn report_tables(&self, missing: &[Finding]) {
        if missing.is_empty() {
            self.health.report_healthy(TABLES);
            return;
        }

        let reasons: Vec<String> = missing.iter().map(Finding::message).collect();
        self.health.report_unhealthy(TABLES, reasons.join("; "));
    }
}

/// The capacity of the channel: more than the tables that can be reported at once.
const REPORTS: usize = 16;

/// Records gaps in the background, so that reading the stream does not wait for the store.
pub(crate) struct Reports {
    gaps: mpsc::Sender<Gap>,
    _task: AbortOnDropHandle<()>,
}

impl Reports {
    pub fn start(log: GapLog<'_>) -> Reports {
        let (gaps, mut reported) = mpsc::channel(REPORTS);
        let source = log.source.clone();
        let store = log.store.clone();
        let health = log.health.clone();
        let task = tokio::spawn(async move {
            while let Some(gap) = reported.recv().await {
                GapLog::new(&source, &store, &health).try_record(gap).await;
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
