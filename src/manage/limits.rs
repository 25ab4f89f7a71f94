//! Limits on rate and on concurrency, by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;

/// Limits how often something happens, by key.
pub struct RateLimit<K: Eq + Hash + Clone> {
    /// None if the rate is unlimited.
    limiter: Option<Limiter<K>>,
    checks: AtomicU64,
}

type Limiter<K> =
    RateLimiter<K, DefaultKeyedStateStore<K>, DefaultClock, StateInformationMiddleware>;

/// Keys that were not used for a while are removed after this many checks, which bounds the memory
/// that they take.
const CHECKS_BETWEEN_SWEEPS: u64 = 10_000;

impl<K: Eq + Hash + Clone> RateLimit<K> {
    /// Allows `rate` checks a second, and `burst` at once. A rate of zero means no limit.
    pub fn per_second(rate: u32, burst: u32) -> RateLimit<K> {
        let quota = NonZeroU32::new(rate).map(|rate| {
            let quota = Quota::per_second(rate);
            NonZeroU32::new(burst).map_or(quota, |burst| quota.allow_burst(burst))
        });

        RateLimit {
            limiter: quota.map(limiter),
            checks: AtomicU64::new(0),
        }
    }

    /// Allows `burst` checks at once, and `rate` more each minute.
    pub fn per_minute(rate: NonZeroU32, burst: NonZeroU32) -> RateLimit<K> {
        let quota = Quota::per_minute(rate).allow_burst(burst);
        RateLimit {
            limiter: Some(limiter(quota)),
            checks: AtomicU64::new(0),
        }
    }

    /// Counts one use of the key, and returns how many more are allowed at once. The error is the
    /// number of seconds to wait.
    pub fn check(&self, key: &K) -> Result<u32, u64> {
        let Some(limiter) = &self.limiter else {
            return Ok(u32::MAX);
        };

        if self.checks.fetch_add(1, Ordering::Relaxed) % CHECKS_BETWEEN_SWEEPS
            == CHECKS_BETWEEN_SWEEPS - 1
        {
            limiter.retain_recent();
        }

        let checked = limiter.check_key(key).map_err(|refusal| {
            let wait = refusal.wait_time_from(limiter.clock().now());
            wait.as_millis().div_ceil(1_000).max(1) as u64
        });
        checked.map(|state| state.remaining_burst_capacity())
    }
}

fn limiter<K: Eq + Hash + Clone>(quota: Quota) -> Limiter<K> {
    RateLimiter::keyed(quota).with_middleware()
}

/// Limits how many operations with the same key are in progress. Clones share the counts.
pub struct ConcurrencyLimit<K> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    limit: usize,
}

/// One operation in progress. Dropping it ends the operation.
pub struct OperationPermit<K: Eq + Hash> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> ConcurrencyLimit<K> {
    pub fn new(limit: usize) -> ConcurrencyLimit<K> {
        ConcurrencyLimit {
            counts: Arc::default(),
            limit,
        }
    }

    /// Returns a permit, or None if as many operations with this key are in progress as allowed.
    pub fn acquire(&self, key: &K) -> Option<OperationPermit<K>> {
        let mut counts = self.counts.lock();
        let count = counts.entry(key.clone()).or_default();
        if *count == self.limit {
            return None;
        }

        *count += 1;
        Some(OperationPermit {
            counts: self.counts.clone(),
            key: key.clone(),
        })
    }
}

impl<K: Eq + Hash> Drop for OperationPermit<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;

            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn each_key_has_its_own_limit_and_unused_keys_are_forgotten() {
        let limit = ConcurrencyLimit::new(4);
        let busy = Uuid::from_u128(1);
        let other = Uuid::from_u128(2);
        let mut permits: Vec<OperationPermit<Uuid>> =
            (0..4).map(|_| limit.acquire(&busy).unwrap()).collect();

        assert!(limit.acquire(&busy).is_none());
        assert!(limit.acquire(&other).is_some());
        permits.pop();
        assert!(limit.acquire(&busy).is_some());
        drop(permits);
        assert!(limit.counts.lock().is_empty());
    }
}
