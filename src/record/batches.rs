//! Collects finished attempts into batches. A batch also contains earlier attempts that matched no
//! delivery and are due for another try.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::decided::Decided;
use super::unmatched::Unmatched;
use crate::domain::delivery::{Answer, Attempted};

/// The most attempts in one transaction.
pub const MAX_BATCH: usize = 512;
/// The most unmatched attempts in one batch. The rest of the batch stays free for new attempts,
/// which must not wait for them.
const MAX_RETRIED: usize = 128;
/// How long a batch is collected: a transaction that records several attempts costs little more
/// than one that records a single attempt.
const COLLECTION_TIME: Duration = Duration::from_millis(25);

fn may_end_wait(attempted: &Attempted) -> bool {
    attempted.delivery.order_key.is_some()
        && matches!(attempted.attempt.answer, Answer::Accepted { .. })
}

/// What a batch contains, and when it is complete. No I/O.
pub struct Batching {
    unmatched: Unmatched<Decided>,
    /// Whether there will be no new attempts. Then all transactions that handed off deliveries have
    /// ended, so each unmatched attempt is tried once more and not kept again.
    is_last_try: bool,
}

impl Default for Batching {
    fn default() -> Batching {
        Batching {
            unmatched: Unmatched::new(),
            is_last_try: false,
        }
    }
}

impl Batching {
    fn retried(&self) -> usize {
        MAX_RETRIED.min(self.unmatched.len())
    }

    /// Returns how many new attempts the next batch may contain.
    pub fn capacity(&self) -> usize {
        MAX_BATCH - self.retried()
    }

    /// Returns when to make a batch even if there is no new attempt.
    pub fn next_retry_at(&self) -> Option<Instant> {
        self.unmatched.next_retry_at()
    }

    /// Returns how long to wait for more attempts after these. `None` if they are recorded at once.
    pub fn collection_time(&self, fresh: &[Attempted]) -> Option<Duration> {
        // Others may wait for the end of a delivery with an order key.
        let is_urgent = fresh.len() >= self.capacity() || fresh.iter().any(may_end_wait);
        (!is_urgent).then_some(COLLECTION_TIME)
    }

    /// Takes the unmatched attempts of the next batch.
    pub fn take_due(&mut self, now: Instant) -> Vec<Decided> {
        self.unmatched.take_due(now, self.retried())
    }

    /// Takes the unmatched attempts of the last batches.
    fn take_last(&mut self) -> Vec<Decided> {
        self.is_last_try = true;
        self.unmatched.take(MAX_BATCH)
    }

    /// Keeps the attempts of a batch that matched no delivery, if the transaction that stores the
    /// delivery may still commit.
    pub fn keep_unmatched(&mut self, batch: Vec<Decided>, settled: Vec<bool>, now: Instant) {
        let unsettled = batch
            .into_iter()
            .zip(settled)
            .filter(|(_, settled)| !settled)
            .map(|(decided, _)| decided);
        for decided in unsettled.filter(|decided| !self.is_last_try && decided.may_be_uncommitted())
        {
            let since = decided.arrived_at;
            let lease_ends_at = decided.attempted.delivery.lease.until;
            self.unmatched.keep(decided, since, lease_ends_at, now);
        }
    }
}

/// The attempts to record, batch by batch: new ones, and unmatched ones.
pub struct Batches {
    attempted: mpsc::Receiver<Attempted>,
    batching: Batching,
}

impl Batches {
    pub fn new(attempted: mpsc::Receiver<Attempted>) -> Batches {
        Batches {
            attempted,
            batching: Batching::default(),
        }
    }

    /// Waits for the next batch and returns its new and its unmatched attempts. Returns `None`
    /// after the last batch.
    pub async fn next(&mut self) -> Option<(Vec<Attempted>, Vec<Decided>)> {
        let mut fresh = Vec::new();
        let capacity = self.batching.capacity();
        let retry_at = self.batching.next_retry_at();
        let retry = async {
            match retry_at {
                Some(retry_at) => tokio::time::sleep_until(retry_at.into()).await,
                None => std::future::pending().await,
            }
        };

        tokio::select! {
            count = self.attempted.recv_many(&mut fresh, capacity) => if count == 0 {
                let last = self.batching.take_last();
                return (!last.is_empty()).then_some((fresh, last));
            },
            () = retry => {}
        }

        if let Some(time) = self.batching.collection_time(&fresh) {
            tokio::time::sleep(time).await;
        }

        let missing = capacity.saturating_sub(fresh.len());
        fresh.extend(std::iter::from_fn(|| self.attempted.try_recv().ok()).take(missing));

        Some((fresh, self.batching.take_due(Instant::now())))
    }

    /// Keeps the attempts of a batch that are not settled.
    pub fn keep_unmatched(&mut self, batch: Vec<Decided>, settled: Vec<bool>) {
        self.batching.keep_unmatched(batch, settled, Instant::now());
    }

    /// Returns how many attempts are not recorded yet, without the current batch.
    pub fn count(&self) -> usize {
        self.batching.unmatched.len() + self.attempted.len()
    }
}
