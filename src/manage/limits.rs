//! Limits on rate and on concurrency, by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::clock::Clock;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

/// Limits how often something happens, by key.
pub struct RateLimit<K: Eq + Hash + Clone> {
    /// None if the rate is unlimited.
    limiter: Option<DefaultKeyedRateLimiter<K>>,
    checks: AtomicU64,
}

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
            limiter: quota.map(RateLimiter::keyed),
            checks: AtomicU64::new(0),
        }
    }

    /// Allows `burst` checks at once, and one more each minute.
    pub fn one_per_minute(burst: NonZeroU32) -> RateLimit<K> {
        let quota = Quota::per_minute(NonZeroU32::MIN).allow_burst(burst);
        RateLimit {
            limiter: Some(RateLimiter::keyed(quota)),
            checks: AtomicU64::new(0),
        }
    }

    /// Counts one use of the key. The error is the number of seconds to wait.
    pub fn check(&self, key: &K) -> Result<(), u64> {
        let Some(limiter) = &self.limiter else {
            return Ok(());
        };

        if self.checks.fetch_add(1, Ordering::Relaxed) % CHECKS_BETWEEN_SWEEPS
            == CHECKS_BETWEEN_SWEEPS - 1
        {
            limiter.retain_recent();
        }

        limiter.check_key(key).map_err(|refusal| {
            let wait = refusal.wait_time_from(limiter.clock().now());
            wait.as_millis().div_ceil(1_000).max(1) as u64
        })
    }
}

/// Limits how many operations with the same key are in progress. Clones share the counts.
pub struct ConcurrencyLimit<K> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    limit: usize,
}

/// One operation in progress. Dropping it ends the operation.
pub struct Permit<K: Eq + Hash> {
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
    pub fn acquire(&self, key: &K) -> Option<Permit<K>> {
        let mut counts = self.counts.lock();
        let count = counts.entry(key.clone()).or_default();
        if *count == self.limit {
            return None;
        }

        *count += 1;
        Some(Permit {
            counts: self.counts.clone(),
            key: key.clone(),
        })
    }
}

impl<K: Eq + Hash> Drop for Permit<K> {
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

/// Limits the share of the time that operations with the same key take: after one that took long,
/// the next ones wait longer.
pub struct TimeLimit<K>(Arc<Mutex<Times<K>>>);

/// An operation whose time is counted until it is dropped.
pub struct Timed<K: Eq + Hash + Clone> {
    times: Arc<Mutex<Times<K>>>,
    key: K,
    began_at: Instant,
}

impl<K: Eq + Hash + Clone> TimeLimit<K> {
    /// Allows operations to take one part in `parts` of the time, after `at_once` without a limit.
    pub fn new(parts: u32, at_once: Duration) -> TimeLimit<K> {
        TimeLimit(Arc::new(Mutex::new(Times {
            even_at: HashMap::new(),
            parts,
            ahead: at_once * parts,
        })))
    }

    /// Begins an operation. The error is the number of seconds to wait.
    pub fn begin(&self, key: &K) -> Result<Timed<K>, u64> {
        let began_at = Instant::now();
        let wait = self.0.lock().wait(key, began_at);
        match wait.as_millis().div_ceil(1_000) {
            0 => Ok(Timed {
                times: self.0.clone(),
                key: key.clone(),
                began_at,
            }),
            seconds => Err(seconds as u64),
        }
    }
}

impl<K: Eq + Hash + Clone> Drop for Timed<K> {
    fn drop(&mut self) {
        let mut times = self.times.lock();
        times.count(self.key.clone(), self.began_at, Instant::now());
    }
}

/// The times that operations have taken.
struct Times<K> {
    /// When the operations of a key will have taken no more than their share of the time.
    even_at: HashMap<K, Instant>,
    /// The inverse of the share.
    parts: u32,
    /// An operation may begin if `even_at` is at most this far in the future.
    ahead: Duration,
}

impl<K: Eq + Hash> Times<K> {
    /// Returns how long the next operation of the key has to wait.
    fn wait(&mut self, key: &K, now: Instant) -> Duration {
        self.even_at.retain(|_, even_at| *even_at > now);
        self.even_at.get(key).map_or(Duration::ZERO, |at| {
            at.duration_since(now).saturating_sub(self.ahead)
        })
    }

    fn count(&mut self, key: K, began_at: Instant, now: Instant) {
        let even_at = self.even_at.entry(key).or_insert(began_at);
        *even_at = began_at.max(*even_at) + now.duration_since(began_at) * self.parts;
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
        let mut permits: Vec<Permit<Uuid>> =
            (0..4).map(|_| limit.acquire(&busy).unwrap()).collect();

        assert!(limit.acquire(&busy).is_none());
        assert!(limit.acquire(&other).is_some());
        permits.pop();
        assert!(limit.acquire(&busy).is_some());
        drop(permits);
        assert!(limit.counts.lock().is_empty());
    }

    #[test]
    fn operations_take_a_share_of_the_time_of_each_key() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut times = Times {
            even_at: HashMap::new(),
            parts: 10,
            ahead: Duration::from_secs(20),
        };

        for second in 0..3 {
            assert_eq!(times.wait(&"busy", at(second)), Duration::ZERO);
            times.count("busy", at(second), at(second + 1));
        }

        times.count("other", at(2), at(3));

        // 30 s must pass, of which 3 have passed and 20 may be in the future.
        assert_eq!(times.wait(&"busy", at(3)), Duration::from_secs(7));
        assert_eq!(times.wait(&"other", at(3)), Duration::ZERO);
        assert_eq!(times.wait(&"busy", at(10)), Duration::ZERO);
        assert_eq!(times.wait(&"busy", at(30)), Duration::ZERO);
        assert!(times.even_at.is_empty(), "keys are forgotten");
    }
}
