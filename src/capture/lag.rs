//! Reports the lag while no changes arrive: the time since the moment up to which every commit has
//! been read.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrics::gauge;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Source;
use crate::telemetry;

const INTERVAL: Duration = Duration::from_secs(1);

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
    pub fn forget(&self) {
        *self.0.lock().expect("no holder of this lock panics") = None;
    }

    /// Reports the lag until the handle is dropped, whenever the moment has not advanced for two
    /// heartbeats, and no lag while another process captures: the last value of this one would
    /// stay.
    pub fn report_lag(&self, source: &Source) -> AbortOnDropHandle<()> {
        let known = self.clone();
        let grace = source.heartbeat.0 * 2 + INTERVAL;

        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut is_late = false;

            loop {
                tokio::time::sleep(INTERVAL).await;
                let age = known
                    .0
                    .lock()
                    .expect("no holder of this lock panics")
                    .map(|known| known.elapsed());
                let lag = age.filter(|age| *age > grace);
                if lag.is_some() || is_late || age.is_none() {
                    gauge!(telemetry::CAPTURE_LAG).set(lag.unwrap_or_default().as_secs_f64());
                }

                is_late = lag.is_some();
            }
        }))
    }
}
