//! How long a stream may be silent before it counts as dead.
//!
//! The primary answers each acknowledgement, but not while it decodes: a long transaction whose
//! changes are not captured can keep it silent for minutes. A new stream starts before the same
//! transaction, so an unchanged limit would end every stream at that point.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::config::Source;
use crate::domain::lsn::Lsn;

/// The shortest limit. A connection that died unnoticed is replaced after this time.
const SHORTEST: Duration = Duration::from_secs(60);
/// The longest limit, unless the setting makes the first one longer.
const LONGEST: Duration = Duration::from_secs(1_800);

/// The limit for the streams of this process. Doubles after each stream that was silent for too
/// long and got no further than those before it.
pub(super) struct SilenceLimit {
    first: Duration,
    doublings: AtomicU32,
    /// The furthest LSN that a stream has received.
    reached: AtomicU64,
}

impl SilenceLimit {
    pub fn new(source: &Source) -> SilenceLimit {
        let first = (source.heartbeat.0 * 6).max(SHORTEST);
        SilenceLimit {
            first,
            doublings: AtomicU32::new(0),
            reached: AtomicU64::new(0),
        }
    }

    /// Returns the limit of streams before which none was silent.
    pub fn first(&self) -> Duration {
        self.first
    }

    pub fn current(&self) -> Duration {
        let factor = 2_u32.saturating_pow(self.doublings.load(Ordering::Relaxed));
        self.first
            .saturating_mul(factor)
            .min(LONGEST.max(self.first))
    }

    /// Records how far a stream has received.
    pub fn received(&self, lsn: Lsn) {
        if self.reached.fetch_max(lsn.0, Ordering::Relaxed) < lsn.0 {
            self.doublings.store(0, Ordering::Relaxed);
        }
    }

    /// Records that a stream was silent for longer than the limit.
    pub fn exceeded(&self) {
        self.doublings.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(limit: &SilenceLimit) -> u64 {
        limit.current().as_secs() / 60
    }

    #[test]
    fn the_limit_doubles_until_a_stream_gets_further() {
        let limit = SilenceLimit::new(&Source::default());
        limit.received(Lsn(10));

        let limits: Vec<u64> = (0..40)
            .map(|_| {
                let now = minutes(&limit);

                // A new stream starts at an earlier LSN, and gets as far as the one before.
                limit.received(Lsn(5));
                limit.received(Lsn(10));
                limit.exceeded();

                now
            })
            .collect();

        assert_eq!(limits[..6], [1, 2, 4, 8, 16, 30]);
        assert_eq!(limits[39], 30);
        limit.received(Lsn(11));
        assert_eq!(minutes(&limit), 1);
    }
}
