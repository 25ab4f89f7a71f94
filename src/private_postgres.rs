//! A private PostgreSQL server for tests, benchmarks and the demo. It runs the installed programs
//! in a temporary directory, listens on loopback, and is stopped and removed when the process that
//! started it ends, even if that process is killed.
//!
//! Not `postgresql_embedded`, which installs its own PostgreSQL and depends on sqlx, nor `pgtemp`,
//! which stops its server in `Drop`: if the process is killed, the server remains.

use std::fs::DirBuilder;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::postgres;
use crate::vault::random_bytes;

/// The environment variable that names the directory of PostgreSQL's programs, instead of a search.
pub const BIN_VARIABLE: &str = "WALHOOK_PG_BIN";

const SUPERUSER: &str = "postgres";
/// Below the range of ephemeral ports, so that a restarted server gets its port again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const START_ATTEMPTS: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum PrivatePostgresError {
    #[error(
        "PostgreSQL is not installed (no initdb in ${BIN_VARIABLE}, pg_config's directory, PATH or /usr/lib/postgresql): \
         install it with `apt-get install postgresql`, or set {BIN_VARIABLE}"
    )]
    NotInstalled,
    #[error("{program} failed: {detail}")]
    Command { program: String, detail: String },
    #[error("cannot {action}: {source}")]
    Io {
        action: String,
        source: std::io::Error,
    },
    #[error(transparent)]
    Connect(#[from] postgres::ConnectError),
    #[error("{}", postgres::describe(.0))]
    Sql(#[from] tokio_postgres::Error),
}

type Result<T> = std::result::Result<T, PrivatePostgresError>;

fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> PrivatePostgresError {
    let action = action.into();
    move |source| PrivatePostgresError::Io { action, source }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Whether commits are flushed to disk. Off is faster, but a crash of the machine corrupts the
    /// data.
    pub fsync: bool,
    /// Settings for postgresql.conf, which override those of this module.
    pub settings: &'a [(&'a str, &'a str)],
    /// The directory of PostgreSQL's programs, instead of a search.
    pub programs: Option<&'a Path>,
    /// Environment variables of the server.
    pub environment: &'a [(&'a str, &'a str)],
    /// The data of a stopped server to start with a copy of, instead of a new cluster.
    pub data: Option<&'a Path>,
}

/// How to stop the server: `Fast` disconnects clients and writes a checkpoint, `Immediate` is like
/// a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    Fast,
    Immediate,
}

impl StopMode {
    const fn as_str(self) -> &'static str {
        match self {
            StopMode::Fast => "fast",
            StopMode::Immediate => "immediate",
        }
    }
}

/// A server that runs, or was stopped by [`PrivatePostgres::stop`]. Dropping it stops the server
/// and removes its directory.
#[derive(Debug)]
pub struct PrivatePostgres {
    bin: PathBuf,
    directory: PathBuf,
    port: u16,
    environment: Vec<(String, String)>,
    /// Waits on a pipe for the end of this process, then stops the server and removes the
    /// directory.
    janitor: Child,
}

impl PrivatePostgres {
    /// Creates a cluster and starts it.
    pub async fn start(options: Options<'_>) -> Result<PrivatePostgres> {
        let bin = match options.programs {
            Some(programs) => programs.to_owned(),
            None => find_programs().await?,
        };

        let mut server = PrivatePostgres::new(bin, options.environment).await?;

        match options.data {
            Some(data) => {
                let mut command = tokio::process::Command::new("cp");
                let target = server.data_dir();
                run("cp", command.arg("-a").arg(data).arg(target)).await?;
            }
            None => server.init().await?,
        }

        server.start_on_free_port(&options).await?;

        Ok(server)
    }

    /// Creates an empty directory and the process that will remove it.
    async fn new(bin: PathBuf, environment: &[(&str, &str)]) -> Result<PrivatePostgres> {
        let directory = std::env::temp_dir().join(format!(
            "walhook-postgres-{}",
            uuid::Uuid::now_v7().simple()
        ));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(io(format!("create {}", directory.display())))?;

        let janitor = start_janitor(&bin, &directory)
            .inspect_err(|_| drop(std::fs::remove_dir(&directory)))?;

        if is_root() {
            let mut command = tokio::process::Command::new("chown");
            run("chown", command.arg(SUPERUSER).arg(&directory)).await?;
        }

        let environment = environment
            .iter()
            .map(|(name, value)| (String::from(*name), String::from(*value)))
            .collect();
        Ok(PrivatePostgres {
            bin,
            directory,
            port: 0,
            environment,
            janitor,
        })
    }

    async fn start_on_free_port(&mut self, options: &Options<'_>) -> Result<()> {
        let mut attempt = 1;

        loop {
            self.port = free_port().map_err(io("find a free port"))?;
            self.configure(options)?;

            match self.start_again().await {
                // Another process may have taken the port meanwhile.
                Err(_) if attempt < START_ATTEMPTS => attempt += 1,
                other => return other,
            }
        }
    }

    async fn init(&self) -> Result<()> {
        let mut command = self.program("initdb");
        command.args([
            "--username",
            SUPERUSER,
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
        ]);

        run("initdb", command.arg("-D").arg(self.data_dir())).await
    }

    fn configure(&self, options: &Options<'_>) -> Result<()> {
        let path = self.data_dir().join("postgresql.auto.conf");
        let durable = if options.fsync { "on" } else { "off" };
        let port = self.port.to_string();
        let directory = self.directory.display().to_string();

        let settings: [(&str, &str); 11] = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &port),
            ("unix_socket_directories", &directory),
            ("wal_level", "logical"),
            ("fsync", durable),
            ("full_page_writes", durable),
            ("max_connections", "200"),
            // One server may carry a whole test binary, with a slot for each test.
            ("max_wal_senders", "50"),
            ("max_replication_slots", "200"),
            ("max_prepared_transactions", "10"),
            ("shared_buffers", "64MB"),
        ];

        // The last of several lines for a setting takes effect.
        let lines = settings
            .iter()
            .chain(options.settings)
            .map(|(name, value)| {
                let value = value.replace('\'', "''");
                format!("{name} = '{value}'\n")
            });

        std::fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut file| file.write_all(lines.collect::<String>().as_bytes()))
            .map_err(io(format!("write {}", path.display())))
    }

    /// Starts the server after a `stop`, on the same port. Returns when it accepts connections.
    pub async fn start_again(&self) -> Result<()> {
        let log = self.log_file();
        let mut command = self.control("start");
        command.arg("-l").arg(&log).args(["-w", "-t", "60"]);

        run("pg_ctl start", &mut command).await.map_err(|error| {
            let detail = format!(
                "{error}; the last lines of the server's log: {}",
                last_lines(&log, 5)
            );
            PrivatePostgresError::Command {
                program: "pg_ctl start".into(),
                detail,
            }
        })
    }

    /// Stops the server and keeps its data. Returns when it has ended.
    pub async fn stop(&self, mode: StopMode) -> Result<()> {
        let mut command = self.control("stop");
        run(
            "pg_ctl stop",
            command.args(["-m", mode.as_str(), "-w", "-t", "60"]),
        )
        .await
    }

    /// Stops and starts the server, with the same data on the same port.
    pub async fn restart(&self, mode: StopMode) -> Result<()> {
        self.stop(mode).await?;
        self.start_again().await
    }

    pub async fn create_database(&self, name: &str) -> Result<()> {
        let client = postgres::connect(&self.url(SUPERUSER)).await?;
        let statement = format!("create database {}", postgres::quote_identifier(name));
        Ok(client.batch_execute(&statement).await?)
    }

    /// Returns a URL for `database`, as the superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Like [`PrivatePostgres::url`], by the server's Unix socket, which costs less than TCP.
    pub fn socket_url(&self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}@/{database}?host={}&port={}",
            self.directory.display(),
            self.port
        )
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the process id of the server, while it runs.
    pub fn pid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.data_dir().join("postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }

    /// Returns the directory that contains the cluster and its Unix socket.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub fn log_file(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// Starts a standby of this server: a clone on a server of its own.
    pub async fn start_standby(&self, options: Options<'_>) -> Result<PrivatePostgres> {
        let copy = format!("copy-{}", uuid::Uuid::now_v7());
        let copy = self.directory.join(copy);
        let port = self.port().to_string();
        let mut backup = self.program("pg_basebackup");

        backup
            .args(["-R", "-c", "fast", "-h", "127.0.0.1", "-U", "postgres"])
            .args(["-p", &port, "-D"])
            .arg(&copy);
        run("pg_basebackup", &mut backup).await?;

        let connection = format!("host=127.0.0.1 port={port} user=postgres");
        let own = [("primary_conninfo", connection.as_str())];

        PrivatePostgres::start(Options {
            settings: &[options.settings, &own].concat(),
            data: Some(&copy),
            ..options
        })
        .await
    }

    /// Builds a command for one of PostgreSQL's programs, to run as the owner of the cluster.
    pub fn program(&self, name: &str) -> tokio::process::Command {
        let words = as_owner(&self.bin.join(name));
        let mut command = tokio::process::Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .kill_on_drop(true);

        command
    }

    fn control(&self, action: &str) -> tokio::process::Command {
        let mut command = self.program("pg_ctl");
        command
            .arg(action)
            .arg("-D")
            .arg(self.data_dir())
            .envs(self.environment.iter().cloned());

        command
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        // The janitor starts when its input ends.
        drop(self.janitor.stdin.take());

        if let Err(error) = self.janitor.wait() {
            tracing::warn!(%error, directory = %self.directory.display(), "a private PostgreSQL server was not removed");
        }
    }
}

/// Starts a process in its own process group, which survives Ctrl-C and the death of this process.
/// When the pipe to it closes, it stops the server and removes the directory.
fn start_janitor(bin: &Path, directory: &Path) -> Result<Child> {
    const SCRIPT: &str =
        r#"cat >/dev/null; cd /; directory=$1; shift; "$@"; rm -rf -- "$directory""#;
    std::process::Command::new("sh")
        .args(["-c", SCRIPT, "walhook-janitor"])
        .arg(directory)
        .args(as_owner(&bin.join("pg_ctl")))
        .args(["stop", "-m", "immediate", "-w", "-D"])
        .arg(directory.join("data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(io("start sh"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Builds the command line for a program. As root, it runs as the user of the PostgreSQL package:
/// the server refuses to run as root.
pub fn as_owner(program: &Path) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = Vec::new();

    if is_root() {
        words.extend(
            [
                "setpriv",
                "--reuid",
                SUPERUSER,
                "--regid",
                SUPERUSER,
                "--init-groups",
                "--",
            ]
            .map(Into::into),
        );
    }

    words.push(program.into());
    words
}

async fn run(name: &str, command: &mut tokio::process::Command) -> Result<()> {
    let output: Output = command.output().await.map_err(io(format!("run {name}")))?;
    if output.status.success() {
        return Ok(());
    }

    let printed = [output.stderr, output.stdout].concat();
    let detail = format!(
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&printed).trim()
    );
    Err(PrivatePostgresError::Command {
        program: name.into(),
        detail,
    })
}

/// Finds the directory that contains initdb, pg_ctl and postgres.
async fn find_programs() -> Result<PathBuf> {
    let has_programs = |directory: &PathBuf| {
        directory.join("initdb").is_file() && directory.join("pg_ctl").is_file()
    };

    if let Some(directory) = std::env::var_os(BIN_VARIABLE) {
        return Some(PathBuf::from(directory))
            .filter(has_programs)
            .ok_or(PrivatePostgresError::NotInstalled);
    }

    let mut candidates = Vec::new();

    if let Some(pg_config) = std::env::var_os("PG_CONFIG")
        && let Ok(output) = tokio::process::Command::new(pg_config)
            .arg("--bindir")
            .output()
            .await
    {
        candidates.push(PathBuf::from(
            String::from_utf8_lossy(&output.stdout).trim(),
        ));
    }

    candidates.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    candidates.extend(
        versions_below(Path::new("/usr/lib/postgresql"))
            .into_iter()
            .map(|(_, programs)| programs),
    );

    let found = candidates
        .into_iter()
        .find(has_programs)
        .ok_or(PrivatePostgresError::NotInstalled)?;

    // Some directories contain only links to single programs. All programs are in the directory
    // that the link leads to.
    let linked = found
        .join("initdb")
        .canonicalize()
        .ok()
        .and_then(|program| Some(program.parent()?.to_owned()));
    Ok(linked.filter(has_programs).unwrap_or(found))
}

/// Finds programs in a directory with one directory per major version, as in Debian. The newest
/// comes first.
pub fn versions_below(root: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let version = |entry: std::fs::DirEntry| {
        Some((
            entry.file_name().to_str()?.parse().ok()?,
            entry.path().join("bin"),
        ))
    };

    let mut versions: Vec<(u32, PathBuf)> = entries.filter_map(version).collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));

    versions
}

/// Returns a port on 127.0.0.1 that is free, is not ephemeral, and was not returned by an earlier
/// call.
pub fn free_port() -> std::io::Result<u16> {
    static NEXT: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new(u16::from_be_bytes(random_bytes())));
    let width = PORTS.end - PORTS.start;
    let candidates = (0..width).map(|_| PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % width);
    let mut free = candidates.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());

    free.next()
        .ok_or_else(|| std::io::Error::other(format!("all ports in {PORTS:?} are in use")))
}

fn last_lines(path: &Path, count: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join(" | ")
}
