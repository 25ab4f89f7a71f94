//! A real mail server that records its messages: aiosmtpd.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use super::{DEADLINE, skip};

/// The distribution's Python, which has the distribution's packages.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/smtp_sink.py");

/// A running mail server. It ends when dropped.
pub struct SmtpSink {
    _process: Child,
    events: Arc<Mutex<Vec<Value>>>,
    happened: Arc<Notify>,
}

impl SmtpSink {
    /// Whether aiosmtpd is installed.
    pub fn is_available() -> bool {
        let python = std::process::Command::new(PYTHON)
            .args(["-c", "import aiosmtpd"])
            .stderr(Stdio::null())
            .status();
        python.is_ok_and(|status| status.success()) || skip("python3-aiosmtpd is not installed")
    }

    /// Listens on `port` of loopback, with the script's `options`.
    pub async fn start(port: u16, options: &[&str]) -> SmtpSink {
        let mut command = Command::new(PYTHON);
        command
            .arg(SCRIPT)
            .args(["--port", &port.to_string()])
            .args(options)
            .kill_on_drop(true);

        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let sink = SmtpSink {
            _process: process,
            events: Arc::default(),
            happened: Arc::default(),
        };

        let events = sink.events.clone();
        let happened = sink.happened.clone();

        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let event =
                    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                events
                    .lock()
                    .expect("nobody panics with this lock")
                    .push(event);
                happened.notify_waiters();
            }
        });

        sink.wait_for("listening", 1).await;
        sink
    }

    /// Returns what has happened so far, of one kind: `taken`, `refused`, `forbidden`, `hung`.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let events = self.events.lock().expect("nobody panics with this lock");
        events
            .iter()
            .filter(|event| event["event"] == kind)
            .cloned()
            .collect()
    }

    /// Waits until at least `count` of a kind have happened.
    pub async fn wait_for(&self, kind: &str, count: usize) -> Vec<Value> {
        let wait = async {
            loop {
                let happened = self.happened.notified();
                tokio::pin!(happened);

                // Before the check, so that nothing between check and wait is missed.
                happened.as_mut().enable();
                let events = self.events(kind);
                if events.len() >= count {
                    return events;
                }

                happened.await;
            }
        };

        let waited = tokio::time::timeout(DEADLINE, wait).await;
        waited.unwrap_or_else(|_| {
            panic!(
                "not within {DEADLINE:?}: {count} {kind}; there are {:?}",
                self.events
            )
        })
    }
}
