//! Faults that are logged once when they begin, not on every occurrence: [`Activity`] if their end
//! can be observed, otherwise [`recurring!`].

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Work that is retried until it succeeds: one warning when it starts to fail, one line when it
/// succeeds again.
#[derive(Debug)]
pub struct Activity {
    /// The start of the log lines, such as "claiming deliveries".
    name: &'static str,
    is_failing: AtomicBool,
}

impl Activity {
    pub const fn new(name: &'static str) -> Activity {
        Activity {
            name,
            is_failing: AtomicBool::new(false),
        }
    }

    /// Logs the error, unless the previous try had failed too.
    pub fn failed(&self, error: &impl Display) {
        if self.starts_failing() {
            tracing::warn!(%error, "{} fails; retrying until it succeeds", self.name);
        }
    }

    /// Logs the recovery, if the previous try had failed.
    pub fn succeeded(&self) {
        if self.stops_failing() {
            tracing::info!("{} works again", self.name);
        }
    }

    /// Like [`Activity::failed`], for callers that log the warning themselves if this returns true.
    pub fn starts_failing(&self) -> bool {
        !self.is_failing.swap(true, Ordering::Relaxed)
    }

    /// Like [`Activity::succeeded`], for callers that log the recovery themselves if this returns
    /// true.
    pub fn stops_failing(&self) -> bool {
        // Loaded first: a store would take the cache line from other threads after every success.
        self.is_failing.load(Ordering::Relaxed) && self.is_failing.swap(false, Ordering::Relaxed)
    }
}

/// A fault whose end cannot be observed, such as rows of an unexpected form. It counts as over
/// after `QUIET_PERIOD`.
#[derive(Debug, Default)]
pub struct Recurring(Mutex<Option<Instant>>);

/// How long a fault must not occur before it is logged again.
const QUIET_PERIOD: Duration = Duration::from_secs(600);

impl Recurring {
    pub const fn new() -> Recurring {
        Recurring(Mutex::new(None))
    }

    /// Records an occurrence of the fault. Returns true if it must be logged: the first time, and
    /// after `QUIET_PERIOD` without one.
    pub fn must_log(&self) -> bool {
        self.must_log_at(Instant::now())
    }

    fn must_log_at(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let before = last.replace(now);
        before.is_none_or(|before| now.saturating_duration_since(before) > QUIET_PERIOD)
    }
}

/// Logs at `$level`, but only once while the fault at this place in the code keeps occurring: see
/// [`Recurring`].
macro_rules! recurring {
    ($level:ident, $($arguments:tt)+) => {{
        static FAULT: $crate::telemetry::Recurring = $crate::telemetry::Recurring::new();
        if FAULT.must_log() {
            tracing::$level!($($arguments)+);
        }
    }};
}
pub(crate) use recurring;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activity_is_reported_when_it_starts_to_fail_and_when_it_succeeds_again() {
        let activity = Activity::new("testing");
        assert!(!activity.stops_failing());
        assert!(activity.starts_failing());
        assert!(!activity.starts_failing());
        assert!(activity.stops_failing());
        assert!(!activity.stops_failing());
        assert!(activity.starts_failing());
    }

    #[test]
    fn a_recurring_fault_is_reported_again_only_after_a_quiet_period() {
        let fault = Recurring::new();
        let start = Instant::now();

        assert!(fault.must_log_at(start));
        assert!(!fault.must_log_at(start + QUIET_PERIOD));
        assert!(!fault.must_log_at(start + QUIET_PERIOD * 2));
        assert!(fault.must_log_at(start + QUIET_PERIOD * 3 + Duration::from_secs(1)));
    }
}
