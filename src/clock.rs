//! The wall clock, behind a trait so that tests can control it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Returns by how much a server's clock, which was read after `before`, differs from this machine's at
/// least.
pub fn skew(theirs: Timestamp, before: Timestamp) -> SignedDuration {
    let behind = before.duration_since(theirs);
    let ahead = theirs.duration_since(Timestamp::now());
    behind.max(ahead).max(SignedDuration::ZERO)
}

/// A clock for tests, which only [`TestClock::advance`] moves.
#[derive(Debug)]
pub struct TestClock(Mutex<Timestamp>);

impl TestClock {
    pub fn at(now: Timestamp) -> Self {
        TestClock(Mutex::new(now))
    }

    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock();
        *now +=
            SignedDuration::try_from(by).expect("a test moves its clock by less than centuries");
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}
