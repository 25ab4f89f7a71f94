//! A log store with a synchronous standby, and two cells that read it, beside a single store.

use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::Context;
use tokio_postgres::Client;
use walhook::domain::cell::Shard;
use walhook::domain::event::UserId;
use walhook::postgres;
use walhook::private_postgres::{PrivatePostgres, StopMode};

use super::Plan;
use super::backlog::Backlog;
use super::load::Load;
use crate::figures::{Figures, Must};
use crate::platform::{DATABASE, Muted, ROWS};
use crate::processes::{Cpu, Kind};
use crate::rig::Rig;
use crate::settings;
use crate::sidecar::{Installation, Sidecar};
use crate::wait::eventually;

const STORE: &str = "store";
const SINGLE: &str = "a single store, from a backlog";
const RELAY: &str = "into the log, from a backlog";
const ALONE: &str = "cell a, p99";
const BESIDE: &str = "cell a beside a dead store of cell b, p99";

/// As docs/log.md recommends.
const WITHOUT_SEARCHES: &str = "drop index walhook.event_feed, walhook.event_release, walhook.event_catalogue, walhook.event_track";

/// A store on a server of its own, with half of the shards.
struct Cell {
    server: PrivatePostgres,
    installation: Installation,
    store: Client,
    /// A user of its shards.
    user: u64,
}

/// The primary with the receiver, the log with its standby, and the cells.
struct World {
    /// Its installation writes the log, and its store is the log.
    rig: Rig,
    log: PrivatePostgres,
    _standby: PrivatePostgres,
    cells: [Cell; 2],
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("cells");
    let mut single = Rig::start(&plan.walhook).await?;
    single.platform.add_users(1, 1, ROWS).await?;
    single.set_up("").await?;
    single
        .create_webhooks(&[(1, single.receiver.url())])
        .await?;
    single.deliver_sample(1).await?;

    let mut world = World::start(plan).await?;
    let repeats = plan.repeats;

    for repeat in 1..=repeats {
        plan.show_step(format!("cells: {repeat} of {repeats}"));
        let transitions = plan.count(60_000);
        let backlog = Backlog {
            user: 1,
            transitions,
            fan_out: 1,
            replicas: 1,
        };

        single.rest().await?;
        let mut drained = backlog.drain(&mut single, &mut figures).await?;
        figures.add(SINGLE, "deliveries/s", drained.rate);
        let ordinary = Load::ordinary(1, plan.seconds(10.0));
        single.warm_up(1, ordinary.rows()).await?;
        let mut latency = ordinary.run(&mut single, &mut drained.sidecars).await?;
        figures.add("a single store, p50", "ms", latency.of_receipts(0.5));
        single.settle().await?;
        drained.stop().await?;

        world.measure(plan, &mut figures, transitions).await?;
    }

    figures.ratio(
        "into the log / a single store",
        RELAY,
        SINGLE,
        Some(Must::AtLeast(1.4)),
    );
    figures.ratio(
        "beside a dead store / alone",
        BESIDE,
        ALONE,
        Some(Must::AtMost(1.2)),
    );

    Ok(figures)
}

impl World {
    async fn start(plan: &Plan) -> anyhow::Result<World> {
        let mut rig = Rig::start(&plan.walhook).await?;
        let log = PrivatePostgres::start(settings::options()).await?;
        log.create_database(STORE).await?;
        let standby = synchronous_standby(&log).await?;

        let log_url = log.url(STORE);
        let source = rig.server.socket_url(DATABASE);
        rig.store = postgres::connect(&log.socket_url(STORE)).await?;
        rig.installation = rig.installation.another("log", &source, &log_url)?;

        let halves = [("a", 0, 2_047), ("b", 2_048, 4_095)];
        let users = halves.map(|(_, first, last)| user_in(first..=last));

        for user in users {
            rig.platform.add_users(user, user, ROWS).await?;
        }

        // Added before: the relay's rate is that of single transitions.
        rig.set_up("").await?;
        rig.store.batch_execute(WITHOUT_SEARCHES).await?;
        let mut cells = Vec::new();

        for ((name, first, last), user) in halves.into_iter().zip(users) {
            let server = PrivatePostgres::start(settings::options()).await?;
            server.create_database(STORE).await?;
            let url = server.url(STORE);
            let mut installation = rig.installation.another(name, &source, &url)?;
            let reads =
                format!("capture = \"log\"\nlog_url = \"{log_url}\"\n[cells]\nname = \"{name}\"");
            installation.configure(&reads, "");
            installation.set_up().await?;

            let store = postgres::connect(&server.socket_url(STORE)).await?;
            let id: uuid::Uuid = store
                .query_one("select store_id from walhook.event_sequence", &[])
                .await?
                .get(0);
            let row = format!(
                "insert into walhook.cell (name, first_shard, last_shard, store_id, epoch)
                values ('{name}', {first}, {last}, '{id}', 1)"
            );
            for map in [&rig.store, &store] {
                map.batch_execute(&row).await?;
            }

            cells.push(Cell {
                server,
                installation,
                store,
                user,
            });
        }

        let cells = <[Cell; 2]>::try_from(cells).ok().context("two cells")?;
        let url = rig.receiver.url();
        for cell in &cells {
            let wanted = [(cell.user, url.clone())];
            for webhook in cell.installation.create_webhooks(&wanted, "none").await? {
                rig.receiver.trust(&webhook.id, &webhook.secret).await?;
            }
        }

        Ok(World {
            rig,
            log,
            _standby: standby,
            cells,
        })
    }

    async fn measure(
        &mut self,
        plan: &Plan,
        figures: &mut Figures,
        transitions: u64,
    ) -> anyhow::Result<()> {
        for cell in &self.cells {
            let half = transitions / 2;
            self.rig
                .platform
                .write_singly(cell.user, half, Muted::No)
                .await?;
        }
        self.rig.rest().await?;

        let before = self.last_event().await?;
        let wanted = before + transitions as i64;
        let relay = self.rig.installation.start("relay", "capture")?;

        // From the first event on, like the rate of a single store.
        self.wait_for_event(before + 1).await?;
        let started = Instant::now();
        let first = self.last_event().await?;
        self.wait_for_event(wanted).await?;
        let rate = (wanted - first) as f64 / started.elapsed().as_secs_f64();
        figures.add(RELAY, "events/s", rate);

        // The readers must not be charged for autovacuum.
        self.rig.catch_up().await?;
        self.rig.rest().await?;

        // Both read the backlog. The relay is idle.
        let mut sidecars = vec![relay];
        for (cell, name) in self.cells.iter().zip(["a", "b"]) {
            sidecars.push(cell.installation.start(name, "capture,deliver")?);
        }

        // From the first events on: a reader connects and plans its statements once.
        self.wait_until_read(before + 1).await?;
        let (read, cpu) = (self.read_by_cells().await?, self.cpu_of_log());
        self.wait_until_read(wanted).await?;
        let events = (self.read_by_cells().await? - read) as f64;
        let micros = self.cpu_of_log().since(&cpu, Kind::Postgres) * 1e6 / events;
        figures.add("CPU of the log store for each event and cell", "µs", micros);
        self.settle().await?;

        let user = self.cells[0].user;
        let ordinary = Load::ordinary(user, plan.seconds(10.0));
        let mut alone = self.load(ordinary, &mut sidecars).await?;
        figures.add(ALONE, "ms", alone.of_receipts(0.99));
        figures.add("cell a, p50", "ms", alone.of_receipts(0.5));

        self.cells[1].server.stop(StopMode::Immediate).await?;
        let mut beside = self.load(ordinary, &mut sidecars).await?;
        figures.add(BESIDE, "ms", beside.of_receipts(0.99));
        self.cells[1].server.start_again().await?;
        self.cells[1].store = postgres::connect(&self.cells[1].server.socket_url(STORE)).await?;

        let last = self.last_event().await?;
        self.wait_until_read(last).await?;
        self.settle().await?;
        for sidecar in sidecars {
            sidecar.stop().await?;
        }

        Ok(())
    }

    fn cpu_of_log(&self) -> Cpu {
        Cpu::now(&[], self.rig.receiver.pid(), self.log.pid().unwrap_or(0))
    }

    async fn load(
        &mut self,
        load: Load,
        sidecars: &mut [Sidecar],
    ) -> anyhow::Result<super::load::Latencies> {
        self.rig.rest().await?;
        self.rig.warm_up(load.user, load.rows()).await?;
        load.run(&mut self.rig, sidecars).await
    }

    async fn last_event(&self) -> anyhow::Result<i64> {
        let last = "select last from walhook.event_sequence";
        Ok(self.rig.store.query_one(last, &[]).await?.get(0))
    }

    /// Waits until the log has an event of this number or a higher one.
    async fn wait_for_event(&self, number: i64) -> anyhow::Result<()> {
        eventually("the log has the events", || async {
            Ok(self.last_event().await? >= number)
        })
        .await
    }

    async fn wait_until_read(&self, last: i64) -> anyhow::Result<()> {
        for cell in &self.cells {
            eventually("a cell has read the log", || async {
                Ok(cell.last_read().await? >= last)
            })
            .await?;
        }

        Ok(())
    }

    /// Returns how many events of the log the cells have read together.
    async fn read_by_cells(&self) -> anyhow::Result<i64> {
        Ok(self.cells[0].last_read().await? + self.cells[1].last_read().await?)
    }

    async fn settle(&self) -> anyhow::Result<()> {
        for cell in &self.cells {
            eventually("every attempt is recorded", || async {
                let pending = "select not exists (select from walhook.pending)";
                Ok(cell.store.query_one(pending, &[]).await?.get(0))
            })
            .await?;
            cell.store.batch_execute("vacuum (analyze)").await?;
            cell.store.batch_execute("checkpoint").await?;
        }

        Ok(())
    }
}

impl Cell {
    /// Returns the number of the last event of the log that it has read.
    async fn last_read(&self) -> anyhow::Result<i64> {
        let read = "select log_number from walhook.checkpoint";
        Ok(self.store.query_one(read, &[]).await?.get(0))
    }
}

/// Returns the first user other than 1 whose shard is in the range.
fn user_in(shards: RangeInclusive<u16>) -> u64 {
    let is_in = |user: &u64| {
        let user = UserId(user.to_string().into());
        shards.contains(&Shard::of(&user).0)
    };
    (2..).find(is_in).expect("a user for each shard")
}

/// Starts a standby of the log's server, for which its commits wait from then on.
async fn synchronous_standby(log: &PrivatePostgres) -> anyhow::Result<PrivatePostgres> {
    let standby = log.start_standby(settings::options()).await?;
    let client = postgres::connect(&log.socket_url("postgres")).await?;
    client
        .execute("alter system set synchronous_standby_names = '*'", &[])
        .await?;
    client.execute("select pg_reload_conf()", &[]).await?;
    eventually("commits wait for the standby", || async {
        let synchronous =
            "select exists (select from pg_stat_replication where sync_state = 'sync')";
        Ok(client.query_one(synchronous, &[]).await?.get(0))
    })
    .await?;

    Ok(standby)
}
