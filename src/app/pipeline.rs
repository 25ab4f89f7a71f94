//! The capture pipeline: capture and enqueue, joined by channels. They start and end together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::capture::{self, CaptureError, Origin};
use crate::clock::SystemClock;
use crate::config::{CaptureMode, Config};
use crate::domain::delivery::lease_length;
use crate::enqueue::{Enqueue, EnqueueError};
use crate::handoff::Handoff;
use crate::lookup::Lookups;
use crate::primary::error::PrimaryError;
use crate::store::Store;
use crate::telemetry::health::Health;
use crate::telemetry::recurring;
use crate::telemetry::traces::Tracer;

/// Capacity of the channel from capture to enqueue, in batches: few, because a batch may hold
/// thousands of changes.
const BATCHES_AHEAD: usize = 2;
/// How long to wait before capturing again, after a gap or when another process has taken over.
const RESTART_DELAY: Duration = Duration::from_secs(2);

/// The stages of the role `capture`.
pub struct CapturePipeline {
    pub config: Arc<Config>,
    pub store: Store,
    pub health: Health,
    pub tracer: Tracer,
    /// Passes fresh deliveries to the local dispatcher, if this process has one.
    pub handoff: Option<Handoff>,
    pub shutdown: CancellationToken,
}

/// Why a run of the pipeline has ended.
#[derive(Debug, thiserror::Error)]
enum PipelineError {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    #[error(transparent)]
    Panic(#[from] JoinError),
}

impl CapturePipeline {
    /// Runs until shutdown. Starts again after a gap, a transient error in a switch of the mode, or
    /// lost commits of the store or of the log, on a new timeline, and when another process has
    /// taken over.
    pub async fn run(self) -> anyhow::Result<()> {
        let url = self.config.capture_url()?;
        let mut logged_gap = None;

        loop {
            let error = match self.run_once(url).await {
                Err(error) if !self.shutdown.is_cancelled() => error,
                result => return Ok(result?),
            };

            match &error {
                // Only `walhook repair` closes a gap. Deliveries and the API continue meanwhile.
                PipelineError::Capture(CaptureError::Primary(PrimaryError::Gap(gap))) => {
                    // Not by its text, which has positions that move.
                    if logged_gap != Some(gap.reason()) {
                        tracing::error!(%error, "no changes are read until the gap is repaired");
                        logged_gap = Some(gap.reason());
                    }

                    self.health
                        .report_unhealthy(capture::STAGE, "waiting for `walhook repair`");
                    self.wait().await;
                }
                PipelineError::Capture(
                    CaptureError::NewTimeline { .. } | CaptureError::LogMoved,
                ) => {
                    tracing::info!(reason = %error, "reading again from the checkpoint");
                }
                PipelineError::Capture(CaptureError::StoreBehind(_))
                | PipelineError::Enqueue(EnqueueError::StoreBehind(_)) => {
                    tracing::warn!(reason = %error, "reading again from the checkpoint");
                }
                // Another process captures now. This one stands by until the slot is free.
                PipelineError::Capture(CaptureError::Superseded(_))
                | PipelineError::Enqueue(EnqueueError::Superseded(_)) => {
                    tracing::info!(reason = %error, "standing by");
                    self.wait().await;
                }
                // Within one mode, capture reconnects by itself; between the two modes of a switch,
                // it ends.
                PipelineError::Capture(fault) if fault.is_transient() => {
                    self.health
                        .report_unhealthy(capture::STAGE, "changes cannot be read now");
                    recurring!(warn, %error, "capture cannot start, or not complete the switch to the other mode; retrying");
                    self.wait().await;
                }
                _ => return Err(error.into()),
            }
        }
    }

    /// Waits before capture starts again.
    async fn wait(&self) {
        self.shutdown
            .run_until_cancelled(tokio::time::sleep(RESTART_DELAY))
            .await;
    }

    async fn run_once(&self, url: &str) -> Result<(), PipelineError> {
        let Config {
            source, delivery, ..
        } = &*self.config;
        let reads_log = source.capture == CaptureMode::Log;
        let (batches, changes) = mpsc::channel(BATCHES_AHEAD);
        let (durable, acknowledge) = watch::channel(None);

        let enqueue = Enqueue {
            store: self.store.clone(),
            lookups: (!reads_log).then(|| Lookups::new(url, source, self.store.clone())),
            slot: source.slot.clone(),
            ledger: source.ledger && !reads_log,
            max_data: delivery.max_payload_bytes,
            handoff: self.handoff.clone(),
            lease_length: lease_length(delivery.timeout.0),
            health: self.health.clone(),
            tracer: self.tracer.clone(),
            clock: SystemClock,
        };

        let enqueued = AbortOnDropHandle::new(tokio::spawn(enqueue.run(
            changes,
            durable,
            self.shutdown.clone(),
        )));
        let captured = capture::run(
            source,
            Origin {
                url,
                cell: self.config.cells.name.as_deref(),
            },
            self.store.clone(),
            self.health.clone(),
            batches,
            acknowledge,
            self.shutdown.clone(),
        )
        .await;
        if let Err(error @ CaptureError::NewTimeline { .. }) = captured {
            // Changes of the old timeline are read again if they are part of the new one. If they
            // were committed to the store already, the checkpoint includes them.
            return Err(error.into());
        }

        // If enqueue fails, its end of the channel closes and capture ends too. If capture ends,
        // enqueue stores the batches that are still in the channel.
        enqueued.await??;
        Ok(captured?)
    }
}
