//! The servers: a primary with a synchronous standby that has the slot, and the store on another
//! server.

use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::Arc;

use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use super::clock::SharedClock;
use crate::support::versions;
use crate::support::{TestApp, eventually, server, standby};

const STANDBY_SLOT: &str = "standby";
/// Either server may be the standby.
const SETTINGS: [(&str, &str); 8] = [
    ("primary_slot_name", STANDBY_SLOT),
    ("hot_standby", "on"),
    ("hot_standby_feedback", "on"),
    ("sync_replication_slots", "on"),
    // A paused sidecar and a stepped clock end connections.
    ("wal_sender_timeout", "5s"),
    ("wal_receiver_timeout", "5s"),
    ("wal_receiver_status_interval", "1s"),
    ("wal_retrieve_retry_interval", "500ms"),
];
/// No commit is acknowledged, and no change is decoded, before the standby has it: a failover
/// undoes nothing. Not `*`, which includes the sidecar's connection.
const SYNCHRONOUS: [&str; 2] = [
    "synchronous_standby_names = 'walreceiver'",
    "synchronized_standby_slots = 'standby'",
];

pub struct Servers {
    nodes: [Arc<PrivatePostgres>; 2],
    /// The index of the primary.
    primary: usize,
    pub store: PrivatePostgres,
}

impl Servers {
    /// Starts the servers, and prepares a sidecar for them. None if no PostgreSQL 17 is installed.
    pub async fn start(clock: &SharedClock) -> Option<(TestApp, Servers)> {
        let programs = versions::since(17)?;

        let environment = clock.environment();
        let environment: Vec<(&str, &str)> = environment
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let options = Options {
            fsync: true,
            environment: &environment,
            ..Options::default()
        };

        let of_nodes = Options {
            programs: Some(&programs),
            settings: &SETTINGS,
            ..options
        };

        let first = Arc::new(server(of_nodes).await);
        let mut app = TestApp::prepare_on(first.clone()).await;
        let store = server(options).await;

        store
            .create_database(&app.name)
            .await
            .expect("the store's database");
        app.store_url = store.url(&app.name);
        first.stop(StopMode::Fast).await.expect("a stop");

        let second = standby(&first, of_nodes).await;
        first.start_again().await.expect("a start");

        let servers = Servers {
            nodes: [first, Arc::new(second)],
            primary: 0,
            store,
        };

        servers.join().await;
        let database = format!("{}_platform", app.name);

        app.source_url = servers.url(&database);

        for (key, url) in [
            ("source.url", app.source_url.clone()),
            ("store.url", app.store_url.clone()),
        ] {
            app.set(key, &url);
        }

        for (name, value) in clock.environment() {
            app.set_environment(name, &value);
        }

        for server in servers
            .nodes
            .iter()
            .map(|node| &**node)
            .chain([&servers.store])
        {
            clock.assert_used_by(server).await;
        }

        Some((app, servers))
    }

    /// Makes the pair synchronous.
    async fn join(&self) {
        create_standby_slot(&connect(self.primary()).await).await;
        let [first, second] = &self.nodes;
        for (node, other) in [(first, second), (second, first)] {
            let client = connect(node).await;
            let conninfo = format!("primary_conninfo = '{}'", conninfo(other));
            for setting in SYNCHRONOUS.iter().copied().chain([conninfo.as_str()]) {
                client
                    .batch_execute(&format!("alter system set {setting}"))
                    .await
                    .expect("a setting");
            }

            client
                .batch_execute("select pg_reload_conf()")
                .await
                .expect("a reload");
        }

        // Without a restart, a standby that found no primary waits before it connects again.
        self.standby()
            .restart(StopMode::Fast)
            .await
            .expect("a restart");
        self.until_synchronous().await;
    }

    pub fn primary(&self) -> &PrivatePostgres {
        &self.nodes[self.primary]
    }

    fn standby(&self) -> &PrivatePostgres {
        &self.nodes[1 - self.primary]
    }

    /// Returns a URL of whichever node is the primary.
    fn url(&self, database: &str) -> String {
        let [first, second] = [self.nodes[0].port(), self.nodes[1].port()];
        let options = "target_session_attrs=read-write&connect_timeout=2";
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{database}?{options}")
    }

    /// Waits until the standby confirms what the primary writes: until then, commits wait.
    async fn until_synchronous(&self) {
        let client = connect(self.primary()).await;
        let streams =
            "select from pg_stat_replication where sync_state = 'sync' and state = 'streaming'";
        eventually("the standby to stream", async || {
            client.query_opt(streams, &[]).await.ok()?.map(drop)
        })
        .await;
    }

    pub async fn restart_primary(&self, mode: StopMode) {
        self.primary()
            .restart(mode)
            .await
            .expect("the primary restarts");
        self.until_synchronous().await;
    }

    pub async fn restart_standby(&self) {
        self.standby()
            .restart(StopMode::Immediate)
            .await
            .expect("the standby restarts");
        self.until_synchronous().await;
    }

    pub async fn restart_store(&self, mode: StopMode) {
        self.store.restart(mode).await.expect("the store restarts");
    }

    /// Kills the primary, promotes the standby, and makes a standby of the old primary.
    pub async fn fail_over(&mut self, slot: &str) {
        self.until_slot_is_on_standby(slot).await;
        self.primary()
            .stop(StopMode::Immediate)
            .await
            .expect("a stop");

        let client = connect(self.standby()).await;
        let promoted = client
            .query_one("select pg_promote()", &[])
            .await
            .expect("a promotion");

        assert!(
            promoted.get::<_, bool>(0),
            "the standby was not promoted in time"
        );
        self.primary = 1 - self.primary;
        self.rebuild_standby().await;
        self.until_synchronous().await;
    }

    async fn until_slot_is_on_standby(&self, slot: &str) {
        let client = connect(self.standby()).await;
        let primary = connect(self.primary()).await;
        let usable = "select from pg_replication_slots
                      where slot_name = $1 and synced and not temporary and invalidation_reason is null";

        // The standby synchronizes a slot up to a record of the running transactions: a checkpoint
        // writes one.
        eventually("the slot on the standby", async || {
            primary
                .batch_execute("checkpoint")
                .await
                .expect("a checkpoint");
            client
                .query_opt(usable, &[&slot])
                .await
                .expect("the standby's slots")
                .map(drop)
        })
        .await;
    }

    /// Replaces the data of the other node by a base backup of the primary. By SQL, because
    /// `pg_basebackup` is not installed with every server.
    async fn rebuild_standby(&self) {
        let primary = self.primary();
        let standby = self.standby();
        let directory = standby.data_dir();
        let configuration =
            std::fs::read(directory.join("postgresql.auto.conf")).expect("its settings");
        let client = connect(primary).await;

        create_standby_slot(&client).await;
        client
            .batch_execute("select pg_backup_start('rebuild', true)")
            .await
            .expect("the start of a backup");
        std::fs::remove_dir_all(&directory).expect("its old data");

        let mut copy = tokio::process::Command::new("cp");
        copy.arg("-a")
            .arg(primary.data_dir())
            .arg(&directory)
            .stderr(std::process::Stdio::null());

        // Fails if a file is removed meanwhile. Such a file is not needed, or comes from the WAL.
        copy.status().await.expect("cp");
        let stop = "select labelfile from pg_backup_stop(false)";
        let label: String = client
            .query_one(stop, &[])
            .await
            .expect("the end of the backup")
            .get(0);

        std::fs::remove_file(directory.join("postmaster.pid")).expect("the primary runs");

        for slot in std::fs::read_dir(directory.join("pg_replslot"))
            .expect("a directory")
            .flatten()
        {
            std::fs::remove_dir_all(slot.path()).expect("a slot");
        }

        write(&directory, "backup_label", label.as_bytes());
        write(&directory, "standby.signal", b"");
        write(&directory, "postgresql.auto.conf", &configuration);
        standby.start_again().await.expect("the standby starts");
    }
}

/// Writes a file that belongs to the owner of its directory.
fn write(directory: &Path, name: &str, content: &[u8]) {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let owner = std::fs::metadata(directory).expect("a directory");
    chown(&path, Some(owner.uid()), Some(owner.gid())).expect("its owner");
}

fn conninfo(server: &PrivatePostgres) -> String {
    format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres",
        server.port()
    )
}

/// Opens a session whose own commits do not wait for the standby.
async fn connect(server: &PrivatePostgres) -> Client {
    let client = postgres::connect(&server.url("postgres"))
        .await
        .expect("the server");
    client
        .batch_execute("set synchronous_commit = local")
        .await
        .expect("a setting");

    client
}

async fn create_standby_slot(client: &Client) {
    let create = "select pg_create_physical_replication_slot('standby', true)
                  where not exists (select from pg_replication_slots where slot_name = 'standby')";
    client.execute(create, &[]).await.expect("a slot");
}
