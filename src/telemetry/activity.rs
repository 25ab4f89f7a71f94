//! Faults that are logged once when they begin, not on every occurrence: [`Activity`] if their end
//! can be observed, otherwise [`recurring!`].

use std::collections::BTreeMap;
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
/// after `QUIET_PERIOD`. What it concerns, such as a cause or a value, is logged each by itself.
#[derive(Debug, Default)]
pub struct Recurring(Mutex<BTreeMap<String, Instant>>);

/// How long a fault must not occur before it is logged again.
const QUIET_PERIOD: Duration = Duration::from_secs(600);
/// Of how much that a fault concerns at the same time is logged.
const MAX_SUBJECTS: usize = 100;

impl Recurring {
    pub const fn new() -> Recurring {
        Recurring(Mutex::new(BTreeMap::new()))
    }

    /// Records an occurrence of the fault that concerns `subject`. Returns true if it must be
    /// logged: the first time, and after `QUIET_PERIOD` without one.
    pub fn must_log(&self, subject: &str) -> bool {
        self.must_log_at(subject, Instant::now())
    }

    fn must_log_at(&self, subject: &str, now: Instant) -> bool {
        let mut last = self.0.lock();
        last.retain(|_, last| now.saturating_duration_since(*last) <= QUIET_PERIOD);

        if let Some(last) = last.get_mut(subject) {
            *last = now;
            return false;
        }

        let is_logged = last.len() < MAX_SUBJECTS;
        if is_logged {
            last.insert(subject.to_owned(), now);
        }

        is_logged
    }
}

/// Logs at `$level`, but only once while the fault at this place in the code keeps occurring, or
/// `of` each subject: see [`Recurring`].
macro_rules! recurring {
    ($level:ident, of $subject:expr, $($arguments:tt)+) => {{
        static FAULT: $crate::telemetry::Recurring = $crate::telemetry::Recurring::new();
        if FAULT.must_log(&$subject) {
            tracing::$level!($($arguments)+);
        }
    }};
    ($level:ident, $($arguments:tt)+) => {
        $crate::telemetry::recurring!($level, of "", $($arguments)+)
    };
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

        assert!(fault.must_log_at("a", start));
        assert!(!fault.must_log_at("a", start + QUIET_PERIOD));
        assert!(!fault.must_log_at("a", start + QUIET_PERIOD * 2));

        let later = start + QUIET_PERIOD * 3 + Duration::from_secs(1);
        assert!(fault.must_log_at("a", later));

        // Any number of subjects does not fill the log.
        let subjects = (0..1_000).map(|number| number.to_string());
        let logged = subjects.filter(|subject| fault.must_log_at(subject, later));
        assert_eq!(logged.count(), MAX_SUBJECTS - 1);
        assert!(!fault.must_log_at("0", later + QUIET_PERIOD));
    }
}
