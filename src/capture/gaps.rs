//! Gaps are told four ways: a durable row, readiness, a metric, one line of the log.

use metrics::gauge;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::error::Gap;
use super::{CaptureError, GAP};
use crate::config::Source;
use crate::domain::lsn::Lsn;
use crate::health::Health;
use crate::store::capture::OpenGap;
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Activity};

static NOTING: Activity = Activity::new("recording a gap");

/// Notes a gap for good. The error to end with: the gap, or that it could not be noted now. `at` is the checkpoint that it
/// was measured from.
pub(super) async fn record(source: &Source, store: &Store, health: &Health, gap: Gap, at: Option<Lsn>) -> CaptureError {
    let noted = async {
        let new = store.record_gap(&source.slot, gap.reason(), &gap.to_string(), at).await?;
        tell(source, store, health).await?;
        Ok::<_, StoreError>(new)
    };
    match noted.await {
        Ok(new) => {
            if new {
                tracing::error!(reason = gap.reason(), "changes were lost: {gap}");
            }
            CaptureError::Gap(gap)
        }
        Err(error) => error.into(),
    }
}

/// Lets readiness and metric say which gaps are open.
pub(super) async fn tell(source: &Source, store: &Store, health: &Health) -> Result<Vec<OpenGap>, StoreError> {
    let open = store.open_gaps(&source.slot).await?;
    gauge!(telemetry::GAPS).set(open.len() as f64);
    if open.is_empty() {
        health.report_healthy(GAP);
    } else {
        let reasons: Vec<&str> = open.iter().map(|gap| gap.reason.as_str()).collect();
        health.report_unhealthy(GAP, format!("changes were lost ({}): run `walhook repair`", reasons.join(", ")));
    }
    Ok(open)
}

/// How many tables may be reported at once: there are fewer.
const REPORTS: usize = 16;

/// Notes gaps that the stream itself shows, so that whoever reads it never waits for the store.
pub(super) struct Reports {
    gaps: mpsc::Sender<Gap>,
    _task: AbortOnDropHandle<()>,
}

impl Reports {
    pub fn start(source: &Source, store: &Store, health: &Health) -> Reports {
        let (gaps, mut reported) = mpsc::channel(REPORTS);
        let (source, store, health) = (source.clone(), store.clone(), health.clone());
        let task = tokio::spawn(async move {
            while let Some(gap) = reported.recv().await {
                note(&source, &store, &health, gap).await;
            }
        });
        Reports { gaps, _task: AbortOnDropHandle::new(task) }
    }

    pub fn report(&self, gap: Gap) {
        // No room means that as many are being noted already.
        let _ = self.gaps.try_send(gap);
    }
}

/// Notes what was lost while capture can go on, or wait for it to be mended.
pub(super) async fn note(source: &Source, store: &Store, health: &Health, gap: Gap) {
    match record(source, store, health, gap, None).await {
        CaptureError::Gap(_) => NOTING.succeeded(),
        error => NOTING.failed(&error),
    }
}
