//! What a mode of capture keeps between its sessions: the waits between them, what was logged about
//! an outage, and the moment up to which every commit has been read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::gauge;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::context::{CaptureContext, Ended, STAGE};
use super::error::CaptureError;
use crate::config::Source;
use crate::domain::gap::Gap;
use crate::retry::Backoff;
use crate::telemetry::{self, Activity};

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How often a standby replica tries to take over, and so how long a takeover takes.
const STAND_BY: Duration = Duration::from_secs(1);
/// After a session of this length, the waits between retries start over.
const STABLE: Duration = Duration::from_secs(10);
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// A mode of capture that needs the lease.
pub(super) trait Session: Send {
    /// Takes the lease and reads over one connection until it ends.
    fn run(
        &mut self,
        sessions: &mut Sessions<'_>,
    ) -> impl Future<Output = Result<Ended, CaptureError>> + Send;
}

/// The sessions of one mode of capture.
pub(super) struct Sessions<'a> {
    context: &'a CaptureContext<'a>,
    pub read_until: ReadUntil,
    _lag: AbortOnDropHandle<()>,
    retries: Backoff,
    /// Fails until changes are read, or until another process reads them.
    reading: Activity,
    /// The same, while only an operator can end the outage.
    blocked: Activity,
    stands_by: bool,
}

impl<'a> Sessions<'a> {
    pub fn new(context: &'a CaptureContext<'a>) -> Sessions<'a> {
        let read_until = ReadUntil::default();
        show_connected(false);

        Sessions {
            context,
            _lag: read_until.report_lag(context.source),
            read_until,
            retries: RETRIES,
            reading: Activity::new("reading changes"),
            blocked: Activity::new("reading changes"),
            stands_by: false,
        }
    }

    /// Runs one session after the other, until shutdown or a permanent error. Then releases the
    /// lease of `holder`.
    pub async fn run_with_lease(
        mut self,
        holder: Uuid,
        mut session: impl Session,
    ) -> Result<Ended, CaptureError> {
        let context = self.context;
        let ended = context
            .shutdown
            .run_until_cancelled(self.repeat(&mut session))
            .await;

        // Enqueue may still store batches of this process: the claim on the checkpoint fences them.
        if let Err(error) = context
            .store
            .release_capture_lease(&context.source.slot, holder)
            .await
        {
            tracing::debug!(%error, "the capture lease could not be released; it expires");
        }

        ended.unwrap_or(Ok(Ended::Stopped))
    }

    async fn repeat(&mut self, session: &mut impl Session) -> Result<Ended, CaptureError> {
        loop {
            let started_at = Instant::now();
            let error = match session.run(self).await {
                Ok(ended) => return Ok(ended),
                Err(error) => error,
            };

            if !error.is_transient() && !matches!(error.gap(), Some(Gap::OutboxLost(_))) {
                return Err(error);
            }

            self.report(&error);
            let wait = self.wait_after(&error, started_at.elapsed());
            tokio::time::sleep(wait).await;
        }
    }

    /// Records that changes are read: the outage has ended.
    pub fn started(&mut self) {
        self.forget_outage();
        self.stands_by = false;
        show_connected(true);
    }

    /// Reports the error with which a session has ended to readiness and in metrics.
    pub fn report(&self, error: &CaptureError) {
        show_connected(false);
        error.count_disk_fault();

        if error.is_standing_by() {
            self.context.health.report_healthy(STAGE);
            self.read_until.forget();
        } else {
            self.context
                .health
                .report_unhealthy(STAGE, error.readiness());
        }
    }

    /// Logs an error that is retried, and returns how long to wait before the next session.
    pub fn wait_after(&mut self, error: &CaptureError, session: Duration) -> Duration {
        self.log(error);

        if session > STABLE {
            self.retries.reset();
        }

        if error.is_standing_by() {
            STAND_BY
        } else {
            self.retries.next_wait()
        }
    }

    fn forget_outage(&self) {
        self.reading.stops_failing();
        self.blocked.stops_failing();
    }

    /// Logs one warning per outage, and one more if a retry cannot succeed.
    fn log(&mut self, error: &CaptureError) {
        if error.is_standing_by() {
            if !self.stands_by {
                tracing::info!(reason = %error, "standing by");
            }

            self.stands_by = true;
            self.forget_outage();
            return;
        }

        let is_first = self.reading.starts_failing();
        let is_blocked = !error.is_transient() && self.blocked.starts_failing();

        if is_first || is_blocked {
            tracing::warn!(%error, "changes cannot be read now; retrying until they can");
        }
    }
}

impl Drop for Sessions<'_> {
    fn drop(&mut self) {
        show_connected(false);
    }
}

fn show_connected(connected: bool) {
    gauge!(telemetry::CAPTURE_CONNECTED).set(f64::from(connected));
}

/// The moment up to which every commit has been read. None while another process captures.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadUntil(Arc<Mutex<Option<Instant>>>);

impl ReadUntil {
    /// Records that everything committed before `moment` has been read.
    pub fn advance(&self, moment: Instant) {
        let mut known = self.0.lock();
        *known = Some(known.map_or(moment, |known| known.max(moment)));
    }

    /// Forgets the moment, because another process captures: this one has no lag.
    fn forget(&self) {
        *self.0.lock() = None;
    }

    /// Reports the lag until the handle is dropped, whenever the moment has not advanced for two
    /// heartbeats, and no lag while another process captures: the last value of this one would
    /// stay.
    fn report_lag(&self, source: &Source) -> AbortOnDropHandle<()> {
        let known = self.clone();
        let grace = source.heartbeat.0 * 2 + LAG_INTERVAL;

        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut is_late = false;

            loop {
                tokio::time::sleep(LAG_INTERVAL).await;

                let known = *known.0.lock();
                let age = known.map(|known| known.elapsed());
                let lag = age.filter(|age| *age > grace);

                if lag.is_some() || is_late || age.is_none() {
                    gauge!(telemetry::CAPTURE_LAG).set(lag.unwrap_or_default().as_secs_f64());
                }

                is_late = lag.is_some();
            }
        }))
    }
}
