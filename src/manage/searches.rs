//! Limits on requests that examine many rows, per user: filtered pages of delivery logs and of the
//! feed, single events with their deliveries, and counts of what a job would cover.

use std::num::NonZeroU32;

use super::fault::{Fault, Result};
use super::limits::{ConcurrencyLimit, OperationPermit, RateLimit};
use crate::domain::event::UserId;

/// Each examines up to 2,000 entries, which takes the store a few milliseconds: one user can keep
/// it busy for a twentieth of the time.
const PER_SECOND: u32 = 10;
const BURST: u32 = 100;
/// Of the eight connections that all users share.
const MAX_IN_PROGRESS: usize = 2;
/// A count examines up to 50,000 entries, which takes the store up to half a second: one user's take
/// a tenth of the time, after the first ones.
const COUNTS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(12).expect("not zero");
const COUNT_BURST: NonZeroU32 = NonZeroU32::new(100).expect("not zero");
const COUNTS_IN_PROGRESS: usize = 1;

/// An export reads half of the time, on one connection.
const MAX_EXPORTS: usize = 1;
/// In seconds. Most exports take less.
const AFTER_EXPORT: u64 = 10;
/// Each searches once a second.
const MAX_TAILS: usize = 2;

/// The searches of all users.
pub struct Searches {
    rate: RateLimit<UserId>,
    in_progress: ConcurrencyLimit<UserId>,
    counts: RateLimit<UserId>,
    counts_in_progress: ConcurrencyLimit<UserId>,
    exports: ConcurrencyLimit<UserId>,
    tails: ConcurrencyLimit<UserId>,
}

impl Searches {
    pub fn new() -> Searches {
        Searches {
            rate: RateLimit::per_second(PER_SECOND, BURST),
            in_progress: ConcurrencyLimit::new(MAX_IN_PROGRESS),
            counts: RateLimit::per_minute(COUNTS_PER_MINUTE, COUNT_BURST),
            counts_in_progress: ConcurrencyLimit::new(COUNTS_IN_PROGRESS),
            exports: ConcurrencyLimit::new(MAX_EXPORTS),
            tails: ConcurrencyLimit::new(MAX_TAILS),
        }
    }

    /// Counts a search. Fails if the user has made too many in the last seconds.
    pub fn count(&self, user: &UserId) -> Result<()> {
        self.rate.check(user).map_err(too_many_searches)?;
        Ok(())
    }

    /// Counts a search of a delivery log, which lasts until the permit is dropped.
    pub fn begin(&self, user: &UserId) -> Result<OperationPermit<UserId>> {
        let permit = self.in_progress.acquire(user);
        let permit = permit.ok_or(too_many_searches(1))?;
        self.count(user)?;
        Ok(permit)
    }

    /// Begins an export of delivery logs, which lasts until the permit is dropped.
    pub fn begin_export(&self, user: &UserId) -> Result<OperationPermit<UserId>> {
        let what = "another export is in progress";
        let seconds = AFTER_EXPORT;
        self.exports
            .acquire(user)
            .ok_or(Fault::RateLimit { what, seconds })
    }

    /// Begins to follow delivery logs, which lasts until the permit is dropped.
    pub fn begin_tail(&self, user: &UserId) -> Result<OperationPermit<UserId>> {
        self.tails.acquire(user).ok_or(Fault::TooManyStreams)
    }

    /// Begins a count of what a job would cover, which lasts until the permit is dropped.
    pub fn begin_count(&self, user: &UserId) -> Result<OperationPermit<UserId>> {
        let what = "too many recoveries and replays are counted";
        let refused = |seconds| Fault::RateLimit { what, seconds };

        let permit = self.counts_in_progress.acquire(user).ok_or(refused(1))?;
        self.counts.check(user).map_err(refused)?;
        Ok(permit)
    }
}

fn too_many_searches(seconds: u64) -> Fault {
    let what = "too many filtered requests";
    Fault::RateLimit { what, seconds }
}
