//! The capture stage with a consumer in place of the enqueue stage, which stores only checkpoints.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use walhook::capture::{self, CaptureError, Origin};
use walhook::config::{Period, Source};
use walhook::domain::change::{Batch, Change};
use walhook::domain::position::Checkpoint;
use walhook::store::Store;
use walhook::store::checkpoint::advance_checkpoint;
use walhook::telemetry::health::Health;

use crate::support::{DEADLINE, TestApp};

pub fn source(app: &TestApp) -> Source {
    Source {
        slot: app.name.clone(),
        publication: app.name.clone(),
        heartbeat: Period(Duration::from_millis(200)),
        ..Source::default()
    }
}

pub struct Stage {
    batches: mpsc::Receiver<Batch>,
    durable: watch::Sender<Option<Checkpoint>>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), CaptureError>>,
    store: Store,
    slot: String,
    /// Read with the first batch: another process may have stored changes before.
    checkpoint: Option<Checkpoint>,
}

impl Stage {
    pub async fn start(app: &TestApp) -> Stage {
        Stage::start_with_url(app, &app.source_url).await
    }

    /// Starts capture over `url`.
    pub async fn start_with_url(app: &TestApp, url: &str) -> Stage {
        let store = Store::open(&app.store_url, 2).unwrap();
        let stores = store.clone();
        let (sender, batches) = mpsc::channel(1);
        let (durable, acknowledge) = watch::channel(None);
        let shutdown = CancellationToken::new();
        let source = source(app);
        let url = url.to_owned();
        let token = shutdown.clone();
        let health = Health::default();
        let run = async move {
            capture::run(
                &source,
                Origin::whole(&url),
                stores,
                health,
                sender,
                acknowledge,
                token,
            )
            .await
        };

        let task = tokio::spawn(run);
        Stage {
            batches,
            durable,
            shutdown,
            task,
            store,
            slot: app.name.clone(),
            checkpoint: None,
        }
    }

    /// Receives the next batch without storing it.
    pub async fn receive(&mut self) -> Batch {
        let received = tokio::time::timeout(DEADLINE, self.batches.recv())
            .await
            .expect("a batch in time");
        received.expect("capture continues")
    }

    async fn known(&mut self) -> Checkpoint {
        match self.checkpoint.clone() {
            Some(checkpoint) => checkpoint,
            None => self
                .store
                .checkpoint(&self.slot)
                .await
                .unwrap()
                .expect("setup stored the first checkpoint"),
        }
    }

    /// Stores the checkpoint of a batch and returns the changes that are new.
    pub async fn store(&mut self, batch: Batch) -> Vec<Change> {
        let checkpoint = batch.checkpoint;
        let known = self.known().await;
        let is_stored = known.progress.has_reached(&checkpoint.progress);
        if !is_stored {
            // The stored timeline is the expected one, also after a failover.
            let stored = self
                .store
                .checkpoint(&self.slot)
                .await
                .unwrap()
                .expect("setup stored the first checkpoint");

            let connection = self.store.connection().await.unwrap();
            assert!(
                advance_checkpoint(&*connection, &self.slot, &stored, &checkpoint, None)
                    .await
                    .unwrap()
            );
        }

        let progress = known.progress.clone();
        self.checkpoint = Some(if is_stored { known } else { checkpoint.clone() });
        self.durable.send_replace(Some(checkpoint));

        batch
            .changes
            .into_iter()
            .filter(|change| !progress.includes(&change.position))
            .collect()
    }

    /// Receives and stores batches, and returns their `count` changes that were not stored before.
    pub async fn changes(&mut self, count: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        while changes.len() < count {
            let batch = self.receive().await;
            changes.extend(self.store(batch).await);
        }

        assert_eq!(changes.len(), count, "{changes:?}");
        changes
    }

    /// Stores batches until one has ordinals beyond `known`, and returns those.
    pub async fn changes_until_past(&mut self, known: u64) -> Vec<u64> {
        loop {
            let batch = self.receive().await;
            let ordinals: Vec<u64> = batch
                .changes
                .iter()
                .map(|change| change.position.ordinal())
                .collect();
            self.store(batch).await;

            if ordinals.last().is_some_and(|last| *last > known) {
                return ordinals
                    .into_iter()
                    .filter(|ordinal| *ordinal > known)
                    .collect();
            }
        }
    }

    /// Receives batches without changes while `work` runs: the end of a transaction may arrive in
    /// its own batch.
    pub async fn serve_until<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);

        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(batch) = self.batches.recv() => {
                    assert!(batch.changes.is_empty(), "{batch:?}");
                    self.durable.send_replace(Some(batch.checkpoint));
                }
            }
        }
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("capture ends")
            .unwrap()
            .unwrap();
    }
}
