//! The wall clock, behind a trait so that tests can control it.

use std::time::Duration;

use jiff::Timestamp;
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

/// A clock for tests, which only [`TestClock::advance`] moves.
#[derive(Debug)]
pub struct TestClock(Mutex<Timestamp>);

impl TestClock {
    pub fn at(now: Timestamp) -> Self {
        TestClock(Mutex::new(now))
    }

    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock();
        *now += jiff::SignedDuration::try_from(by)
            .expect("a test moves its clock by less than centuries");
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}
