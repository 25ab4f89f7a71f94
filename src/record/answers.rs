//! Collects attempts into batches, and holds back those whose deliveries are not committed yet.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::domain::delivery::Attempted;
use crate::handoff::Commits;

/// The most attempts in one transaction.
pub const MAX_BATCH: usize = 512;
/// How long a batch is collected: a transaction of a few attempts costs little more than one of a single attempt.
const COLLECTION_TIME: Duration = Duration::from_millis(25);

/// Attempts that have ended and are not recorded.
pub struct Answers {
    attempted: mpsc::Receiver<Attempted>,
    commits: Commits,
    /// Attempts whose delivery is still being committed. They share the lease of one transaction, which bounds their number.
    early: Vec<Attempted>,
    ready: Vec<Attempted>,
}

impl Answers {
    pub fn new(attempted: mpsc::Receiver<Attempted>, commits: Commits) -> Answers {
        Answers { attempted, commits, early: Vec::new(), ready: Vec::new() }
    }

    /// The next batch to record. Returns `None` when the channel is closed and everything was returned.
    pub async fn next(&mut self) -> Option<Vec<Attempted>> {
        loop {
            if self.ready.is_empty() && !self.collect().await {
                return None;
            }
            let missing = MAX_BATCH.saturating_sub(self.ready.len());
            self.ready.extend(std::iter::from_fn(|| self.attempted.try_recv().ok()).take(missing));
            let committing = self.commits.under_way();
            let answers = self.early.drain(..).chain(self.ready.drain(..));
            (self.early, self.ready) = answers.partition(|answer| committing == Some(answer.delivery.lease.token));
            if !self.ready.is_empty() {
                let rest = self.ready.split_off(self.ready.len().min(MAX_BATCH));
                return Some(std::mem::replace(&mut self.ready, rest));
            }
        }
    }

    /// Waits for attempts, or for the commit that early attempts wait for. Returns false if neither will come.
    async fn collect(&mut self) -> bool {
        tokio::select! {
            count = self.attempted.recv_many(&mut self.ready, MAX_BATCH) => match count {
                0 if self.early.is_empty() => return false,
                0 => self.commits.change().await,
                _ => {}
            },
            () = self.commits.change(), if !self.early.is_empty() => {}
        }
        if self.ready.len() < MAX_BATCH {
            tokio::time::sleep(COLLECTION_TIME).await;
        }
        true
    }

    pub fn count(&self) -> usize {
        self.early.len() + self.ready.len() + self.attempted.len()
    }
}
