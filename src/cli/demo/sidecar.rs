//! Runs this program's subcommands as child processes, configured by the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use tokio::process::{Child, Command};

use super::client::Client;
use crate::private_postgres::free_port;
use crate::vault::random_bytes;

const START_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than the sidecar needs to drain.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// An installation of Walhook: the program, its settings, and its addresses.
pub struct Installation {
    program: PathBuf,
    environment: Vec<(&'static str, String)>,
    log: PathBuf,
    pub base_url: String,
    pub metrics_url: String,
}

impl Installation {
    pub fn new(
        source_url: String,
        store_url: String,
        log: PathBuf,
    ) -> anyhow::Result<Installation> {
        let listen = || -> anyhow::Result<String> { Ok(format!("127.0.0.1:{}", free_port()?)) };
        let api = listen()?;
        let metrics = listen()?;
        let master_key = base64::engine::general_purpose::STANDARD.encode(random_bytes::<32>());
        let base_url = format!("http://{api}");
        let metrics_url = format!("http://{metrics}");

        let environment = vec![
            ("WALHOOK_SOURCE__URL", source_url),
            ("WALHOOK_STORE__URL", store_url),
            ("WALHOOK_SECRETS__MASTER_KEY", master_key),
            ("WALHOOK_HTTP__LISTEN", api),
            ("WALHOOK_HTTP__METRICS_LISTEN", metrics),
            // The demo's receiver has neither a certificate nor a public address.
            ("WALHOOK_DELIVERY__ALLOW_HTTP", "true".into()),
            ("WALHOOK_DELIVERY__ALLOW_NETWORKS", "127.0.0.0/8".into()),
        ];

        Ok(Installation {
            program: std::env::current_exe()?,
            environment,
            log,
            base_url,
            metrics_url,
        })
    }

    pub fn api_url(&self) -> String {
        format!("{}/api/public", self.base_url)
    }

    fn command(&self, arguments: Vec<OsString>) -> Command {
        let mut command = Command::new(&arguments[0]);

        // Settings in the caller's environment are meant for another sidecar.
        let inherited = std::env::vars_os().map(|(name, _)| name);
        for name in inherited.filter(|name| name.to_string_lossy().starts_with("WALHOOK_")) {
            command.env_remove(name);
        }

        command
            .args(&arguments[1..])
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a subcommand to completion. Returns what it printed.
    pub async fn walhook(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut words = vec![self.program.clone().into_os_string()];
        words.extend(arguments.iter().map(OsString::from));

        let name = format!("walhook {}", arguments.join(" "));
        let output = self
            .command(words)
            .output()
            .await
            .with_context(|| format!("cannot run `{name}`"))?;
        if !output.status.success() {
            bail!(
                "`{name}` failed ({}): {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }

        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Starts `walhook run` and waits until it is ready.
    pub async fn run(&self, client: &Client) -> anyhow::Result<Sidecar> {
        let log = std::fs::File::create(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut arguments = terminated_with_parent();

        arguments.extend([self.program.clone().into_os_string(), "run".into()]);

        // In its own process group, so that Ctrl-C does not reach it: the demo stops it after
        // everything that depends on it.
        let child = self
            .command(arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()?;

        let mut sidecar = Sidecar {
            child,
            log: self.log.clone(),
        };

        let ready = async {
            while !client.is_ready(&self.metrics_url).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };

        let started = tokio::select! {
            error = sidecar.failed() => Err(error),
            ready = tokio::time::timeout(START_DEADLINE, ready) => {
                ready.map_err(|_| anyhow::anyhow!("the sidecar is not ready within {START_DEADLINE:?}"))
            }
        };

        started.with_context(|| sidecar.log_tail())?;
        Ok(sidecar)
    }
}

/// A running `walhook run`, killed when dropped.
pub struct Sidecar {
    child: Child,
    log: PathBuf,
}

impl Sidecar {
    /// Waits until the sidecar ends unexpectedly, and returns that as an error.
    pub async fn failed(&mut self) -> anyhow::Error {
        let status = self
            .child
            .wait()
            .await
            .map_or_else(|error| error.to_string(), |status| status.to_string());
        anyhow::anyhow!("the sidecar ended unexpectedly ({status})")
    }

    /// Returns the last lines of its log, as context of an error.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!(
            "the last lines of the sidecar's log:\n{}\n",
            lines[lines.len().saturating_sub(20)..].join("\n")
        )
    }

    /// Stops the sidecar by SIGTERM, and waits for its end.
    pub async fn stop(mut self) -> anyhow::Result<ExitStatus> {
        let pid = self
            .child
            .id()
            .and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }

        let end = tokio::time::timeout(STOP_DEADLINE, self.child.wait()).await;
        Ok(end.context("the sidecar does not stop")??)
    }
}

/// A command prefix that terminates the sidecar when the demo is killed, if `setpriv` is installed.
/// The signal is bound to the thread that starts the child: that is the main thread, which lives as
/// long as the process.
fn terminated_with_parent() -> Vec<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .any(|directory| Path::new(&directory).join("setpriv").is_file());
    if found {
        ["setpriv", "--pdeathsig", "TERM", "--"]
            .map(OsString::from)
            .to_vec()
    } else {
        Vec::new()
    }
}
