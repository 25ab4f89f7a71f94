//! Receives batches from capture and merges those that fit into one transaction.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::domain::change::Batch;

/// No further batch joins a transaction that has this many changes, or events of a log.
const MAX_CHANGES: usize = 4_000;

pub(super) struct Batches {
    receiver: mpsc::Receiver<Batch>,
    /// A received batch that does not continue the one before it.
    next: Option<Batch>,
}

impl Batches {
    pub fn new(receiver: mpsc::Receiver<Batch>) -> Batches {
        Batches {
            receiver,
            next: None,
        }
    }

    /// Receives the next batch. Calls `on_idle` if none arrives within `idle`.
    pub async fn receive_or(&mut self, idle: Duration, on_idle: impl FnOnce()) -> Option<Batch> {
        match tokio::time::timeout(idle, self.receive()).await {
            Ok(batch) => batch,
            Err(_) => {
                on_idle();
                self.receive().await
            }
        }
    }

    /// Receives the next batch, merged with the waiting batches that continue it. After a
    /// reconnect, capture sends changes again that are not stored: such a batch does not continue
    /// the one before it, and is not merged with it.
    pub async fn receive(&mut self) -> Option<Batch> {
        let mut batch = match self.next.take() {
            Some(batch) => batch,
            None => self.receiver.recv().await?,
        };

        while batch.size() < MAX_CHANGES {
            let Ok(more) = self.receiver.try_recv() else {
                break;
            };

            if !more.follows(&batch) {
                self.next = Some(more);
                break;
            }

            batch.changes.extend(more.changes);
            batch.derived.extend(more.derived);
            batch.checkpoint = more.checkpoint;
            batch.transaction = more.transaction.or(batch.transaction);
            batch.reader = more.reader;
        }

        Some(batch)
    }
}
