//! A sidecar with its own databases on a private Postgres.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use postgres_types::PgLsn;
use tokio::process::Command;
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use super::sidecar::Sidecar;
use super::{Api, Namespace, Platform, eventually, one};

/// The tables of a platform.
pub const REFERENCE_SCHEMA: &str = include_str!("../../sql/primary/reference_schema.sql");
/// Any 32 bytes.
const MASTER_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Returns the end of a primary's WAL.
pub async fn wal_end(primary: &Client) -> PgLsn {
    one(primary, "select pg_current_wal_lsn()").await
}

pub struct TestApp {
    pub server: Arc<PrivatePostgres>,
    /// The name of the slot and the publication, and part of the names of the databases and the
    /// log: several apps share a server.
    pub name: String,
    pub source_url: String,
    pub store_url: String,
    program: PathBuf,
    settings: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    namespace: Option<Arc<Namespace>>,
    sidecar: Option<Sidecar>,
}

/// The server that all tests of a binary share. It is removed when the test process ends.
pub(super) async fn shared_server() -> Arc<PrivatePostgres> {
    static SERVER: OnceCell<Arc<PrivatePostgres>> = OnceCell::const_new();

    let start = || async {
        Arc::new(
            PrivatePostgres::start(Options::default())
                .await
                .expect("a private PostgreSQL"),
        )
    };

    SERVER.get_or_init(start).await.clone()
}

/// Starts a server of its own for a test. `initdb` runs once for each version: other servers start
/// with a copy of its data.
pub async fn server(options: Options<'_>) -> PrivatePostgres {
    type Templates = BTreeMap<Option<PathBuf>, Arc<PrivatePostgres>>;
    static TEMPLATES: Mutex<Templates> = Mutex::const_new(BTreeMap::new());

    let programs = options.programs.map(Path::to_owned);
    let mut templates = TEMPLATES.lock().await;
    let template = match templates.get(&programs) {
        Some(template) => Arc::clone(template),
        None => {
            let first = Options {
                programs: options.programs,
                ..Options::default()
            };
            let template = PrivatePostgres::start(first)
                .await
                .expect("a private PostgreSQL");
            template.stop(StopMode::Fast).await.expect("it stops");
            let template = Arc::new(template);
            templates.insert(programs, Arc::clone(&template));
            template
        }
    };

    drop(templates);
    let copied = Options {
        data: Some(&template.data_dir()),
        ..options
    };
    PrivatePostgres::start(copied)
        .await
        .expect("a private PostgreSQL")
}

/// Starts a standby of `primary`, which must be stopped. The standby connects as soon as that
/// server runs again.
pub async fn standby(primary: &PrivatePostgres, options: Options<'_>) -> PrivatePostgres {
    let connection = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres",
        primary.port()
    );
    let settings = [
        &[("primary_conninfo", connection.as_str())],
        options.settings,
    ]
    .concat();

    let data = primary.data_dir();
    let signal = data.join("standby.signal");
    std::fs::write(&signal, "").expect("the signal of a standby");

    let standby = PrivatePostgres::start(Options {
        settings: &settings,
        data: Some(&data),
        ..options
    })
    .await
    .expect("a standby");

    std::fs::remove_file(&signal).expect("the primary's data without the signal");
    standby
}

impl TestApp {
    /// Creates databases with the reference schema, and settings. No command of Walhook has run.
    pub async fn prepare() -> TestApp {
        TestApp::prepare_on(shared_server().await).await
    }

    /// Like [`TestApp::prepare`] on a separate server, for tests that stop the server or change its
    /// settings.
    pub async fn prepare_alone(options: Options<'_>) -> TestApp {
        TestApp::prepare_on(Arc::new(server(options).await)).await
    }

    pub async fn prepare_on(server: Arc<PrivatePostgres>) -> TestApp {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let source = format!("{name}_platform");
        let store = format!("{name}_store");

        server
            .create_database(&source)
            .await
            .expect("a database for the platform");
        server
            .create_database(&store)
            .await
            .expect("a database for the store");

        let source_url = server.url(&source);
        let store_url = server.url(&store);
        let client = postgres::connect(&source_url)
            .await
            .expect("the platform's database");

        client
            .batch_execute(REFERENCE_SCHEMA)
            .await
            .expect("the reference schema");
        TestApp::with_databases(server, name, source_url, store_url)
    }

    /// Uses databases that exist. `name` must be unique among the apps of a test binary.
    pub fn with_databases(
        server: Arc<PrivatePostgres>,
        name: String,
        source_url: String,
        store_url: String,
    ) -> TestApp {
        // For all TLS clients of a test. Another test may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = [
            ("source.url", source_url.as_str()),
            ("source.slot", &name),
            ("source.publication", &name),
            ("store.url", &store_url),
            ("secrets.master_key", MASTER_KEY),
            ("delivery.allow_http", "true"),
            ("delivery.allow_networks", "127.0.0.0/8,::1/128"),
        ];

        let settings = settings
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let program = env!("CARGO_BIN_EXE_walhook").into();
        let environment = BTreeMap::new();

        TestApp {
            server,
            name,
            source_url,
            store_url,
            program,
            settings,
            environment,
            namespace: None,
            sidecar: None,
        }
    }

    /// Uses databases on other servers. The platform's gets the reference schema.
    pub async fn use_databases(&mut self, source_url: &str, store_url: &str) {
        let client = postgres::connect(source_url)
            .await
            .expect("the platform's database");
        client
            .batch_execute(REFERENCE_SCHEMA)
            .await
            .expect("the reference schema");
        (self.source_url, self.store_url) = (source_url.to_owned(), store_url.to_owned());
        self.set("source.url", source_url)
            .set("store.url", store_url);
    }

    /// Prepares, sets up and runs a sidecar, and waits until it is ready.
    pub async fn start() -> TestApp {
        let mut app = TestApp::prepare().await;
        app.setup().await;
        app.run().await;
        app
    }

    /// Like [`TestApp::start`], with settings.
    pub async fn start_with(configure: impl FnOnce(&mut TestApp) -> &mut TestApp) -> TestApp {
        let mut app = TestApp::prepare().await;
        configure(&mut app);
        app.setup().await;
        app.run().await;
        app
    }

    /// Uses another build of walhook for processes started from now on.
    pub fn set_program(&mut self, program: &Path) -> &mut TestApp {
        self.program = program.to_owned();
        self
    }

    /// Sets a setting, such as `("delivery.timeout", "200ms")`, for processes started from now on.
    pub fn set(&mut self, key: &str, value: &str) -> &mut TestApp {
        self.settings.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn setting(&self, key: &str) -> &str {
        &self.settings[key]
    }

    /// Sets another environment variable, such as `RUST_LOG`, for processes started from now on.
    pub fn set_environment(&mut self, name: &str, value: &str) -> &mut TestApp {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Makes ten attempts fit into a second, so that tests of retries are fast.
    pub fn set_fast_retries(&mut self) -> &mut TestApp {
        self.set("delivery.retry_schedule", &["50ms"; 9].join(","))
            .set("delivery.retry_jitter", "0ms")
    }

    /// Runs sidecars in this namespace from now on. Subcommands still run on the host.
    pub fn enter(&mut self, namespace: Arc<Namespace>) -> &mut TestApp {
        self.namespace = Some(namespace);
        self
    }

    /// Builds `walhook ARGUMENTS…` with this app's settings and no others.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.configured(Command::new(&self.program), arguments)
    }

    fn configured(&self, mut command: Command, arguments: &[&str]) -> Command {
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WALHOOK_"))
        {
            command.env_remove(name);
        }

        // Free ports: the default ones would be those of other tests too.
        for key in ["WALHOOK_HTTP__LISTEN", "WALHOOK_HTTP__METRICS_LISTEN"] {
            command.env(key, "127.0.0.1:0");
        }

        for (key, value) in &self.settings {
            command.env(
                format!("WALHOOK_{}", key.replace('.', "__").to_uppercase()),
                value,
            );
        }

        command.envs(&self.environment);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);

        command
    }

    /// Runs a subcommand to completion.
    pub async fn walhook(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output();
        let output = tokio::time::timeout(super::DEADLINE, output).await;
        output
            .unwrap_or_else(|_| panic!("`walhook {}` does not end", arguments.join(" ")))
            .expect("walhook starts")
    }

    /// Runs a subcommand that must succeed. Returns what it printed.
    pub async fn walhook_ok(&self, arguments: &[&str]) -> String {
        let output = self.walhook(arguments).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "`walhook {}`: {}\n{errors}",
            arguments.join(" "),
            output.status
        );

        String::from_utf8(output.stdout).expect("UTF-8 on standard output")
    }

    pub async fn setup(&self) {
        self.walhook_ok(&["setup"]).await;
    }

    /// Starts `walhook run` and waits until it is ready.
    pub async fn run(&mut self) {
        self.run_with(&[]).await;
    }

    /// Like [`TestApp::run`] with further arguments, such as `--roles api`.
    pub async fn run_with(&mut self, arguments: &[&str]) {
        assert!(self.sidecar.is_none(), "it runs already");
        self.sidecar = Some(self.replica(arguments).await);
    }

    /// Starts another replica and waits until it is ready. The caller owns it.
    pub async fn replica(&self, arguments: &[&str]) -> Sidecar {
        let mut sidecar = self.spawn(arguments);
        sidecar.wait_until_ready().await;
        sidecar
    }

    /// Starts `walhook run` on new ports, without waiting for it.
    pub fn spawn(&self, arguments: &[&str]) -> Sidecar {
        let arguments = [&["run"], arguments].concat();
        let Some(namespace) = &self.namespace else {
            return Sidecar::spawn(self.command(&arguments), &self.log_file());
        };

        let command = self.configured(namespace.command(&self.program), &arguments);
        Sidecar::spawn_at(namespace.inside(), command, &self.log_file())
    }

    pub fn sidecar(&mut self) -> &mut Sidecar {
        self.sidecar.as_mut().expect("the sidecar runs")
    }

    /// Kills the running process (SIGKILL).
    pub async fn kill(&mut self) {
        self.sidecar.take().expect("the sidecar runs").kill().await;
    }

    /// Stops it with SIGTERM, and waits for its end.
    pub async fn stop(&mut self) -> ExitStatus {
        self.sidecar.take().expect("the sidecar runs").stop().await
    }

    /// Waits for the end of a process that was signalled.
    pub async fn stop_signalled(&mut self) -> ExitStatus {
        self.sidecar.take().expect("the sidecar runs").ended().await
    }

    pub async fn restart(&mut self) {
        let status = self.stop().await;
        assert!(status.success(), "the sidecar ended with {status}");
        self.run().await;
    }

    /// The file with the standard error of all processes of this app.
    pub fn log_file(&self) -> PathBuf {
        let binary = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_stem()?.to_owned()));
        let binary = binary
            .expect("a test has a name")
            .to_string_lossy()
            .into_owned();
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "{binary}-{}-{}.log",
            std::process::id(),
            self.name
        ))
    }

    /// Opens a connection to the platform's database.
    pub async fn source(&self) -> Client {
        postgres::connect(&self.source_url)
            .await
            .expect("the platform's database")
    }

    /// Opens a connection to the store's database.
    pub async fn store(&self) -> Client {
        postgres::connect(&self.store_url)
            .await
            .expect("the store's database")
    }

    /// Waits until the store has exactly this many events.
    pub async fn wait_for_events(&self, count: usize) {
        let store = self.store().await;
        eventually(&format!("{count} events in the store"), || async {
            let row = store
                .query_one("select count(*) from walhook.event", &[])
                .await
                .unwrap();
            let stored = row.get::<_, i64>(0) as usize;
            assert!(stored <= count, "{stored} events instead of {count}");

            (stored == count).then_some(())
        })
        .await;
    }

    /// Waits until a query of the store returns this number.
    pub async fn wait_for_count(&self, query: &str, count: usize) {
        let store = self.store().await;
        let probe = || async {
            let found: i64 = store.query_one(query, &[]).await.unwrap().get(0);
            (found == count as i64).then_some(())
        };

        eventually(&format!("{query}: {count}"), probe).await;
    }

    /// Waits until the slot is at this position of `primary`, or beyond it.
    pub async fn wait_for_acknowledgement(&self, primary: &Client, end: PgLsn) {
        let confirmed =
            "select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn >= $2";

        eventually("an acknowledgement", async || {
            primary
                .query_opt(confirmed, &[&self.name, &end])
                .await
                .unwrap()
        })
        .await;
    }

    /// Drops the slot, after terminating the session that reads it.
    pub async fn drop_slot(&self) {
        let dropped = format!(
            "do $$ begin
                perform pg_terminate_backend(active_pid, 10000) from pg_replication_slots where slot_name = '{0}';
                perform pg_drop_replication_slot('{0}');
             end $$",
            self.name
        );

        let client = self.source().await;
        eventually("the slot to be dropped", async || {
            client.batch_execute(&dropped).await.ok()
        })
        .await;
    }

    /// Returns a client that acts as the platform.
    pub async fn platform(&self) -> Platform {
        Platform::new(self.source().await)
    }

    /// Returns a client of the management API with a new token of `user`.
    pub async fn api(&self, user: &str) -> Api {
        let sidecar = self.sidecar.as_ref().expect("the sidecar runs");
        Api::new(&sidecar.api_url, &self.token(user).await)
    }

    /// Creates a token of `user`, even if the platform has no such user.
    pub async fn token(&self, user: &str) -> String {
        self.walhook_ok(&["token", "create", "--force", "--user", user])
            .await
            .trim()
            .to_owned()
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.log_file()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(60)..].join("\n");

            eprintln!(
                "--- the last lines of the sidecar's log ({}):\n{last}\n---",
                self.log_file().display()
            );
        } else {
            let _ = std::fs::remove_file(self.log_file());
        }
    }
}
