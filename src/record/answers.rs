//! Collects attempts into batches, together with earlier ones that are to be tried again.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::decided::Decided;
use super::unmatched::Unmatched;
use crate::domain::delivery::Attempted;

/// The most attempts in one transaction.
pub const MAX_BATCH: usize = 512;
/// The most of these that the store has not matched before, so that they do not delay the others.
const MAX_RETRIED: usize = 128;
/// How long a batch is collected: a transaction of a few attempts costs little more than one of a single attempt.
const COLLECTION_TIME: Duration = Duration::from_millis(25);

/// Attempts to record: new ones, and those that the store has not matched yet.
pub struct Answers {
    attempted: mpsc::Receiver<Attempted>,
    unmatched: Unmatched<Decided>,
    /// The channel is closed, and all transactions that handed off deliveries have ended.
    is_last_try: bool,
}

impl Answers {
    pub fn new(attempted: mpsc::Receiver<Attempted>) -> Answers {
        Answers { attempted, unmatched: Unmatched::new(), is_last_try: false }
    }

    /// Waits for the next batch: new attempts, and unmatched ones to try again. Returns `None` when there will be no more.
    pub async fn next(&mut self) -> Option<(Vec<Attempted>, Vec<Decided>)> {
        let retried = MAX_RETRIED.min(self.unmatched.len());
        let mut fresh = Vec::new();
        let retry_at = self.unmatched.next_retry_at();
        let retry = async {
            match retry_at {
                Some(retry_at) => tokio::time::sleep_until(retry_at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            count = self.attempted.recv_many(&mut fresh, MAX_BATCH - retried) => if count == 0 {
                self.is_last_try = true;
                let last = self.unmatched.take(MAX_BATCH);
                return (!last.is_empty()).then_some((fresh, last));
            },
            () = retry => {}
        }
        let missing = (MAX_BATCH - retried).saturating_sub(fresh.len());
        if missing > 0 {
            tokio::time::sleep(COLLECTION_TIME).await;
            fresh.extend(std::iter::from_fn(|| self.attempted.try_recv().ok()).take(missing));
        }
        Some((fresh, self.unmatched.take_due(Instant::now(), retried)))
    }

    /// Keeps attempts whose deliveries the store does not know, if they may still be committed.
    pub fn keep_unmatched(&mut self, attempts: impl Iterator<Item = Decided>) {
        let now = Instant::now();
        for decided in attempts.filter(|decided| !self.is_last_try && decided.may_be_uncommitted()) {
            let (since, lease_ends_at) = (decided.arrived_at, decided.attempted.delivery.lease.until);
            self.unmatched.keep(decided, since, lease_ends_at, now);
        }
    }

    pub fn count(&self) -> usize {
        self.unmatched.len() + self.attempted.len()
    }
}
