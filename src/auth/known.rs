//! Limits how often the store is queried, or a signature is verified, for credentials that nobody
//! may have. The rate limit of each credential does not: a client that guesses sends another one
//! with each request. While it does, the first requests of valid credentials share this limit with
//! it: `docs/install.md` describes the effect.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::config;
use crate::domain::event::UserId;
use crate::manage::limits::RateLimit;

/// The hash of an API token, a token of the platform or a session's id.
pub type Credential = [u8; 32];

/// Credentials that are not known to be valid are looked up this many times as often as one of them
/// may be. After a restart, none is known.
const UNKNOWN: u32 = 10;

/// The credentials that were valid when they were last looked up, with their users.
pub struct Known {
    valid: Mutex<HashMap<Credential, UserId>>,
    capacity: usize,
    /// Counts the lookups of all others together.
    unknown: RateLimit<()>,
}

impl Known {
    /// Remembers up to `capacity` credentials.
    pub fn new(limits: &config::Limits, capacity: usize) -> Known {
        let rate = limits.requests_per_second.saturating_mul(UNKNOWN);
        let burst = limits.burst.saturating_mul(UNKNOWN);
        Known {
            valid: Mutex::default(),
            capacity,
            unknown: RateLimit::per_second(rate, burst),
        }
    }

    /// Returns the user of a credential that was valid.
    pub fn user(&self, credential: &Credential) -> Option<UserId> {
        self.valid.lock().get(credential).cloned()
    }

    /// Counts a lookup of a credential that is not known to be valid. The error is the number of
    /// seconds to wait.
    pub fn count_unknown(&self) -> Result<(), u64> {
        self.unknown.check(&()).map(drop)
    }

    /// Records the user of a credential. None if it is not valid.
    pub fn record(&self, credential: Credential, user: Option<&UserId>) {
        let mut valid = self.valid.lock();
        let Some(user) = user else {
            valid.remove(&credential);
            return;
        };

        // Those in use soon are known again.
        if valid.len() >= self.capacity && !valid.contains_key(&credential) {
            valid.clear();
        }

        valid.insert(credential, user.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn a_limited_number_of_valid_credentials_is_remembered() {
        let known = Known {
            valid: Mutex::default(),
            capacity: 2,
            unknown: RateLimit::per_minute(NonZeroU32::MIN, NonZeroU32::MIN),
        };
        let user = UserId("1".into());

        for valid in 1..=3 {
            known.record([valid; 32], Some(&user));
            assert_eq!(known.user(&[valid; 32]), Some(user.clone()));
            assert!(known.valid.lock().len() <= 2);
        }

        known.record([3; 32], None);
        assert_eq!(known.user(&[3; 32]), None, "revoked");
        assert_eq!(known.count_unknown(), Ok(()));
        assert!(known.count_unknown().is_err());
    }
}
