//! The receiver: a separate process that responds as the request's path specifies, counts distinct
//! deliveries, and verifies a sample of the signatures. It reads questions from standard input and
//! answers each with one line.

mod behavior;
mod request;
mod served;

pub use behavior::{ANSWER, Kind};
pub use served::serve;

use std::process::Stdio;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The hidden subcommand that runs this process.
pub const COMMAND: &str = "receiver";

/// A request to the receiver process: one line of JSON.
#[derive(Serialize, Deserialize)]
pub enum Question {
    /// Sets a webhook's secret: signatures of its deliveries are verified from now on.
    Secret {
        webhook: String,
        secret: String,
    },
    /// Resets the counts.
    Reset,
    Status,
    /// Returns the rows whose events were received since the last reset, with the times.
    Receipts,
    /// Returns the bytes of the first received delivery.
    Sample,
    /// Returns what the receivers of each kind have received since the last reset.
    Reached,
}

/// Counts since the last reset. Times are microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    pub requests: u64,
    /// Distinct deliveries.
    pub distinct: u64,
    pub checked: u64,
    /// Wrong signatures.
    pub wrong: u64,
    /// Received events of timed rows.
    pub receipts: u64,
    pub first_at: u64,
    /// When the last new delivery was received.
    pub last_at: u64,
}

/// What the receivers of one kind have received since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    pub requests: u64,
    /// Distinct webhooks.
    pub webhooks: u64,
    /// When the last of them got its first request, in microseconds since 1970.
    pub last_at: u64,
    /// Requests now in progress.
    pub open: u64,
}

/// A `distro_queue` row, and when its event was received, in microseconds since 1970.
pub type Receipt = (u64, u64);

/// The benchmark's handle of the receiver process.
pub struct Receiver {
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Receiver {
    pub async fn start() -> anyhow::Result<Receiver> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the receiver")?;

        let questions = child.stdin.take().context("the receiver has no input")?;
        let output = child.stdout.take().context("the receiver has no output")?;
        let mut answers = BufReader::new(output).lines();
        let address = answers
            .next_line()
            .await?
            .context("the receiver did not start")?;

        Ok(Receiver {
            child,
            questions,
            answers,
            address,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Returns a URL that responds with 200 immediately.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Returns a URL that responds after a number of milliseconds.
    pub fn slow_url(&self, milliseconds: u64) -> String {
        format!("http://{}/slow/{milliseconds}", self.address)
    }

    /// Returns a URL that never responds.
    pub fn hanging_url(&self) -> String {
        self.url_of(Kind::Hang)
    }

    /// Returns a URL that responds in this way, and whose requests are counted for each webhook.
    pub fn url_of(&self, kind: Kind) -> String {
        format!("http://{}/{}", self.address, kind.path())
    }

    pub async fn trust(&mut self, webhook: &str, secret: &str) -> anyhow::Result<()> {
        self.ask::<()>(Question::Secret {
            webhook: webhook.to_owned(),
            secret: secret.to_owned(),
        })
        .await
    }

    pub async fn reset(&mut self) -> anyhow::Result<()> {
        self.ask(Question::Reset).await
    }

    /// Fails if a signature was wrong.
    pub async fn status(&mut self) -> anyhow::Result<Status> {
        let status: Status = self.ask(Question::Status).await?;
        if status.wrong > 0 {
            bail!(
                "{} of {} signatures that were checked are wrong",
                status.wrong,
                status.checked
            );
        }

        Ok(status)
    }

    /// Returns what the receivers of each kind have received since the last reset, in the order of
    /// [`Kind::ALL`].
    pub async fn reached(&mut self) -> anyhow::Result<Vec<(Kind, Reached)>> {
        self.ask(Question::Reached).await
    }

    pub async fn receipts(&mut self) -> anyhow::Result<Vec<Receipt>> {
        self.ask(Question::Receipts).await
    }

    /// Returns the bytes of a received delivery: request line, headers and body.
    pub async fn sample(&mut self) -> anyhow::Result<String> {
        self.ask::<Option<String>>(Question::Sample)
            .await?
            .context("nothing was delivered yet")
    }

    /// The address that it listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        question: Question,
    ) -> anyhow::Result<T> {
        let line = format!("{}\n", serde_json::to_string(&question)?);
        self.questions
            .write_all(line.as_bytes())
            .await
            .context("the receiver has ended")?;

        let answer = self
            .answers
            .next_line()
            .await?
            .context("the receiver has ended")?;
        serde_json::from_str(&answer).with_context(|| format!("the receiver printed {answer}"))
    }
}
