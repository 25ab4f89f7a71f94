//! Waits until the primary shows the transactions that the stream has brought.
//!
//! A logical walsender sends a commit as soon as it is flushed locally. Under synchronous replication the application still
//! waits for a standby then: no session sees the commit, and a failover undoes it. So nothing of such a transaction is handed
//! on, stored or acknowledged before a snapshot of the primary sees it.
//!
//! The wait itself has no limit. The stream could only begin again and wait for the same transactions, and each new connection
//! would leave one more heartbeat on the primary that waits for the standby. A wait that lasts is reported instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres_types::Type;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_util::task::AbortOnDropHandle;

use super::{CaptureError, Context, identity};
use crate::config::{AwaitVisibility, Source};
use crate::domain::lsn::Lsn;
use crate::health::Health;
use crate::postgres;
use crate::retry::Backoff;
use crate::telemetry::Condition;

const TRANSACTIONS_INVISIBLE: &str = include_str!("../../../sql/primary/transactions_invisible.sql");

/// The name under which the wait is reported.
const VISIBILITY: &str = "visibility";
/// A commit is visible microseconds after its flush, or after the round trip to a standby.
const POLLS: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
/// A primary that does not answer for this long is connected to again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than a standby that works takes, also one that restarts its connection.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// How many transactions may be received before their visibility is waited for, when none of them has changes for us.
const MAX_UNASKED: usize = 10_000;

static WAITING: Condition = Condition::new();

/// Whether transactions are waited for. Clones share what was learned last.
#[derive(Clone, Debug)]
pub(in crate::capture) struct Required {
    setting: AwaitVisibility,
    synchronous: Arc<AtomicBool>,
}

impl Required {
    pub fn new(setting: AwaitVisibility) -> Required {
        Required { setting, synchronous: Arc::default() }
    }

    /// Whether the answer depends on the server's settings.
    pub fn depends(&self) -> bool {
        self.setting == AwaitVisibility::Auto
    }

    /// Learns whether the server's commits wait for a standby.
    pub fn learn(&self, synchronous: bool) {
        self.synchronous.store(synchronous, Ordering::Relaxed);
    }

    fn holds(&self) -> bool {
        match self.setting {
            AwaitVisibility::Auto => self.synchronous.load(Ordering::Relaxed),
            AwaitVisibility::Always => true,
            AwaitVisibility::Never => false,
        }
    }
}

struct Question {
    transactions: Vec<u32>,
    /// Whether the tables and their publication are looked at too.
    suspect: bool,
    /// How much was received by then, and the end of the last whole transaction.
    received: u64,
    end: Lsn,
}

/// What is visible: so much of what was received, and everything up to this position.
#[derive(Clone, Copy, Debug, Default)]
struct Visible {
    received: u64,
    end: Lsn,
}

/// Keeps changes back until their transactions are visible, and until it is sure that the stream still has everything where it
/// shows that the tables or their publication have changed. Questions are asked by a task of its own, so that the stream goes on
/// acknowledging meanwhile. Without a need to ask, it costs nothing.
pub(in crate::capture) struct Gate {
    required: Required,
    /// How many transactions and suspicions there were.
    received: u64,
    /// Transactions received that no question has named yet.
    unasked: Vec<u32>,
    suspect: bool,
    questions: mpsc::Sender<Question>,
    visible: watch::Receiver<Visible>,
    task: AbortOnDropHandle<Result<(), CaptureError>>,
}

impl Gate {
    /// For a stream that comes from `timeline`.
    pub fn start(context: &Context<'_>, timeline: u32, required: Required) -> Gate {
        // One question that is answered, and one that waits.
        let (questions, asked) = mpsc::channel(1);
        let (answers, visible) = watch::channel(Visible::default());
        let Context { source, url, health, .. } = *context;
        let report = Report { health: health.clone() };
        let asker = Asker { source: source.clone(), url: url.to_owned(), timeline, client: None, report };
        let task = AbortOnDropHandle::new(tokio::spawn(asker.run(asked, answers)));
        Gate { required, received: 0, unasked: Vec::new(), suspect: false, questions, visible, task }
    }

    /// Takes note of a transaction that the stream has begun to bring.
    pub fn receive(&mut self, transaction: u32) {
        if self.required.holds() {
            self.received += 1;
            self.unasked.push(transaction);
        }
    }

    /// Lets nothing pass before the tables and their publication were looked at.
    pub fn suspect(&mut self) {
        if !self.suspect {
            self.received += 1;
        }
        self.suspect = true;
    }

    /// Whether everything received is visible, or need not be.
    pub fn is_open(&self) -> bool {
        self.visible.borrow().received >= self.received
    }

    /// Whether too many transactions were received to go on without a look.
    pub fn is_full(&self) -> bool {
        self.unasked.len() >= MAX_UNASKED
    }

    /// Returns when everything received is visible. `end` is the end of the last whole transaction. Dropping the future loses
    /// nothing.
    pub async fn passed(&mut self, end: Lsn) -> Result<(), CaptureError> {
        if self.has_unasked() {
            // A handle of its own: the permit must not borrow what the question takes.
            let questions = self.questions.clone();
            let Ok(permit) = questions.reserve().await else { return Err(self.fault().await) };
            permit.send(self.question(end));
        }
        let received = self.received;
        let passed = self.visible.wait_for(|visible| visible.received >= received).await.is_ok();
        if passed { Ok(()) } else { Err(self.fault().await) }
    }

    /// Asks about what was received, without waiting for the answer.
    pub async fn ask(&mut self, end: Lsn) -> Result<(), CaptureError> {
        if self.task.is_finished() {
            return Err(self.fault().await);
        }
        let questions = self.questions.clone();
        if let Some(permit) = questions.try_reserve().ok().filter(|_| self.has_unasked()) {
            permit.send(self.question(end));
        }
        Ok(())
    }

    fn has_unasked(&self) -> bool {
        self.suspect || !self.unasked.is_empty()
    }

    fn question(&mut self, end: Lsn) -> Question {
        let (transactions, suspect) = (std::mem::take(&mut self.unasked), std::mem::take(&mut self.suspect));
        Question { transactions, suspect, received: self.received, end }
    }

    /// How much of the idle WAL before `wanted` may be acknowledged: where commits wait for a standby, that is what is known to
    /// be visible, which heartbeats move on.
    pub fn acknowledgeable(&self, wanted: Lsn) -> Lsn {
        if self.required.holds() || !self.is_open() { wanted.min(self.visible.borrow().end) } else { wanted }
    }

    async fn fault(&mut self) -> CaptureError {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => CaptureError::Protocol("transactions cannot be looked for".into()),
        }
    }
}

/// Asks the primary, over a connection of its own that is made with the first question.
struct Asker {
    source: Source,
    url: String,
    timeline: u32,
    client: Option<Client>,
    report: Report,
}

impl Asker {
    /// Answers questions in their order.
    async fn run(
        mut self,
        mut questions: mpsc::Receiver<Question>,
        answers: watch::Sender<Visible>,
    ) -> Result<(), CaptureError> {
        while let Some(Question { transactions, suspect, received, end }) = questions.recv().await {
            if suspect {
                self.look().await?;
            }
            if !transactions.is_empty() {
                self.wait_until_visible(transactions).await?;
            }
            answers.send_replace(Visible { received, end });
        }
        Ok(())
    }

    async fn wait_until_visible(&mut self, transactions: Vec<u32>) -> Result<(), CaptureError> {
        let (begun, mut polls) = (Instant::now(), POLLS);
        let mut invisible: Vec<i64> = transactions.into_iter().map(i64::from).collect();
        loop {
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.ask(&invisible)).await;
            invisible = answer.map_err(|_| CaptureError::Silent(ANSWER_TIMEOUT))??;
            if invisible.is_empty() {
                self.report.ended();
                return Ok(());
            }
            if begun.elapsed() > REPORT_AFTER {
                self.report.lasts(invisible.len());
            }
            polls.wait().await;
        }
    }

    /// Whether the stream still has all that events and their routing need.
    async fn look(&mut self) -> Result<(), CaptureError> {
        let source = self.source.clone();
        let look = async { identity::verify(self.client().await?, &source).await };
        tokio::time::timeout(ANSWER_TIMEOUT, look).await.map_err(|_| CaptureError::Silent(ANSWER_TIMEOUT))?.map(drop)
    }

    async fn client(&mut self) -> Result<&Client, CaptureError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => postgres::connect(&self.url).await?,
        };
        Ok(self.client.insert(client))
    }

    /// Which of the transactions are not visible, on the very server that the stream comes from.
    async fn ask(&mut self, transactions: &[i64]) -> Result<Vec<i64>, CaptureError> {
        let client = self.client().await?;
        let row = client.query_typed_one(TRANSACTIONS_INVISIBLE, &[(&transactions, Type::INT8_ARRAY)]).await?;
        let digits: &str = row.get("timeline");
        match u32::from_str_radix(digits, 16) {
            // After a failover the same numbers are other transactions'.
            Ok(found) if found == self.timeline => Ok(row.get("invisible")),
            _ => Err(CaptureError::TimelineChanged),
        }
    }
}

/// Reports a wait that lasts, and its end: also the end of the stream, whose faults are reported by themselves.
struct Report {
    health: Health,
}

impl Report {
    fn lasts(&self, transactions: usize) {
        const REASON: &str =
            "committed transactions are not visible on the primary: does a synchronous standby keep up?";
        self.health.report_unhealthy(VISIBILITY, REASON);
        if WAITING.begins() {
            tracing::warn!(transactions, "{REASON}");
        }
    }

    fn ended(&self) {
        self.health.report_healthy(VISIBILITY);
        if WAITING.ends() {
            tracing::info!("the primary shows the transactions that were waited for");
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.health.report_healthy(VISIBILITY);
    }
}
