//! One warning a condition: when it begins, not each time it is met.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Something that is wrong until it is seen to be right again. Whoever meets it warns if it begins, and tells its end once.
#[derive(Debug, Default)]
pub struct Condition(AtomicBool);

impl Condition {
    pub const fn new() -> Condition {
        Condition(AtomicBool::new(false))
    }

    /// It is met: whether that is news.
    pub fn begins(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// All is well: whether that is news.
    pub fn ends(&self) -> bool {
        // Mostly it is no news, and then nothing is written.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// A fault whose end nobody sees, such as rows that do not fit: news after a calm, and not again as long as it keeps coming.
#[derive(Debug, Default)]
pub struct Recurring(Mutex<Option<Instant>>);

/// Without the fault for this long, it is over.
const CALM: Duration = Duration::from_secs(600);

impl Recurring {
    pub const fn new() -> Recurring {
        Recurring(Mutex::new(None))
    }

    /// It is met: whether that is news.
    pub fn is_news(&self) -> bool {
        self.is_news_at(Instant::now())
    }

    fn is_news_at(&self, now: Instant) -> bool {
        let mut last = self.0.lock().expect("no holder of this lock panics");
        let before = last.replace(now);
        before.is_none_or(|before| now.saturating_duration_since(before) > CALM)
    }
}

/// Logs at `$level` if this very line has news to tell: see [`Recurring`].
macro_rules! recurring {
    ($level:ident, $($arguments:tt)+) => {{
        static FAULT: $crate::telemetry::Recurring = $crate::telemetry::Recurring::new();
        if FAULT.is_news() {
            tracing::$level!($($arguments)+);
        }
    }};
}
pub(crate) use recurring;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_told_when_it_begins_and_when_it_ends() {
        let condition = Condition::new();
        assert!(!condition.ends());
        assert!(condition.begins());
        assert!(!condition.begins());
        assert!(condition.ends());
        assert!(!condition.ends());
        assert!(condition.begins());
    }

    #[test]
    fn what_keeps_coming_is_news_again_only_after_a_calm() {
        let (fault, start) = (Recurring::new(), Instant::now());
        assert!(fault.is_news_at(start));
        assert!(!fault.is_news_at(start + CALM));
        assert!(!fault.is_news_at(start + CALM * 2));
        assert!(fault.is_news_at(start + CALM * 3 + Duration::from_secs(1)));
    }
}
