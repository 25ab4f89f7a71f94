//! Limits how often the store is queried, or a signature is verified, for credentials that nobody
//! may have. The rate limit of each credential does not: a client that guesses sends another one
//! with each request. While it does, the first requests of valid credentials share this limit with
//! it: `docs/install.md` describes the effect.

use std::collections::HashSet;
use std::hash::Hash;

use parking_lot::Mutex;

use crate::config;
use crate::manage::limits::RateLimit;

/// Credentials that are not known to be valid are looked up this many times as often as one of them
/// may be. After a restart, none is known.
const UNKNOWN: u32 = 10;

/// The credentials that were valid when they were last looked up.
pub struct Known<K> {
    valid: Mutex<HashSet<K>>,
    capacity: usize,
    /// Counts the lookups of all others together.
    unknown: RateLimit<()>,
}

impl<K: Eq + Hash> Known<K> {
    /// Remembers up to `capacity` credentials.
    pub fn new(limits: &config::Limits, capacity: usize) -> Known<K> {
        let rate = limits.requests_per_second.saturating_mul(UNKNOWN);
        let burst = limits.burst.saturating_mul(UNKNOWN);
        Known {
            valid: Mutex::default(),
            capacity,
            unknown: RateLimit::per_second(rate, burst),
        }
    }

    /// Counts a lookup. The error is the number of seconds to wait.
    pub fn check(&self, credential: &K) -> Result<(), u64> {
        let is_known = self.valid.lock().contains(credential);
        if is_known {
            Ok(())
        } else {
            self.unknown.check(&())
        }
    }

    /// Records the result of a lookup.
    pub fn record(&self, credential: K, is_valid: bool) {
        let mut valid = self.valid.lock();

        if !is_valid {
            valid.remove(&credential);
            return;
        }

        // Those in use soon are known again.
        if valid.len() >= self.capacity && !valid.contains(&credential) {
            valid.clear();
        }

        valid.insert(credential);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn only_lookups_of_unknown_credentials_are_limited() {
        let unknown = RateLimit::per_minute(NonZeroU32::MIN, NonZeroU32::new(11).unwrap());
        let known = Known {
            valid: Mutex::default(),
            capacity: 2,
            unknown,
        };

        known.record(0, true);
        let refused = (1..100).find(|guess| known.check(guess).is_err());

        assert_eq!(refused, Some(12));
        assert_eq!(known.check(&0), Ok(()));
        known.record(0, false);
        assert!(known.check(&0).is_err(), "revoked");

        for valid in 1..=3 {
            known.record(valid, true);
            assert_eq!(known.check(&valid), Ok(()));
            assert!(known.valid.lock().len() <= 2);
        }
    }
}
