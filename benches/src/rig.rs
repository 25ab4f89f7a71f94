//! The test rig of a measure: a private Postgres with platform and store, an installation of
//! Walhook, and a receiver.

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
use walhook::private_postgres::PrivatePostgres;
use walhook::record::MAX_BATCH;

use crate::figures::{Figures, Must};
use crate::platform::{DATABASE, Muted, Platform};
use crate::processes::{Cpu, Kind, peak_memory};
use crate::receiver::{Receipt, Receiver, Status};
use crate::settings;
use crate::sidecar::{Installation, SLOT, Sidecar};
use crate::wait::{WAIT_LIMIT, eventually, eventually_within};

const STORE: &str = "store";
/// For reading the WAL of a filled store, which is several gigabytes.
const WAIT_LIMIT_AFTER_FILL: Duration = Duration::from_secs(600);
/// Creates WAL segments in advance. An established server recycles old segments, while a new one
/// must create each segment of 16 MiB, for which commits wait.
const CREATE_SEGMENTS: &str = "do $$ begin for i in 1..40 loop
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
    /// Starts a server with a platform that has no users, before `walhook setup`.
    pub async fn start(walhook: &Path) -> anyhow::Result<Rig> {
        let server = PrivatePostgres::start(settings::options()).await?;
        let platform = Platform::create(&server).await?;

        platform.client.batch_execute(CREATE_SEGMENTS).await?;
        platform.client.batch_execute("checkpoint").await?;
        server.create_database(STORE).await?;

        let store = postgres::connect(&server.socket_url(STORE)).await?;

        // Otherwise autovacuum would start with the catalogs of the new cluster.
        for database in ["template1", "postgres"] {
            postgres::connect(&server.socket_url(database))
                .await?
                .batch_execute("vacuum (analyze)")
                .await?;
        }

        let directory =
            std::env::temp_dir().join(format!("walhook-bench-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;

        let installation = Installation::new(
            walhook,
            &directory,
            server.socket_url(DATABASE),
            server.url(STORE),
        );

        let receiver = Receiver::start().await?;
        Ok(Rig {
            server,
            platform,
            store,
            installation,
            receiver,
            directory,
        })
    }

    /// Runs `walhook setup`, with these lines in the section `delivery`. Existing rows raise no
    /// events.
    pub async fn set_up(&mut self, delivery: &str) -> anyhow::Result<()> {
        self.installation.configure("", delivery);
        self.installation.set_up().await
    }

    /// Creates webhooks and lets the receiver check their signatures.
    pub async fn create_webhooks(&mut self, wanted: &[(u64, String)]) -> anyhow::Result<()> {
        self.create_ordered_webhooks(wanted, "none").await
    }

    /// As [`Rig::create_webhooks`], with this `ordering`.
    pub async fn create_ordered_webhooks(
        &mut self,
        wanted: &[(u64, String)],
        ordering: &str,
    ) -> anyhow::Result<()> {
        for webhook in self.installation.create_webhooks(wanted, ordering).await? {
            self.receiver.trust(&webhook.id, &webhook.secret).await?;
        }

        Ok(())
    }

    pub async fn start_sidecar(&self, name: &str) -> anyhow::Result<Sidecar> {
        let sidecar = self.installation.start(name, "capture,deliver,api")?;
        self.installation.wait_until_ready(&sidecar).await?;
        Ok(sidecar)
    }

    /// Opens another connection to the store.
    pub async fn store_client(&self) -> anyhow::Result<Client> {
        Ok(postgres::connect(&self.server.socket_url(STORE)).await?)
    }

    pub fn cpu(&self, sidecars: &[Sidecar]) -> Cpu {
        let pids: Vec<u32> = sidecars.iter().map(Sidecar::pid).collect();
        Cpu::now(&pids, self.receiver.pid(), self.server.pid().unwrap_or(0))
    }

    /// Waits until the receiver has `count` distinct deliveries.
    pub async fn wait_for_deliveries(
        &mut self,
        sidecars: &mut [Sidecar],
        count: u64,
    ) -> anyhow::Result<Status> {
        let mut last = 0;
        let mut moved_at = Instant::now();

        loop {
            let status = self.receiver.status().await?;
            if status.distinct >= count {
                return Ok(status);
            }

            if status.distinct > last {
                (last, moved_at) = (status.distinct, Instant::now());
            }

            if moved_at.elapsed() > WAIT_LIMIT {
                bail!(
                    "only {last} of {count} deliveries were received, and no more within {WAIT_LIMIT:?}"
                );
            }

            sidecars.iter_mut().try_for_each(Sidecar::check)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the events of all `rows` are received. Events of other rows are ignored. Asks
    /// the receiver for the list only when the count suffices, because answering keeps it busy.
    pub async fn wait_for_receipts<T>(
        &mut self,
        sidecars: &mut [Sidecar],
        rows: &HashMap<u64, T>,
    ) -> anyhow::Result<Vec<Receipt>> {
        let started = Instant::now();

        loop {
            let received = self.receiver.status().await?.receipts;
            if received >= rows.len() as u64 {
                let mut receipts = self.receiver.receipts().await?;
                receipts.retain(|(row, _)| rows.contains_key(row));

                if receipts.len() >= rows.len() {
                    return Ok(receipts);
                }
            }

            if started.elapsed() > WAIT_LIMIT {
                bail!(
                    "only {received} of {} events were received within {WAIT_LIMIT:?}",
                    rows.len()
                );
            }

            sidecars.iter_mut().try_for_each(Sidecar::check)?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Delivers one transition. The bare loops repeat its request.
    pub async fn deliver_sample(&mut self, user: u64) -> anyhow::Result<()> {
        self.receiver.reset().await?;
        self.platform.write_singly(user, 1, Muted::No).await?;
        let mut sidecars = [self.start_sidecar("sample").await?];

        self.wait_for_deliveries(&mut sidecars, 1).await?;
        self.settle().await?;
        let [sidecar] = sidecars;
        sidecar.stop().await
    }

    /// Waits until all attempts are recorded and all WAL is acknowledged, so that the next repeat
    /// starts from the same state.
    pub async fn settle(&self) -> anyhow::Result<()> {
        eventually("every attempt is recorded", || async {
            let pending = "select exists (select from walhook.pending where attempt = 1)";
            Ok(!self.store.query_one(pending, &[]).await?.get::<_, bool>(0))
        })
        .await?;
        self.catch_up().await?;

        Ok(self.store.batch_execute("checkpoint").await?)
    }

    /// Finishes background work of the preparation: vacuums, and writes a checkpoint, so that
    /// neither happens during the measurement.
    pub async fn rest(&self) -> anyhow::Result<()> {
        for client in [&self.platform.client, &self.store] {
            client.batch_execute("vacuum (analyze)").await?;
        }

        self.store.batch_execute("checkpoint").await?;
        self.wait_for_autovacuum().await
    }

    /// Updates `rows` rows of a user once, muted, as if everything had run for a while: their full
    /// pages are in the WAL since the last checkpoint, and the sidecar has cached its lookups. Then
    /// vacuums.
    pub async fn warm_up(&self, user: u64, rows: u64) -> anyhow::Result<()> {
        let position = self.platform.touch(user, rows).await?;
        self.wait_for_checkpoint(position).await?;
        self.platform
            .client
            .batch_execute("vacuum (analyze) distro_queue")
            .await?;
        self.store
            .batch_execute("vacuum (analyze) walhook.last_seen")
            .await?;

        self.wait_for_autovacuum().await
    }

    async fn wait_for_autovacuum(&self) -> anyhow::Result<()> {
        eventually("autovacuum has ended", || async {
            let sql = "select not exists (select from pg_stat_activity where backend_type = 'autovacuum worker')";
            Ok(self.store.query_one(sql, &[]).await?.get(0))
        })
        .await
    }

    /// Counts the autovacuum runs since the server was created.
    pub async fn autovacuums(&self) -> anyhow::Result<i64> {
        let sql = "select coalesce(sum(autovacuum_count + autoanalyze_count), 0)::bigint from pg_stat_all_tables";
        let mut count = 0;

        for client in [&self.platform.client, &self.store] {
            count += client.query_one(sql, &[]).await?.get::<_, i64>(0);
        }

        Ok(count)
    }

    /// Removes pending deliveries and re-enables all webhooks, while no sidecar runs, so that a
    /// repeat leaves nothing to the next.
    pub async fn forget_deliveries(&self) -> anyhow::Result<()> {
        let sql = "truncate walhook.delivery, walhook.handoff;
            update walhook.webhook set active = true, failure_count = 0, consecutive_failures = 0, failing_since = null,
                disabled_at = null, disabled_reason = null, warned_at = null";
        Ok(self.store.batch_execute(sql).await?)
    }

    /// Waits until the WAL written so far is read and acknowledged, including that of other
    /// databases.
    pub async fn catch_up(&self) -> anyhow::Result<()> {
        self.catch_up_within(WAIT_LIMIT).await
    }

    async fn catch_up_within(&self, limit: Duration) -> anyhow::Result<()> {
        let position = self.platform.position().await?;
        eventually_within(limit, "the WAL is acknowledged", || {
            self.platform.has_acknowledged(SLOT, position)
        })
        .await
    }

    /// Reads the WAL that was written while no sidecar ran, including that of other databases, so
    /// that the first measurement does not have to.
    pub async fn read_wal(&self) -> anyhow::Result<()> {
        let reader = self.installation.start("reader", "capture")?;

        // The second pass moves the position from which a reader starts.
        for _ in 0..2 {
            self.catch_up_within(WAIT_LIMIT_AFTER_FILL).await?;
            self.store.batch_execute("checkpoint").await?;
        }

        reader.stop().await
    }

    /// Waits until the store's checkpoint is beyond `position`.
    pub async fn wait_for_checkpoint(&self, position: u64) -> anyhow::Result<()> {
        let position = PgLsn::from(position);
        eventually("the checkpoint passes the position", || async {
            // The end of the last complete transaction: a large one may be stored in part.
            let sql = "select resume_lsn > $1 from walhook.checkpoint";
            Ok(self
                .store
                .query_one(sql, &[&position])
                .await?
                .get::<_, bool>(0))
        })
        .await
    }

    /// Requires that the leased deliveries of a replica are bounded, however many are pending. They
    /// are queued, in flight, answered but not recorded, or being claimed.
    pub async fn require_bounded_queues(
        &self,
        figures: &mut Figures,
        held: Held,
        replicas: usize,
    ) -> anyhow::Result<()> {
        let which = held.condition();
        let sql = format!(
            "select count(*) from walhook.pending where {which} and lease is not null and due_at > now()"
        );
        let held: i64 = self.store.query_one(&sql, &[]).await?.get(0);
        let bound = Must::NeverAbove((CAPACITY + ANSWERS_AHEAD + MAX_BATCH + MAX_ROWS) as f64);

        figures.require(
            "deliveries held by a replica",
            "",
            held as f64 / replicas as f64,
            bound,
        );

        Ok(())
    }
}

/// Which deliveries to count as held by a replica: searching a million pending ones takes a while.
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
        // Only configuration and log files are left behind if this fails.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Records microseconds of CPU time per event, by kind of process.
pub fn add_cpu(figures: &mut Figures, prefix: &str, before: &Cpu, after: &Cpu, events: u64) {
    for kind in Kind::ALL {
        let micros = after.since(before, kind) * 1e6 / events as f64;
        // Processes that were not involved are not listed.
        if micros == 0.0 {
            continue;
        }

        figures.add(
            format!("{prefix}, CPU of {}", kind.name()),
            "µs each",
            micros,
        );
    }
}

/// Records the largest peak memory of the sidecars.
pub fn require_memory(
    figures: &mut Figures,
    name: &str,
    sidecars: &[Sidecar],
    bound: f64,
) -> anyhow::Result<()> {
    let mut peak: f64 = 0.0;

    for sidecar in sidecars {
        peak = peak.max(peak_memory(sidecar.pid())?);
    }

    figures.require(
        format!("{name}, peak memory"),
        "MB",
        peak,
        Must::NeverAbove(bound),
    );

    Ok(())
}
