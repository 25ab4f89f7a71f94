//! Conditions that are logged once when they begin, not on every occurrence.

use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A fault whose end can be observed: it begins, occurs any number of times, and ends.
#[derive(Debug, Default)]
pub struct Condition(AtomicBool);

impl Condition {
    pub const fn new() -> Condition {
        Condition(AtomicBool::new(false))
    }

    /// Records an occurrence of the fault. Returns true for the first one.
    pub fn begins(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Records that the fault is over. Returns true if it was met before.
    pub fn ends(&self) -> bool {
        // Loaded first: a store would take the cache line from other threads after every success.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// Work that is retried until it succeeds: one warning when it starts to fail, one line when it
/// succeeds again.
#[derive(Debug)]
pub struct Activity {
    /// The start of the log lines, such as "claiming deliveries".
    name: &'static str,
    failing: Condition,
}

impl Activity {
    pub const fn new(name: &'static str) -> Activity {
        Activity {
            name,
            failing: Condition::new(),
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
        if self.failing.ends() {
            tracing::info!("{} works again", self.name);
        }
    }

    /// Like [`Activity::failed`], for callers that log the warning themselves if this returns true.
    pub fn starts_failing(&self) -> bool {
        self.failing.begins()
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
        let mut last = self.0.lock().expect("no holder of this lock panics");
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
    fn a_condition_is_reported_when_it_begins_and_when_it_ends() {
        let condition = Condition::new();
        assert!(!condition.ends());
        assert!(condition.begins());
        assert!(!condition.begins());
        assert!(condition.ends());
        assert!(!condition.ends());
        assert!(condition.begins());
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
