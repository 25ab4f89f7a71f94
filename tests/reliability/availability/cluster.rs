//! Three nodes, each with PostgreSQL 17 or later under Patroni and a member of etcd, on loopback.
//! Patroni runs with the files in `deploy/patroni`: only names, addresses, directories and passwords
//! are replaced.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{as_owner, free_port, versions_below};

use super::processes::{self, JANITOR};
use crate::support::versions;
use crate::support::{are_installed, skip};

const SHARED: &str = include_str!("../../../deploy/patroni/patroni.yml");
const NODE: &str = include_str!("../../../deploy/patroni/node1.yml");
const DROP_OLD_SLOTS: &str = include_str!("../../../deploy/patroni/drop-old-slots");
const BASEBACKUP: &str = include_str!("pg_basebackup.py");

const NODES: usize = 3;
const PASSWORD: &str = "secret";
const PYTHON: &str = "/usr/bin/python3";
/// How long a cluster may take for anything: several times the `ttl` of its leader lock.
const LIMIT: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(200);
/// A frozen node answers nothing.
const ANSWER: Duration = Duration::from_secs(3);

/// Waits until `probe` returns a value, for as long as a failover of a slow cluster may take.
pub async fn in_time<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut probe: impl FnMut() -> F,
) -> T {
    let end = tokio::time::Instant::now() + LIMIT;

    loop {
        if let Some(found) = probe().await {
            return found;
        }

        assert!(
            tokio::time::Instant::now() < end,
            "not within {LIMIT:?}: {what}"
        );
        tokio::time::sleep(POLL).await;
    }
}

/// The programs that a cluster needs.
pub struct Programs {
    /// The directory of PostgreSQL's programs.
    postgres: PathBuf,
    /// The directory of Patroni's package.
    patroni: PathBuf,
    /// A directory with the client programs, if the first one has only the server's.
    clients: Option<PathBuf>,
}

impl Programs {
    /// Finds the programs. If one is missing, reports that the test is skipped.
    pub fn find() -> Option<Programs> {
        if !are_installed(&["etcd"]) {
            return None;
        }

        let test = std::env::current_exe().expect("a test has a path");
        let patroni = test
            .ancestors()
            .nth(3)
            .expect("the target directory")
            .join("patroni");
        if !patroni.join("installed").is_file() {
            skip("Patroni is not installed");
            return None;
        }

        let postgres = versions::since(17)?;

        let debian = versions_below(Path::new("/usr/lib/postgresql"))
            .into_iter()
            .map(|(_, programs)| programs)
            .next();
        let clients = match postgres.join("pg_controldata").is_file() {
            true => None,
            false => Some(debian.expect("PostgreSQL of Debian")),
        };

        Some(Programs {
            postgres,
            patroni,
            clients,
        })
    }
}

/// How the nodes of a cluster follow their leader.
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    /// Whether commits wait for a standby.
    pub synchronous: bool,
    /// Whether each node lists the slots of the other nodes in `synchronized_standby_slots`.
    pub standby_slots: bool,
}

pub struct Node {
    pub name: String,
    /// Contains `data`, `etcd` and `patroni`, in which the programs run.
    pub directory: PathBuf,
    pub port: u16,
    api: u16,
    etcd: u16,
    etcd_peers: u16,
}

/// A running cluster. Dropping it kills all processes and removes the directory.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub replication: Replication,
    directory: PathBuf,
    http: reqwest::Client,
    janitor: Child,
}

impl Cluster {
    /// Starts a cluster and waits until both standbys follow. The first node is the leader.
    pub async fn start(programs: &Programs, replication: Replication) -> Cluster {
        let directory =
            std::env::temp_dir().join(format!("walhook-cluster-{}", uuid::Uuid::now_v7().simple()));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .expect("a new directory");

        let mut janitor = std::process::Command::new("sh");
        janitor
            .args(["-c", JANITOR, "walhook-janitor"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .process_group(0);

        let janitor = janitor
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let port = || free_port().expect("a free port");

        let nodes = (1..=NODES).map(|number| {
            let name = format!("node{number}");
            let directory = directory.join(&name);

            Node {
                name,
                directory,
                port: port(),
                api: port(),
                etcd: port(),
                etcd_peers: port(),
            }
        });

        // For the client. Another test of this binary may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(ANSWER)
            .build()
            .expect("a client without TLS settings");

        let cluster = Cluster {
            nodes: nodes.collect(),
            replication,
            directory,
            http,
            janitor,
        };

        cluster.write_files(programs).await;

        for node in &cluster.nodes {
            cluster.start_etcd(node);
        }

        cluster.start_patroni(&cluster.nodes[0]);
        in_time("the first leader", async || cluster.leader().await).await;

        if !replication.synchronous {
            cluster
                .configure(&json!({ "synchronous_mode": false }))
                .await;
        }

        for node in &cluster.nodes[1..] {
            cluster.start_patroni(node);
        }

        cluster.wait_until_healthy().await;
        cluster
    }

    async fn write_files(&self, programs: &Programs) {
        copy_directory(
            &programs.patroni.join("patroni"),
            &self.directory.join("python/patroni"),
        );
        write_program(&self.directory.join("pg_basebackup"), BASEBACKUP);

        let members: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.etcd))
            .collect();
        let callback = self.directory.join("drop-old-slots");

        write_program(&callback, DROP_OLD_SLOTS);

        let shared = replaced(
            SHARED,
            &[
                (
                    "10.0.0.1:2379, 10.0.0.2:2379, 10.0.0.3:2379",
                    &members.join(", "),
                ),
                (
                    "/etc/patroni/drop-old-slots",
                    &callback.display().to_string(),
                ),
            ],
        );

        for node in &self.nodes {
            for name in ["patroni", "etcd"] {
                DirBuilder::new()
                    .recursive(true)
                    .create(node.directory.join(name))
                    .expect("a new directory");
            }

            std::fs::write(node.directory.join("patroni/patroni.yml"), &shared).expect("a file");
            std::fs::write(
                node.directory.join("patroni/node.yml"),
                self.own_file(node, programs),
            )
            .expect("a file");
        }

        if geteuid().is_root() {
            let mut command = std::process::Command::new("chown");
            let status = command
                .args(["-R", "postgres:postgres"])
                .arg(&self.directory)
                .status();
            assert!(status.expect("chown starts").success());
        }
    }

    /// Returns the node's own part of Patroni's configuration.
    fn own_file(&self, node: &Node, programs: &Programs) -> String {
        let directory = node.directory.display().to_string();
        let bin = programs.postgres.display().to_string();
        let address = |port: u16| format!("127.0.0.1:{port}");

        let mut text = replaced(
            NODE,
            &[
                ("name: node1", &format!("name: {}", node.name)),
                ("10.0.0.1:8008", &address(node.api)),
                ("10.0.0.1:5432", &address(node.port)),
                (
                    "/var/lib/postgresql/17/platform",
                    &format!("{directory}/data"),
                ),
                ("/usr/lib/postgresql/17/bin", &bin),
                ("SUPERUSER_PASSWORD }", &format!("{PASSWORD} }}")),
                ("REPLICATION_PASSWORD }", &format!("{PASSWORD} }}")),
                ("/var/run/postgresql", &directory),
            ],
        );

        if self.replication.standby_slots {
            let others = self
                .nodes
                .iter()
                .map(|other| other.name.as_str())
                .filter(|name| *name != node.name);
            text.push_str(&format!(
                "    synchronized_standby_slots: {}\n",
                others.collect::<Vec<_>>().join(",")
            ));
        }

        if let Some(clients) = &programs.clients {
            let clients = clients.display();
            let own = self.directory.display();
            text.push_str(&format!(
                "  bin_name: {{ pg_controldata: {clients}/pg_controldata, pg_isready: {clients}/pg_isready, \
                 pg_basebackup: {own}/pg_basebackup }}\n"
            ));
        }

        text
    }

    /// Starts the processes of a node that was killed.
    pub fn start_node(&self, node: &Node) {
        self.start_etcd(node);
        self.start_patroni(node);
    }

    pub fn start_etcd(&self, node: &Node) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let clients = url(node.etcd);
        let peers = url(node.etcd_peers);
        let members: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("{}={}", node.name, url(node.etcd_peers)))
            .collect();
        let members = members.join(",");

        let arguments = [
            ["--name", &node.name],
            ["--data-dir", "data"],
            ["--listen-client-urls", &clients],
            ["--advertise-client-urls", &clients],
            ["--listen-peer-urls", &peers],
            ["--initial-advertise-peer-urls", &peers],
            ["--initial-cluster", &members],
            ["--logger", "zap"],
            ["--log-level", "warn"],
        ];

        self.spawn(
            &node.directory.join("etcd"),
            "/usr/bin/etcd",
            &arguments.concat(),
            &[("GOMAXPROCS", "1")],
        );
    }

    pub fn start_patroni(&self, node: &Node) {
        let python = self.directory.join("python").display().to_string();
        let port = node.port.to_string();

        let variables = [
            ("PYTHONPATH", &*python),
            // For the callback and pg_basebackup.py.
            ("PGHOST", "127.0.0.1"),
            ("PGPORT", &port),
            ("PGUSER", "postgres"),
            ("PGPASSWORD", PASSWORD),
        ];

        self.spawn(
            &node.directory.join("patroni"),
            PYTHON,
            &["-m", "patroni", "."],
            &variables,
        );
    }

    /// Starts a program as the owner of the servers, in its directory, which receives its log.
    fn spawn(
        &self,
        directory: &Path,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join("log"))
            .expect("a log");
        let words = as_owner(Path::new(program));
        let mut command = tokio::process::Command::new(&words[0]);

        command
            .args(&words[1..])
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .process_group(0);

        command
            .env("HOME", directory)
            .envs(variables.iter().copied());

        // It is killed by its directory, also if the test process is killed. The runtime waits for
        // its end.
        drop(
            command
                .stdout(log.try_clone().expect("a descriptor"))
                .stderr(log)
                .spawn()
                .expect(program),
        );
    }

    /// Returns a URL of `database` that names all nodes.
    pub fn url(&self, database: &str) -> String {
        let hosts: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        format!(
            "postgres://postgres:{PASSWORD}@{}/{database}?target_session_attrs=read-write",
            hosts.join(",")
        )
    }

    /// Connects to one node.
    pub async fn connect(&self, node: &Node) -> Option<Client> {
        let url = format!(
            "postgres://postgres:{PASSWORD}@127.0.0.1:{}/postgres",
            node.port
        );
        tokio::time::timeout(ANSWER, postgres::connect(&url))
            .await
            .ok()?
            .ok()
    }

    async fn ask(&self, node: &Node, path: &str) -> Option<(u16, Value)> {
        let answer = self
            .http
            .get(format!("http://127.0.0.1:{}{path}", node.api))
            .send()
            .await
            .ok()?;
        Some((
            answer.status().as_u16(),
            serde_json::from_str(&answer.text().await.ok()?).unwrap_or_default(),
        ))
    }

    /// Returns the index of the node that is the leader and accepts writes.
    pub async fn leader(&self) -> Option<usize> {
        for (index, node) in self.nodes.iter().enumerate() {
            if self
                .ask(node, "/primary")
                .await
                .is_some_and(|(status, _)| status == 200)
            {
                return Some(index);
            }
        }

        None
    }

    /// Waits until one node leads and the others stream from it on the same timeline. Returns the
    /// leader's index.
    pub async fn wait_until_healthy(&self) -> usize {
        in_time("a leader and two standbys that follow it", async || {
            let leader = self.leader().await?;
            let (_, state) = self.ask(&self.nodes[leader], "/cluster").await?;
            let members = state["members"].as_array()?;
            let count = |key: &str, value: &str| {
                members.iter().filter(|member| member[key] == value).count()
            };

            let one_timeline = members
                .iter()
                .all(|member| member["timeline"] == members[0]["timeline"]);
            let synchronous = usize::from(self.replication.synchronous);
            let healthy = members.len() == NODES
                && one_timeline
                && count("state", "streaming") == NODES - 1
                && count("role", "sync_standby") == synchronous;

            healthy.then_some(leader)
        })
        .await
    }

    /// Waits until every standby has the slot, such that it could be used after a failover.
    pub async fn wait_until_slot_is_synchronized(&self, slot: &str) {
        let leader = self.wait_until_healthy().await;
        let synced =
            "select from pg_replication_slots where slot_name = $1 and synced and not temporary
             and invalidation_reason is null";

        for node in self
            .nodes
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != leader)
            .map(|(_, node)| node)
        {
            in_time(&format!("slot {slot} on {}", node.name), async || {
                // A standby synchronizes a slot up to a record of the running transactions.
                self.connect(&self.nodes[leader])
                    .await?
                    .batch_execute("select pg_log_standby_snapshot()")
                    .await
                    .ok()?;
                self.connect(node)
                    .await?
                    .query_opt(synced, &[&slot])
                    .await
                    .ok()?
                    .map(drop)
            })
            .await;
        }
    }

    /// Returns the index of the standby for which commits wait.
    pub async fn synchronous_standby(&self) -> usize {
        in_time("a synchronous standby", async || {
            for (index, node) in self.nodes.iter().enumerate() {
                if self
                    .ask(node, "/synchronous")
                    .await
                    .is_some_and(|(status, _)| status == 200)
                {
                    return Some(index);
                }
            }

            None
        })
        .await
    }

    /// Changes the dynamic configuration, as `patronictl edit-config` does.
    pub async fn configure(&self, change: &Value) {
        in_time("a change of the configuration", async || {
            let leader = &self.nodes[self.leader().await?];
            let request = self
                .http
                .patch(format!("http://127.0.0.1:{}/config", leader.api))
                .body(change.to_string());

            request
                .send()
                .await
                .ok()?
                .status()
                .is_success()
                .then_some(())
        })
        .await;
    }

    /// Moves the leader to another node, as `patronictl switchover` does.
    pub async fn switch_over(&self) {
        in_time("a switchover", async || {
            let leader = &self.nodes[self.leader().await?];
            let request = self
                .http
                .post(format!("http://127.0.0.1:{}/switchover", leader.api));

            // It answers when the switchover has ended.
            let request = request
                .timeout(LIMIT)
                .body(json!({ "leader": leader.name }).to_string());
            request
                .send()
                .await
                .ok()?
                .status()
                .is_success()
                .then_some(())
        })
        .await;
    }

    /// Returns the index of the node whose member leads etcd.
    pub async fn etcd_leader(&self) -> usize {
        in_time("etcd's leader", async || {
            for (index, node) in self.nodes.iter().enumerate() {
                let Some(status) = self.maintain_etcd(node, "status", json!({})).await else {
                    continue;
                };

                if status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
                {
                    return Some(index);
                }
            }

            None
        })
        .await
    }

    /// Lets another node's member lead etcd. A member that led, was suspended and continues can
    /// revoke the leases of others (etcd-io/etcd#15247): then Patroni has two leaders.
    pub async fn move_etcd_leader_from(&self, node: usize) {
        in_time("another leader of etcd", async || {
            if self.etcd_leader().await != node {
                return Some(());
            }

            let other = &self.nodes[(node + 1) % self.nodes.len()];
            let id = self.maintain_etcd(other, "status", json!({})).await?["header"]["member_id"]
                .clone();
            self.maintain_etcd(
                &self.nodes[node],
                "transfer-leadership",
                json!({ "targetID": id }),
            )
            .await;

            None
        })
        .await
    }

    async fn maintain_etcd(&self, node: &Node, method: &str, body: Value) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/v3/maintenance/{method}", node.etcd);
        let answer = self
            .http
            .post(url)
            .body(body.to_string())
            .send()
            .await
            .ok()?;

        serde_json::from_str(&answer.text().await.ok()?).ok()
    }

    /// Kills all processes of a node: PostgreSQL, Patroni and the member of etcd.
    pub async fn kill(&self, node: &Node) {
        processes::kill(&node.directory).await;
    }

    /// Returns the last lines of the nodes' logs.
    fn logs(&self) -> String {
        // The servers write to Patroni's log.
        let files = self
            .nodes
            .iter()
            .flat_map(|node| ["patroni/log", "etcd/log"].map(|name| node.directory.join(name)));
        let last = |file: PathBuf| {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!(
                "--- {}\n{}\n",
                file.display(),
                lines[lines.len().saturating_sub(40)..].join("\n")
            )
        };

        files.map(last).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }

        // The janitor starts when its input ends.
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// Replaces each text, which must be there.
fn replaced(text: &str, replacements: &[(&str, &str)]) -> String {
    replacements
        .iter()
        .fold(text.to_owned(), |text, (from, to)| {
            assert!(
                text.contains(from),
                "{from} is not in the configuration file"
            );
            text.replace(from, to)
        })
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its owner");
}

fn copy_directory(from: &Path, to: &Path) {
    DirBuilder::new()
        .recursive(true)
        .create(to)
        .expect("a new directory");
    let mut command = std::process::Command::new("cp");
    assert!(
        command
            .arg("-r")
            .arg(from.join("."))
            .arg(to)
            .status()
            .expect("cp starts")
            .success()
    );
}
