//! The capture stage with a consumer in place of the enqueue stage: it stores positions and nothing else.

use std::time::Duration;

use postgres_types::PgLsn;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use walhook::capture::{self, CaptureError};
use walhook::config::{Period, Source};
use walhook::domain::change::{Batch, Change};
use walhook::domain::lsn::{Checkpoint, Lsn, Position};
use walhook::health::Health;
use walhook::store::Store;

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
    store: Client,
    slot: String,
    /// Read when the first batch is there, as another process may have stored meanwhile.
    position: Option<Position>,
}

impl Stage {
    pub async fn start(app: &TestApp) -> Stage {
        Stage::start_over(app, &app.source_url).await
    }

    pub async fn start_over(app: &TestApp, url: &str) -> Stage {
        let store = Store::open(&app.store_url, 2).unwrap();
        let (sender, batches) = mpsc::channel(1);
        let (durable, acknowledge) = watch::channel(None);
        let shutdown = CancellationToken::new();
        let (source, url, token) = (source(app), url.to_owned(), shutdown.clone());
        let health = Health::default();
        let task =
            tokio::spawn(async move { capture::run(&source, &url, store, health, sender, acknowledge, token).await });
        Stage { batches, durable, shutdown, task, store: app.store().await, slot: app.name.clone(), position: None }
    }

    /// The next batch as it came, not stored.
    pub async fn receive(&mut self) -> Batch {
        let received = tokio::time::timeout(DEADLINE, self.batches.recv()).await.expect("a batch in time");
        received.expect("capture goes on")
    }

    async fn known(&mut self) -> Position {
        if let Some(position) = self.position {
            return position;
        }
        let statement = "select commit_lsn, ordinal from walhook.checkpoint where slot = $1";
        let row = self.store.query_one(statement, &[&self.slot]).await.unwrap();
        Position { commit: Lsn(row.get::<_, PgLsn>(0).into()), ordinal: row.get::<_, i64>(1) as u64 }
    }

    /// Stores what a batch says and gives the changes that are new.
    pub async fn store(&mut self, batch: Batch) -> Vec<Change> {
        let checkpoint = batch.checkpoint;
        let known = self.known().await;
        if checkpoint.position > known {
            let statement = "update walhook.checkpoint set commit_lsn = $2, ordinal = $3, resume_lsn = $4, timeline = $5 where slot = $1";
            let (commit, resume) = (PgLsn::from(checkpoint.position.commit.0), PgLsn::from(checkpoint.resume.0));
            let (ordinal, timeline) = (checkpoint.position.ordinal as i64, checkpoint.lineage.timeline as i32);
            self.store.execute(statement, &[&self.slot, &commit, &ordinal, &resume, &timeline]).await.unwrap();
        }
        self.position = Some(known.max(checkpoint.position));
        self.durable.send_replace(Some(checkpoint));
        batch.changes.into_iter().filter(|change| change.position > known).collect()
    }

    /// The next `count` changes that were not stored before.
    pub async fn changes(&mut self, count: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        while changes.len() < count {
            let batch = self.receive().await;
            changes.extend(self.store(batch).await);
        }
        assert_eq!(changes.len(), count, "{changes:?}");
        changes
    }

    /// The ordinals of the first batch with something behind `known`, without those up to it.
    pub async fn changes_until_past(&mut self, known: u64) -> Vec<u64> {
        loop {
            let batch = self.receive().await;
            let ordinals: Vec<u64> = batch.changes.iter().map(|change| change.position.ordinal).collect();
            self.store(batch).await;
            if ordinals.last().is_some_and(|last| *last > known) {
                return ordinals.into_iter().filter(|ordinal| *ordinal > known).collect();
            }
        }
    }

    /// With a new connection to the store: its server has been restarted.
    pub async fn reconnect_store(&mut self, app: &TestApp) {
        self.store = app.store().await;
    }

    /// Takes what comes without changes while `work` is done: the end of a transaction may come by itself.
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
        tokio::time::timeout(DEADLINE, self.task).await.expect("capture ends").unwrap().unwrap();
    }

    /// How it ended by itself.
    pub async fn ended(self) -> Result<(), CaptureError> {
        tokio::time::timeout(DEADLINE, self.task).await.expect("capture ends").unwrap()
    }
}
