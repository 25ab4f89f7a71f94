//! Disks of either Postgres that fill up or fail, and servers that crash, lose their WAL or are
//! restored to an earlier time: nothing that was acknowledged is lost, the state is reported, and
//! service resumes automatically or after the one command that is named.

mod errors;
mod full;
mod resets;
mod restores;
mod stops;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::support::{POLL, Receiver, TestApp, eventually, next_id, one, run_sql, skip, wal_end};

/// The most warnings and errors that one outage may cause: each activity that fails logs one.
const CALM: usize = 12;

/// A tmpfs of a fixed size. Unmounted when dropped, so it must be declared before the server that
/// uses it.
struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    /// Mounts a disk. None if this process may not.
    fn mount(mebibytes: u32) -> Option<Disk> {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={mebibytes}m,mode=0777");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(directory.path())
            .output()
            .is_ok_and(|output| output.status.success());

        if !mounted {
            skip("a tmpfs cannot be mounted without root's privileges");
            return None;
        }

        Some(Disk { directory })
    }

    fn ballast(&self) -> PathBuf {
        self.directory.path().join("ballast")
    }

    /// Fills the disk to the last page.
    fn fill(&self) {
        use std::io::Write;

        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.ballast())
            .unwrap();
        let page = [1; 4096];
        while file.write_all(&page).is_ok() {}
    }

    /// Makes the disk free again.
    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    /// Creates a directory that belongs to the owner of `server`.
    fn directory_of(&self, name: &str, server: &PrivatePostgres) -> PathBuf {
        let directory = self.directory.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        give_to_owner(&directory, server);
        directory
    }

    /// Creates a tablespace on this disk.
    async fn tablespace(&self, name: &str, server: &PrivatePostgres) {
        let location = self.directory_of(name, server);
        let admin = postgres::connect(&server.url("postgres")).await.unwrap();

        run_sql(
            &admin,
            &format!("create tablespace {name} location '{}'", location.display()),
        )
        .await;
    }

    /// Moves a server's WAL to this disk.
    async fn take_wal(&self, server: &PrivatePostgres) {
        server.stop(StopMode::Fast).await.unwrap();
        let wal = server.data_dir().join("pg_wal");
        let moved = self.directory.path().join("pg_wal");

        copy(&wal, &moved).await;
        std::fs::remove_dir_all(&wal).unwrap();
        std::os::unix::fs::symlink(&moved, &wal).unwrap();
        server.start_again().await.unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a server that is still stopping may have files open.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.directory.path())
            .status();
    }
}

fn give_to_owner(path: &Path, server: &PrivatePostgres) {
    let data = std::fs::metadata(server.data_dir()).unwrap();
    use std::os::unix::fs::MetadataExt;
    std::os::unix::fs::chown(path, Some(data.uid()), Some(data.gid())).unwrap();
}

/// Copies a directory with owners and permissions.
async fn copy(from: &Path, to: &Path) {
    let status = tokio::process::Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .await
        .unwrap();
    assert!(status.success(), "{} could not be copied", from.display());
}

/// Commits payments until it is stopped. Reconnects when the primary is back.
struct Load {
    stop: CancellationToken,
    shared: Arc<Mutex<Payments>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Payments {
    /// The ids of the payments whose commit the primary has acknowledged.
    acknowledged: HashSet<i64>,
    /// The last error of a commit.
    error: Option<String>,
}

impl Payments {
    fn note(&mut self, id: i64, error: Option<tokio_postgres::Error>) {
        match error {
            None => drop(self.acknowledged.insert(id)),
            Some(error) => self.error = Some(postgres::describe(&error)),
        }
    }
}

impl Load {
    /// Some load is enough: pages and segments are used up within seconds.
    const PAUSE: Duration = Duration::from_millis(4);

    fn start(url: &str, user: i64) -> Load {
        let stop = CancellationToken::new();
        let shared = Arc::<Mutex<Payments>>::default();
        let work = Load::work(url.to_owned(), user, stop.clone(), shared.clone());

        Load {
            stop,
            shared,
            task: tokio::spawn(work),
        }
    }

    async fn work(url: String, user: i64, stop: CancellationToken, shared: Arc<Mutex<Payments>>) {
        let insert =
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                      values ($1, $2, repeat('INV', 100), 1, 1, 'ready')";

        while !stop.is_cancelled() {
            let Ok(client) = postgres::connect(&url).await else {
                tokio::time::sleep(POLL).await;
                continue;
            };

            while !stop.is_cancelled() && !client.is_closed() {
                let id = next_id();
                let result = client.execute(insert, &[&id, &user]).await;
                shared.lock().unwrap().note(id, result.err());
                tokio::time::sleep(Load::PAUSE).await;
            }
        }
    }

    fn count(&self) -> usize {
        self.shared.lock().unwrap().acknowledged.len()
    }

    /// Waits until so many more payments are committed.
    async fn advance(&self, count: usize) {
        let wanted = self.count() + count;
        eventually("commits on the primary", async || {
            (self.count() >= wanted).then_some(())
        })
        .await;
    }

    /// Waits until a commit fails with this message.
    async fn wait_for_error(&self, text: &str) {
        let failed = || {
            self.shared
                .lock()
                .unwrap()
                .error
                .as_ref()
                .is_some_and(|error| error.contains(text))
        };

        eventually(&format!("a commit to fail: {text}"), async || {
            failed().then_some(())
        })
        .await;
    }

    async fn stop(self) -> HashSet<i64> {
        self.stop.cancel();
        self.task.await.expect("the load does not panic");
        std::mem::take(&mut self.shared.lock().unwrap().acknowledged)
    }
}

/// A running sidecar, a primary and a store on two servers, and a webhook.
struct World {
    app: TestApp,
    store: PrivatePostgres,
    user: i64,
    receiver: Receiver,
    /// The number of lines of the log that were examined.
    log_read: usize,
}

/// The figures of an account.
struct Account {
    payments: usize,
    requests: usize,
    /// How long it took until all was delivered.
    took: Duration,
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Account {
            payments,
            requests,
            took,
        } = self;
        write!(
            f,
            "{payments} payments, {requests} requests, the last one complete after {took:.1?}"
        )
    }
}

async fn server(settings: &[(&str, &str)]) -> PrivatePostgres {
    crate::support::server(Options {
        fsync: true,
        settings,
        ..Options::default()
    })
    .await
}

impl World {
    /// Prepares databases on two servers. No command of Walhook has run.
    async fn prepare(primary: PrivatePostgres, store: PrivatePostgres) -> World {
        let mut app = TestApp::prepare_on(Arc::new(primary)).await;
        store.create_database("events").await.unwrap();
        app.store_url = store.url("events");

        let url = app.store_url.clone();
        app.set("store.url", &url).set("source.heartbeat", "500ms");

        // On a busy machine the receiver may respond too late. The next attempt must not wait for
        // minutes.
        app.set("delivery.retry_schedule", &["2s"; 9].join(","))
            .set("delivery.retry_jitter", "0ms");

        World {
            app,
            store,
            user: 0,
            receiver: Receiver::start().await,
            log_read: 0,
        }
    }

    /// Starts the sidecar, and delivers the first payments.
    async fn begin(&mut self) {
        self.app.setup().await;
        self.app.run().await;
        self.user = self.app.platform().await.user(&[]).await;

        let api = self.app.api(&self.user.to_string()).await;
        api.create_webhook(&self.receiver.url("/"), &["payment.statement_ready"])
            .await;

        let load = self.load();
        load.advance(20).await;
        self.account(&load.stop().await, &HashSet::new()).await;
    }

    fn load(&self) -> Load {
        Load::start(&self.app.source_url, self.user)
    }

    /// Commits payments, and waits until they are delivered.
    async fn pay(&self, count: usize) -> HashSet<i64> {
        let load = self.load();
        load.advance(count).await;
        let paid = load.stop().await;
        self.account(&paid, &HashSet::new()).await;
        paid
    }

    /// Waits until readiness fails for this reason.
    async fn wait_until_unready(&mut self, reason: &str) {
        let sidecar = self.app.sidecar();
        eventually(&format!("unready: {reason}"), async || {
            sidecar
                .readiness()
                .await
                .filter(|(status, text)| *status == 503 && text.contains(reason))
        })
        .await;
    }

    /// Waits until so many statements have failed because of a disk, and readiness reports it.
    async fn wait_for_disk_faults(
        &mut self,
        database: &str,
        fault: &str,
        reason: &str,
        count: usize,
    ) {
        let metric =
            format!("walhook_disk_faults_total{{database=\"{database}\",fault=\"{fault}\"}}");
        let sidecar = self.app.sidecar();
        let before = sidecar.metric(&metric).await.expect("registered with 0");

        eventually(
            &format!("{count} disk faults of the {database}"),
            async || {
                sidecar
                    .metric(&metric)
                    .await
                    .filter(|found| *found >= before + count as f64)
            },
        )
        .await;

        self.wait_until_unready(&format!("{database}: {reason}"))
            .await;
    }

    /// Waits until the slot is beyond the end of the last payment.
    async fn wait_for_acknowledgement(&self) {
        let client = self.app.source().await;
        let end = wal_end(&client).await;
        self.app.wait_for_acknowledgement(&client, end).await;
    }

    /// Waits until the event of a later payment is stored.
    async fn wait_until_stored(&self, load: &Load) {
        let after = next_id();
        load.advance(1).await;

        let store = self.app.store().await;
        let later = "select from walhook.event where (data ->> 'payment_request_id')::bigint between $1 and 9999999 limit 1";
        eventually("a later event in the store", async || {
            store.query_opt(later, &[&after]).await.ok()?.map(drop)
        })
        .await;
    }

    /// Asserts that the log since the last call names each failure at most `outages` times. Returns
    /// the warnings and errors.
    fn assert_log_is_calm(&mut self, outages: usize) -> Vec<String> {
        let log = std::fs::read_to_string(self.app.log_file()).unwrap();
        let lines: Vec<&str> = log.lines().skip(self.log_read).collect();

        self.log_read += lines.len();
        let is_loud = |line: &&&str| line.contains(" WARN ") || line.contains("ERROR ");
        let loud: Vec<String> = lines
            .iter()
            .filter(is_loud)
            .map(|line| String::from(*line))
            .collect();
        assert!(
            loud.len() <= CALM * outages,
            "{} lines for {outages} outages:\n{}",
            loud.len(),
            loud.join("\n")
        );

        loud
    }

    /// Waits until every payment of the primary is delivered, and asserts that each has one event
    /// and one delivery, which ended in a success. `undone` are payments that were delivered and
    /// that the primary has lost.
    async fn account(&self, acknowledged: &HashSet<i64>, undone: &HashSet<i64>) -> Account {
        let began = std::time::Instant::now();
        let platform = self.app.source().await;
        let rows = platform.query("select id from payment", &[]).await.unwrap();
        let mut wanted: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        let lost: Vec<_> = acknowledged.difference(&wanted).collect();

        assert!(
            lost.is_empty(),
            "the primary lost what it had acknowledged: {lost:?}"
        );
        wanted.extend(undone);
        self.app.wait_for_events(wanted.len()).await;

        // Each event's delivery is stored with it, and removed when it has ended.
        self.app
            .wait_for_count("select count(*) from walhook.pending", 0)
            .await;
        let took = began.elapsed();
        let received = self.receiver.requests();
        let store = self.app.store().await;
        let events = "select (data ->> 'payment_request_id')::bigint, delivery_id
             from walhook.event left join walhook.attempt on attempt.event_id = event.id and outcome = 'delivered'";
        let mut stored: HashMap<i64, HashSet<uuid::Uuid>> = HashMap::new();

        for row in store.query(events, &[]).await.unwrap() {
            let delivery = row
                .get::<_, Option<uuid::Uuid>>(1)
                .expect("each event has a delivered attempt");
            assert!(
                stored.entry(row.get(0)).or_default().insert(delivery),
                "a delivery was counted twice"
            );
        }

        assert_eq!(
            stored.keys().copied().collect::<HashSet<_>>(),
            wanted,
            "exactly the committed payments have events"
        );
        assert!(
            stored.values().all(|deliveries| deliveries.len() == 1),
            "a payment has several deliveries"
        );

        let ended = "select count(*) from walhook.attempt where outcome in ('permanently_failed', 'cancelled')";
        assert_eq!(one::<i64>(&store, ended).await, 0, "another final state");

        let arrived: HashSet<i64> = received
            .iter()
            .filter_map(|request| request.data()["payment_request_id"].as_i64())
            .collect();
        assert!(
            wanted.is_subset(&arrived),
            "a delivery is recorded that the receiver did not get"
        );

        Account {
            payments: wanted.len(),
            requests: received.len(),
            took,
        }
    }

    /// Starts a server if it does not run. Its operator would: a server whose startup process fails
    /// does not restart.
    async fn revive(&self, server: &PrivatePostgres) {
        eventually("the server to accept connections", async || {
            if postgres::connect(&server.url("postgres")).await.is_ok() {
                return Some(());
            }

            let status = server
                .program("pg_ctl")
                .arg("status")
                .arg("-D")
                .arg(server.data_dir())
                .output()
                .await
                .unwrap();
            if !status.status.success() {
                // It may have been stopping.
                let _ = server.start_again().await;
            }

            None
        })
        .await;
    }
}

/// Waits until the server's log contains `text` after its first `skipped` bytes.
async fn wait_for_server_log(server: &PrivatePostgres, skipped: usize, text: &str) {
    eventually(&format!("the server to log {text:?}"), async || {
        let log = std::fs::read(server.log_file()).unwrap();
        String::from_utf8_lossy(&log[skipped..])
            .contains(text)
            .then_some(())
    })
    .await;
}

fn server_log_length(server: &PrivatePostgres) -> usize {
    std::fs::metadata(server.log_file()).unwrap().len() as usize
}
