//! The receiver: a process of its own, as fast as can be, that answers as the path says, counts distinct deliveries, and
//! checks a sample of their signatures. It is told what to do on standard input and answers there, a line for a line.

mod request;
mod served;

pub use served::{ANSWER, serve};

use std::process::Stdio;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The hidden subcommand that is this process.
pub const COMMAND: &str = "receiver";

#[derive(Serialize, Deserialize)]
pub enum Question {
    /// A webhook's secret: deliveries to it are checked from now on.
    Secret {
        webhook: String,
        secret: String,
    },
    /// Counts begin anew.
    Reset,
    Status,
    /// When which row's event came, since the last reset.
    Receipts,
    /// The first delivery that ever came, as it was on the wire.
    Sample,
}

/// What came since the last reset. Times are microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    pub requests: u64,
    /// Deliveries, by their ids.
    pub distinct: u64,
    pub checked: u64,
    /// Signatures that are not right.
    pub wrong: u64,
    /// Events of rows that are timed.
    pub receipts: u64,
    pub first_at: u64,
    /// When the last new delivery came.
    pub last_at: u64,
}

/// When the event of a `distro_queue` row came, in microseconds since 1970.
pub type Receipt = (u64, u64);

/// The bench's end of it.
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
        let address = answers.next_line().await?.context("the receiver did not start")?;
        Ok(Receiver { child, questions, answers, address })
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Where deliveries are answered 200 at once.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Where they are answered only after so many milliseconds.
    pub fn slow_url(&self, milliseconds: u64) -> String {
        format!("http://{}/slow/{milliseconds}", self.address)
    }

    /// Where they are never answered.
    pub fn hanging_url(&self) -> String {
        format!("http://{}/hang", self.address)
    }

    pub async fn trust(&mut self, webhook: &str, secret: &str) -> anyhow::Result<()> {
        self.ask::<()>(Question::Secret { webhook: webhook.to_owned(), secret: secret.to_owned() }).await
    }

    pub async fn reset(&mut self) -> anyhow::Result<()> {
        self.ask(Question::Reset).await
    }

    /// Fails when a signature was wrong.
    pub async fn status(&mut self) -> anyhow::Result<Status> {
        let status: Status = self.ask(Question::Status).await?;
        if status.wrong > 0 {
            bail!("{} of {} signatures that were checked are wrong", status.wrong, status.checked);
        }
        Ok(status)
    }

    pub async fn receipts(&mut self) -> anyhow::Result<Vec<Receipt>> {
        self.ask(Question::Receipts).await
    }

    /// The bytes of a delivery that was received: request line, headers and body.
    pub async fn sample(&mut self) -> anyhow::Result<String> {
        self.ask::<Option<String>>(Question::Sample).await?.context("nothing was delivered yet")
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    async fn ask<T: serde::de::DeserializeOwned>(&mut self, question: Question) -> anyhow::Result<T> {
        let line = format!("{}\n", serde_json::to_string(&question)?);
        self.questions.write_all(line.as_bytes()).await.context("the receiver has ended")?;
        let answer = self.answers.next_line().await?.context("the receiver has ended")?;
        serde_json::from_str(&answer).with_context(|| format!("the receiver says {answer}"))
    }
}
