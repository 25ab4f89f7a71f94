//! A running `walhook run`.

use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use walhook::private_postgres::free_port;

use super::api::get;
use super::{DEADLINE, POLL};

/// A sidecar process. Killed when dropped.
pub struct Sidecar {
    child: Child,
    log: PathBuf,
    /// The management API with its base path.
    pub api_url: String,
    /// `/metrics`, `/healthz` and `/readyz`.
    pub metrics_url: String,
}

impl Sidecar {
    pub fn spawn(command: Command, log: &Path) -> Sidecar {
        Sidecar::spawn_at(Ipv4Addr::LOCALHOST.into(), command, log)
    }

    /// Spawns a sidecar that listens on `address`, such as in another namespace.
    pub fn spawn_at(address: IpAddr, mut command: Command, log: &Path) -> Sidecar {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log file");
        let listen = || format!("{address}:{}", free_port().expect("a free port"));
        let api = listen();
        let metrics = listen();

        command
            .env("WALHOOK_HTTP__LISTEN", &api)
            .env("WALHOOK_HTTP__METRICS_LISTEN", &metrics);
        let child = command
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("walhook starts");
        Sidecar {
            child,
            log: log.to_owned(),
            api_url: format!("http://{api}/api/public"),
            metrics_url: format!("http://{metrics}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it has not been waited for")
    }

    /// Waits until `/readyz` succeeds. Panics if the process ends.
    pub async fn wait_until_ready(&mut self) {
        let url = format!("{}/readyz", self.metrics_url);
        let end = tokio::time::Instant::now() + DEADLINE;
        let mut last = "no answer".to_owned();

        while tokio::time::Instant::now() < end {
            if let Some(status) = self
                .child
                .try_wait()
                .expect("a child can be asked for its end")
            {
                panic!("the sidecar ended with {status}: {}", self.log());
            }

            match get(&url).await {
                Some((200, _)) => return,
                Some((status, body)) => last = format!("{status} {body}"),
                None => {}
            }

            tokio::time::sleep(POLL).await;
        }

        panic!(
            "the sidecar is not ready within {DEADLINE:?} ({last}): {}",
            self.log()
        );
    }

    /// Waits until it has started to shut down and no longer listens.
    pub async fn wait_until_not_ready(&self) {
        super::eventually("the listeners' end", || async {
            self.readiness().await.is_none().then_some(())
        })
        .await;
    }

    /// Returns the current response of `/readyz`, if any.
    pub async fn readiness(&self) -> Option<(u16, String)> {
        get(&format!("{}/readyz", self.metrics_url)).await
    }

    /// Returns the value of a metric, with labels as Prometheus writes them:
    /// `walhook_events_total{event="…"}`.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = get(&format!("{}/metrics", self.metrics_url)).await?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// Waits until a metric has this value. Metrics change a moment after what they count.
    pub async fn wait_for_metric(&self, name: &str, value: f64) {
        let what = format!("{name} to be {value}");
        super::eventually(&what, async || {
            (self.metric(name).await == Some(value)).then_some(())
        })
        .await;
    }

    /// Returns the peak resident memory of the process.
    pub fn peak_memory_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    /// Returns the resident memory of the process.
    pub fn resident_memory_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    fn memory_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the process runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("the kernel counts");
        line.trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number of kB")
    }

    pub async fn kill(mut self) {
        // It may have ended already.
        let _ = self.child.start_kill();
        self.child.wait().await.expect("a child can be waited for");
    }

    /// Sends `signal` without waiting.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a process id"), signal)
            .expect("a child can be signalled");
    }

    /// Sends SIGTERM, and waits for the end.
    pub async fn stop(mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.ended().await
    }

    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be asked for its end")
            .is_some()
    }

    /// Waits for the end of the process.
    pub async fn ended(&mut self) -> ExitStatus {
        let end = tokio::time::timeout(DEADLINE + Duration::from_secs(15), self.child.wait()).await;
        let end = end.unwrap_or_else(|_| panic!("the sidecar does not end: {}", self.log()));
        end.expect("a child can be waited for")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
