//! The capture pipeline: capture and enqueue, joined by channels. They start and end together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::capture::{self, CaptureError};
use crate::clock::SystemClock;
use crate::config::Config;
use crate::domain::delivery::lease_length;
use crate::domain::gap::Gap;
use crate::enqueue::{Enqueue, EnqueueError};
use crate::handoff::Handoff;
use crate::health::Health;
use crate::lookup::Lookups;
use crate::store::Store;
use crate::telemetry::recurring;
use crate::traces::Tracer;

/// Capacity of the channel from capture to enqueue, in batches: few, because a batch may hold a
/// thousand changes.
const BATCHES_AHEAD: usize = 4;
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

impl CapturePipeline {
    /// Runs until shutdown. Starts again after a gap, a transient error in a switch of the mode, or
    /// lost commits of the store, on a new timeline, and when another process has taken over.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut logged_gap = None;

        loop {
            match self.run_once().await {
                // Only `walhook repair` closes a gap. Deliveries and the API continue meanwhile.
                Err(error) if gap_of(&error).is_some() && !self.shutdown.is_cancelled() => {
                    // Not by its text, which has positions that move.
                    let reason = gap_of(&error).map(Gap::reason);
                    if logged_gap != reason {
                        tracing::error!(%error, "no changes are read until the gap is repaired");
                        logged_gap = reason;
                    }

                    self.health
                        .report_unhealthy(capture::STAGE, "waiting for `walhook repair`");
                    self.shutdown
                        .run_until_cancelled(tokio::time::sleep(RESTART_DELAY))
                        .await;
                }
                Err(error) if is_new_timeline(&error) && !self.shutdown.is_cancelled() => {
                    tracing::info!(reason = %error, "reading again from the checkpoint");
                }
                Err(error) if is_store_behind(&error) && !self.shutdown.is_cancelled() => {
                    tracing::warn!(reason = %error, "reading again from the checkpoint");
                }
                // Within one mode, capture reconnects by itself; between the two modes of a switch,
                // it ends.
                Err(error) if is_transient(&error) && !self.shutdown.is_cancelled() => {
                    self.health
                        .report_unhealthy(capture::STAGE, "changes cannot be read now");
                    recurring!(warn, %error, "capture cannot start, or not complete the switch to the other mode; retrying");
                    self.shutdown
                        .run_until_cancelled(tokio::time::sleep(RESTART_DELAY))
                        .await;
                }
                // Another process captures now. This one stands by until the slot is free.
                Err(error) if is_superseded(&error) && !self.shutdown.is_cancelled() => {
                    tracing::info!(reason = %error, "standing by");
                    tokio::time::sleep(RESTART_DELAY).await;
                }
                result => return result,
            }
        }
    }

    async fn run_once(&self) -> anyhow::Result<()> {
        let Config {
            source, delivery, ..
        } = &*self.config;
        let url = self.config.source_url()?;
        let (batches, changes) = mpsc::channel(BATCHES_AHEAD);
        let (durable, acknowledge) = watch::channel(None);

        let enqueue = Enqueue {
            store: self.store.clone(),
            lookups: Lookups::new(url, source, self.store.clone()),
            slot: source.slot.clone(),
            ledger: source.ledger,
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
            url,
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

fn gap_of(error: &anyhow::Error) -> Option<&Gap> {
    error.downcast_ref().and_then(CaptureError::gap)
}

fn is_transient(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(CaptureError::is_transient)
}

fn is_new_timeline(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CaptureError::NewTimeline { .. }))
}

fn is_store_behind(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EnqueueError::StoreBehind(_)))
        || matches!(error.downcast_ref(), Some(CaptureError::StoreBehind(_)))
}

fn is_superseded(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EnqueueError::Superseded(_)))
        || matches!(error.downcast_ref(), Some(CaptureError::Superseded(_)))
}
