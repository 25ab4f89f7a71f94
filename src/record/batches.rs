//! Collects finished attempts into batches. A batch also contains earlier attempts that matched no delivery and are due for another
//! try.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::decided::Decided;
use super::unmatched::Unmatched;
use crate::domain::delivery::{Answer, Attempted};

/// The most attempts in one transaction.
pub const MAX_BATCH: usize = 512;
/// The most unmatched attempts in one batch. The rest of the batch stays free for new attempts, which must not wait for them.
const MAX_RETRIED: usize = 128;
/// How long a batch is collected: a transaction that records several attempts costs little more than one that records a single attempt.
const COLLECTION_TIME: Duration = Duration::from_millis(25);

fn may_end_wait(attempted: &Attempted) -> bool {
    attempted.delivery.order_key.is_some() && matches!(attempted.attempt.answer, Answer::Accepted { .. })
}

/// The attempts to record, batch by batch: new ones, and unmatched ones.
pub struct Batches {
    attempted: mpsc::Receiver<Attempted>,
    unmatched: Unmatched<Decided>,
    /// Whether the channel is closed. Then all transactions that handed off deliveries have ended, so each unmatched attempt is tried
    /// once more and not kept again.
    is_last_try: bool,
}

impl Batches {
    pub fn new(attempted: mpsc::Receiver<Attempted>) -> Batches {
        Batches { attempted, unmatched: Unmatched::new(), is_last_try: false }
    }

    /// Waits for the next batch and returns its new and its unmatched attempts. Returns `None` after the last batch.
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
            // Others may wait for the end of a delivery with an order key, so it is recorded at once.
            if !fresh.iter().any(may_end_wait) {
                tokio::time::sleep(COLLECTION_TIME).await;
            }
            fresh.extend(std::iter::from_fn(|| self.attempted.try_recv().ok()).take(missing));
        }
        Some((fresh, self.unmatched.take_due(Instant::now(), retried)))
    }

    /// Keeps attempts that matched no delivery, if the transaction that stores the delivery may still commit.
    pub fn keep_unmatched(&mut self, attempts: impl Iterator<Item = Decided>) {
        let now = Instant::now();
        for decided in attempts.filter(|decided| !self.is_last_try && decided.may_be_uncommitted()) {
            let (since, lease_ends_at) = (decided.arrived_at, decided.attempted.delivery.lease.until);
            self.unmatched.keep(decided, since, lease_ends_at, now);
        }
    }

    /// Returns how many attempts are not recorded yet, without the current batch.
    pub fn count(&self) -> usize {
        self.unmatched.len() + self.attempted.len()
    }
}
