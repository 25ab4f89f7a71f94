//! One measure's machinery: a private Postgres with platform and store, an installation of Walhook, a receiver.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;
use walhook::app::ANSWERS_AHEAD;
use walhook::deliver::MAX_ROWS;
use walhook::handoff::CAPACITY;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres};
use walhook::record::MAX_BATCH;

use crate::figures::{Figures, Must};
use crate::platform::{DATABASE, Platform};
use crate::processes::{Cpu, Kind, peak_memory};
use crate::receiver::{Receipt, Receiver, Status};
use crate::sidecar::{Installation, SLOT, Sidecar};

const STORE: &str = "store";
/// Nothing here takes longer without getting anywhere.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// Durable, as a platform's database is; the rest keeps checkpoints from falling into one repeat and not into the next.
const SETTINGS: [(&str, &str); 7] = [
    ("synchronous_commit", "on"),
    ("shared_buffers", "512MB"),
    ("min_wal_size", "4GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "30min"),
    ("shared_preload_libraries", "pg_stat_statements"),
    ("track_io_timing", "off"),
];

/// A server that has run for a while writes its log over old segments. A new one makes each as it comes to it, and every commit
/// waits for those 16 MiB.
const AGE: &str = "do $$ begin for i in 1..40 loop
    perform pg_logical_emit_message(false, 'age', ''); perform pg_switch_wal();
    end loop; end $$";

pub struct Rig {
    pub server: PrivatePostgres,
    pub platform: Platform,
    pub store: Client,
    pub installation: Installation,
    pub receiver: Receiver,
    directory: PathBuf,
}

impl Rig {
    /// A platform without users, and nothing done to it yet.
    pub async fn start(walhook: &Path) -> anyhow::Result<Rig> {
        let server = PrivatePostgres::start(Options { fsync: true, settings: &SETTINGS, ..Options::default() }).await?;
        let platform = Platform::found(&server).await?;
        platform.client.batch_execute(AGE).await?;
        platform.client.batch_execute("checkpoint").await?;
        server.create_database(STORE).await?;
        let store = postgres::connect(&server.socket_url(STORE)).await?;
        let directory = std::env::temp_dir().join(format!("walhook-bench-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let installation = Installation::new(walhook, &directory, server.socket_url(DATABASE), server.url(STORE));
        let receiver = Receiver::start().await?;
        Ok(Rig { server, platform, store, installation, receiver, directory })
    }

    /// `walhook setup`, with these lines in the configuration's section on delivery. What the platform holds is old news then.
    pub async fn set_up(&mut self, delivery: &str) -> anyhow::Result<()> {
        self.installation.configure("", delivery);
        self.installation.set_up().await
    }

    /// Creates webhooks and lets the receiver check their signatures.
    pub async fn create_webhooks(&mut self, wanted: &[(u64, String)]) -> anyhow::Result<()> {
        for webhook in self.installation.create_webhooks(wanted).await? {
            self.receiver.trust(&webhook.id, &webhook.secret).await?;
        }
        Ok(())
    }

    pub async fn start_sidecar(&self, name: &str) -> anyhow::Result<Sidecar> {
        let sidecar = self.installation.start(name, "capture,deliver,api")?;
        self.installation.wait_until_ready(&sidecar).await?;
        Ok(sidecar)
    }

    /// Another connection to the store.
    pub async fn store_client(&self) -> anyhow::Result<Client> {
        Ok(postgres::connect(&self.server.socket_url(STORE)).await?)
    }

    pub fn cpu(&self, sidecars: &[Sidecar]) -> Cpu {
        let pids: Vec<u32> = sidecars.iter().map(Sidecar::pid).collect();
        Cpu::now(&pids, self.receiver.pid(), self.server.pid().unwrap_or(0))
    }

    /// Waits until the receiver has `count` distinct deliveries.
    pub async fn wait_for_deliveries(&mut self, sidecars: &mut [Sidecar], count: u64) -> anyhow::Result<Status> {
        let (mut last, mut moved_at) = (0, Instant::now());
        loop {
            let status = self.receiver.status().await?;
            if status.distinct >= count {
                return Ok(status);
            }
            if status.distinct > last {
                (last, moved_at) = (status.distinct, Instant::now());
            }
            if moved_at.elapsed() > PATIENCE {
                bail!("only {last} of {count} deliveries came, and no more within {PATIENCE:?}");
            }
            sidecars.iter_mut().try_for_each(Sidecar::check)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the events of all `rows` are received. Other rows' may come meanwhile, and are left out.
    pub async fn wait_for_receipts<T>(
        &mut self,
        sidecars: &mut [Sidecar],
        rows: &HashMap<u64, T>,
    ) -> anyhow::Result<Vec<Receipt>> {
        let begun = Instant::now();
        loop {
            let mut receipts = self.receiver.receipts().await?;
            receipts.retain(|(row, _)| rows.contains_key(row));
            if receipts.len() >= rows.len() {
                return Ok(receipts);
            }
            if begun.elapsed() > PATIENCE {
                bail!("only {} of {} events came within {PATIENCE:?}", receipts.len(), rows.len());
            }
            sidecars.iter_mut().try_for_each(Sidecar::check)?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until everything is recorded and acknowledged, so that the next repeat begins with nothing.
    pub async fn settle(&self) -> anyhow::Result<()> {
        eventually("every attempt is recorded", || async {
            let pending = "select exists (select from walhook.delivery where attempt = 1)";
            Ok(!self.store.query_one(pending, &[]).await?.get::<_, bool>(0))
        })
        .await?;
        self.catch_up().await?;
        Ok(self.store.batch_execute("checkpoint").await?)
    }

    /// Waits until the log as far as it is now has been read and acknowledged, other databases' part of it too.
    pub async fn catch_up(&self) -> anyhow::Result<()> {
        let place = self.platform.position().await?;
        eventually("the log is acknowledged", || self.platform.has_acknowledged(SLOT, place)).await
    }

    /// Waits until the store's checkpoint is beyond `place`.
    pub async fn wait_for_checkpoint(&self, place: u64) -> anyhow::Result<()> {
        let place = PgLsn::from(place);
        eventually("the checkpoint gets there", || async {
            // Behind the last whole transaction: a large one may be stored in part.
            let sql = "select resume_lsn > $1 from walhook.checkpoint";
            Ok(self.store.query_one(sql, &[&place]).await?.get::<_, bool>(0))
        })
        .await
    }

    /// Deliveries that a replica holds in memory, by their leases: bounded, however many wait. They are queued or under way,
    /// answered and not yet recorded, or just being claimed.
    pub async fn require_bounded_queues(
        &self,
        figures: &mut Figures,
        held: Held,
        replicas: usize,
    ) -> anyhow::Result<()> {
        let which = held.condition();
        let sql =
            format!("select count(*) from walhook.delivery where {which} and lease is not null and due_at > now()");
        let held: i64 = self.store.query_one(&sql, &[]).await?.get(0);
        let bound = Must::AtMost((CAPACITY + ANSWERS_AHEAD + MAX_BATCH + MAX_ROWS) as f64);
        figures.require("deliveries held by a replica", "", held as f64 / replicas as f64, bound);
        Ok(())
    }
}

/// Which deliveries a replica can hold: to look for them among a million that wait takes a while.
#[derive(Clone, Copy)]
pub enum Held {
    FirstAttempts,
    All,
}

impl Held {
    const fn condition(self) -> &'static str {
        match self {
            Held::FirstAttempts => "attempt = 1",
            Held::All => "true",
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What is left would be a few files of configuration and logs.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Records microseconds of CPU an event for every kind of process.
pub fn add_cpu(figures: &mut Figures, prefix: &str, before: &Cpu, after: &Cpu, events: u64) {
    for kind in Kind::ALL {
        let micros = after.since(before, kind) * 1e6 / events as f64;
        // What took no part is not listed.
        if micros == 0.0 {
            continue;
        }
        figures.add(format!("{prefix}, CPU of {}", kind.name()), "µs each", micros);
    }
}

/// Records the largest peak memory of the sidecars.
pub fn require_memory(figures: &mut Figures, name: &str, sidecars: &[Sidecar], bound: f64) -> anyhow::Result<()> {
    let mut peak: f64 = 0.0;
    for sidecar in sidecars {
        peak = peak.max(peak_memory(sidecar.pid())?);
    }
    figures.require(format!("{name}, peak memory"), "MB", peak, Must::AtMost(bound));
    Ok(())
}

/// Asks again and again; an error of the question is an error.
pub async fn eventually<F>(what: &str, mut question: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let begun = Instant::now();
    while !question().await? {
        if begun.elapsed() > PATIENCE {
            bail!("waited {PATIENCE:?} in vain: {what}");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
