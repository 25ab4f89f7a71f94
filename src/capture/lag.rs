//! Measures the lag while nothing arrives: from the moment up to which every commit is known to have been read.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrics::gauge;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Source;
use crate::telemetry;

const INTERVAL: Duration = Duration::from_secs(1);

/// The moment up to which every commit is known to have been read; nothing while another process captures.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownUntil(Arc<Mutex<Option<Instant>>>);

impl KnownUntil {
    /// Everything committed before `moment` has been read.
    pub fn advance(&self, moment: Instant) {
        let mut known = self.0.lock().expect("no holder of this lock panics");
        *known = Some(known.map_or(moment, |known| known.max(moment)));
    }

    /// Another process captures: nothing is late here.
    pub fn forget(&self) {
        *self.0.lock().expect("no holder of this lock panics") = None;
    }

    /// Shows the lag as long as the handle lives, once there has been no news for longer than two heartbeats.
    pub fn show(&self, source: &Source) -> AbortOnDropHandle<()> {
        let (known, grace) = (self.clone(), source.heartbeat.0 * 2 + INTERVAL);
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut is_late = false;
            loop {
                tokio::time::sleep(INTERVAL).await;
                let age = known.0.lock().expect("no holder of this lock panics").map(|known| known.elapsed());
                let lag = age.filter(|age| *age > grace);
                if lag.is_some() || is_late {
                    gauge!(telemetry::CAPTURE_LAG).set(lag.unwrap_or_default().as_secs_f64());
                }
                is_late = lag.is_some();
            }
        }))
    }
}
