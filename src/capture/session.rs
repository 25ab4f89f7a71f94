//! What a mode of capture keeps between its sessions: the waits between them, what was logged about
//! an outage, and the moment up to which every commit has been read.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrics::gauge;
use tokio_util::task::AbortOnDropHandle;

use super::context::{Context, STAGE};
use super::error::CaptureError;
use crate::config::Source;
use crate::primary::error::PrimaryError;
use crate::retry::Backoff;
use crate::telemetry;

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How often a standby replica tries to take over, and so how long a takeover takes.
const STAND_BY: Duration = Duration::from_secs(1);
/// After a session of this length, the waits between retries start over.
const STABLE: Duration = Duration::from_secs(10);
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// Kinds of errors, which are logged once each.
type Kind = (
    Discriminant<CaptureError>,
    Option<Discriminant<PrimaryError>>,
);

/// The sessions of one mode of capture.
pub(super) struct Sessions<'a> {
    context: &'a Context<'a>,
    pub read_until: ReadUntil,
    _lag: AbortOnDropHandle<()>,
    retries: Backoff,
    /// The errors of this outage.
    logged: HashSet<Kind>,
    stands_by: bool,
}

impl<'a> Sessions<'a> {
    pub fn new(context: &'a Context<'a>) -> Sessions<'a> {
        let read_until = ReadUntil::default();
        show_connected(false);

        Sessions {
            context,
            _lag: read_until.report_lag(context.source),
            read_until,
            retries: RETRIES,
            logged: HashSet::new(),
            stands_by: false,
        }
    }

    /// Records that changes are read: the outage has ended.
    pub fn started(&mut self) {
        self.logged.clear();
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

    /// Logs one warning per outage. Further errors of the same outage are logged once each, as a
    /// warning only if a retry cannot succeed.
    fn log(&mut self, error: &CaptureError) {
        if error.is_standing_by() {
            if !self.stands_by {
                tracing::info!(reason = %error, "standing by");
            }

            self.stands_by = true;
            self.logged.clear();
            return;
        }

        let is_first = self.logged.is_empty();
        let is_new = self.logged.insert(kind(error));

        if is_first || (is_new && !error.is_transient()) {
            tracing::warn!(%error, "changes cannot be read now; retrying until they can");
        } else if is_new {
            tracing::info!(%error, "changes still cannot be read");
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

fn kind(error: &CaptureError) -> Kind {
    let of_primary = match error {
        CaptureError::Primary(error) => Some(discriminant(error)),
        _ => None,
    };
    (discriminant(error), of_primary)
}

/// The moment up to which every commit has been read. None while another process captures.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadUntil(Arc<Mutex<Option<Instant>>>);

impl ReadUntil {
    /// Records that everything committed before `moment` has been read.
    pub fn advance(&self, moment: Instant) {
        let mut known = self.0.lock().expect("no holder of this lock panics");
        *known = Some(known.map_or(moment, |known| known.max(moment)));
    }

    /// Forgets the moment, because another process captures: this one has no lag.
    fn forget(&self) {
        *self.0.lock().expect("no holder of this lock panics") = None;
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

                let known = *known.0.lock().expect("no holder of this lock panics");
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
