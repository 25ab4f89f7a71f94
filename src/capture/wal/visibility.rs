//! Holds changes back until their transactions are visible on the primary, and until the
//! publication is verified.
//!
//! A logical walsender sends a commit as soon as it is flushed locally. Under synchronous
//! replication the application still waits for a standby at that point: no session sees the commit,
//! and a failover undoes it. Therefore no change of a transaction is passed on, stored or
//! acknowledged before a snapshot of the primary sees the transaction.
//!
//! The stream lacks the changes of a table that has left the publication, and nothing in the stream
//! shows that a looked-up table has. Therefore each batch with changes verifies the publication,
//! after its transactions are visible: the primary's catalog is then at least as new as the one
//! with which the server has decoded them.
//!
//! The wait has no limit: a new stream would wait for the same transactions. A long wait is
//! reported instead.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_util::task::AbortOnDropHandle;

use super::tables;
use crate::capture::client::KeptClient;
use crate::capture::context::CaptureContext;
use crate::capture::error::CaptureError;
use crate::config::{AwaitVisibility, Source};
use crate::domain::lsn::Lsn;
use crate::domain::publication::PublicationMembers;
use crate::domain::window::Snapshot;
use crate::primary::catalog::{self, PublicationVersionQuery};
use crate::repair::gaps::GapLog;
use crate::retry::Backoff;
use crate::sql::primary as sql;
use crate::store::Store;
use crate::telemetry::Activity;
use crate::telemetry::health::Health;

/// The name of the wait in the health report.
const VISIBILITY: &str = "visibility";
/// A commit is visible microseconds after its flush, or after the round trip to a standby.
const POLLS: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
/// After this long without an answer, the stream fails and reconnects.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than a working standby takes, even one that reconnects.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// The most transactions that are received without a check, if none of them has captured changes.
const MAX_UNCHECKED: usize = 10_000;

static WAITING: Activity = Activity::new("waiting for visibility");

/// The setting, and whether the server's commits wait for a standby. Clones share the latter.
#[derive(Clone, Debug)]
pub(super) struct VisibilityPolicy {
    setting: AwaitVisibility,
    synchronous: Arc<AtomicBool>,
}

impl VisibilityPolicy {
    pub fn new(setting: AwaitVisibility) -> VisibilityPolicy {
        VisibilityPolicy {
            setting,
            synchronous: Arc::default(),
        }
    }

    /// Records whether the server's commits wait for a standby.
    pub fn set_synchronous(&self, synchronous: bool) {
        self.synchronous.store(synchronous, Ordering::Relaxed);
    }

    /// Returns whether capture waits for visibility.
    pub fn waits(&self) -> bool {
        match self.setting {
            AwaitVisibility::Auto => self.synchronous.load(Ordering::Relaxed),
            AwaitVisibility::Always => true,
            AwaitVisibility::Never => false,
        }
    }
}

/// What must be verified before changes are passed on. Each scope includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckScope {
    #[default]
    Nothing,
    /// The publication is as it was when the tables were verified.
    Publication,
    /// The tables and the publication have everything that events and their routing need.
    Tables,
}

/// A request to check what was received.
struct Check {
    /// Transactions that must be visible.
    transactions: Vec<u32>,
    scope: CheckScope,
    unmapped: HashSet<u32>,
    received: Covered,
}

/// How much of the stream a check covers.
#[derive(Clone, Copy, Debug, Default)]
struct Covered {
    /// The number of reasons for a check.
    count: u64,
    /// The end of the last whole transaction.
    end: Lsn,
}

/// Holds changes back until checks have passed. A task runs the checks, so that the stream can
/// acknowledge meanwhile. Without anything to check, no query runs.
pub(super) struct VisibilityGate {
    policy: VisibilityPolicy,
    received: u64,
    /// Transactions that no check covers yet.
    unchecked: Vec<u32>,
    /// What the next check must verify.
    unverified: CheckScope,
    /// Published tables whose changes the decoder skips, for the next check.
    unmapped: HashSet<u32>,
    checks: mpsc::Sender<Check>,
    passed: watch::Receiver<Covered>,
    task: AbortOnDropHandle<Result<(), CaptureError>>,
}

impl VisibilityGate {
    /// Starts the checking task for a stream of `timeline`, over the connection on which the tables
    /// were `verified`.
    pub fn start(
        context: &CaptureContext<'_>,
        client: Client,
        timeline: u32,
        verified: VerifiedPublication,
        policy: VisibilityPolicy,
    ) -> VisibilityGate {
        // One check that runs, and one that waits.
        let (checks, requests) = mpsc::channel(1);
        let (results, passed) = watch::channel(Covered::default());
        let CaptureContext {
            source,
            url,
            health,
            ..
        } = *context;

        let wait = WaitReport {
            health: health.clone(),
        };

        let checker = Checker {
            source: source.clone(),
            store: context.store.clone(),
            timeline,
            client: KeptClient::new(url, Some(client)),
            version_query: Some(verified.query),
            version: verified.version,
            members: verified.members,
            unmapped: HashSet::new(),
            wait,
        };

        let task = AbortOnDropHandle::new(tokio::spawn(checker.run(requests, results)));

        VisibilityGate {
            policy,
            received: 0,
            unchecked: Vec::new(),
            unverified: CheckScope::Nothing,
            unmapped: HashSet::new(),
            checks,
            passed,
            task,
        }
    }

    /// Records a transaction that the stream begins to send.
    pub fn add_transaction(&mut self, transaction: u32) {
        if self.policy.waits() {
            self.received += 1;
            self.unchecked.push(transaction);
        }
    }

    /// Records a published table whose changes the decoder skips. If it is one of Walhook's by now,
    /// such as a new table that inherits, the stream is opened again.
    pub fn add_unmapped(&mut self, oid: u32) {
        self.unmapped.insert(oid);
        self.require(CheckScope::Tables);
    }

    /// Closes the gate until this much is verified.
    pub fn require(&mut self, scope: CheckScope) {
        if scope > self.unverified {
            self.received += 1;
            self.unverified = scope;
        }
    }

    /// Returns whether all checks have passed.
    pub fn is_open(&self) -> bool {
        self.passed.borrow().count >= self.received
    }

    /// Returns whether so many transactions are unchecked that the stream must wait.
    pub fn is_full(&self) -> bool {
        self.unchecked.len() >= MAX_UNCHECKED
    }

    /// Checks everything received and waits for the result. `end` is the end of the last whole
    /// transaction. Cancel-safe.
    pub async fn wait(&mut self, end: Lsn) -> Result<(), CaptureError> {
        if self.has_unchecked() {
            // A clone, because the permit borrows it.
            let checks = self.checks.clone();
            let Ok(permit) = checks.reserve().await else {
                return Err(self.error().await);
            };

            permit.send(self.next_check(end));
        }

        let received = self.received;
        let passed = self
            .passed
            .wait_for(|passed| passed.count >= received)
            .await
            .is_ok();
        if passed {
            Ok(())
        } else {
            Err(self.error().await)
        }
    }

    /// Starts a check of everything received, without waiting for the result.
    pub async fn start_check(&mut self, end: Lsn) -> Result<(), CaptureError> {
        if self.task.is_finished() {
            return Err(self.error().await);
        }

        let checks = self.checks.clone();
        if let Some(permit) = checks.try_reserve().ok().filter(|_| self.has_unchecked()) {
            permit.send(self.next_check(end));
        }

        Ok(())
    }

    fn has_unchecked(&self) -> bool {
        self.unverified != CheckScope::Nothing || !self.unchecked.is_empty()
    }

    fn next_check(&mut self, end: Lsn) -> Check {
        let received = Covered {
            count: self.received,
            end,
        };

        let scope = std::mem::take(&mut self.unverified);
        Check {
            transactions: std::mem::take(&mut self.unchecked),
            scope,
            unmapped: std::mem::take(&mut self.unmapped),
            received,
        }
    }

    /// Returns how far idle WAL up to `wanted` may be acknowledged. If capture waits for
    /// visibility, this is the end of what is known to be visible. Heartbeats advance it.
    pub fn acknowledgeable(&self, wanted: Lsn) -> Lsn {
        if self.policy.waits() || !self.is_open() {
            wanted.min(self.passed.borrow().end)
        } else {
            wanted
        }
    }

    async fn error(&mut self) -> CaptureError {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => {
                CaptureError::Protocol("the visibility of transactions cannot be checked".into())
            }
        }
    }
}

/// The publication with which the tables were verified.
pub(super) struct VerifiedPublication {
    pub query: PublicationVersionQuery,
    /// Read before the tables.
    pub version: Option<String>,
    /// What it streams.
    pub members: PublicationMembers,
}

/// Checks visibility and tables over its own connection to the primary.
struct Checker {
    source: Source,
    store: Store,
    timeline: u32,
    client: KeptClient,
    /// Prepared for the current connection.
    version_query: Option<PublicationVersionQuery>,
    /// The version of the publication with which the tables were verified last.
    version: Option<String>,
    /// What it streamed then.
    members: PublicationMembers,
    /// All unmapped tables of the stream.
    unmapped: HashSet<u32>,
    wait: WaitReport,
}

impl Checker {
    /// Runs the checks in order.
    async fn run(
        mut self,
        mut checks: mpsc::Receiver<Check>,
        results: watch::Sender<Covered>,
    ) -> Result<(), CaptureError> {
        while let Some(Check {
            transactions,
            scope,
            unmapped,
            received,
        }) = checks.recv().await
        {
            self.unmapped.extend(unmapped);

            if !transactions.is_empty() {
                self.wait_until_visible(transactions).await?;
            }

            self.verify(scope).await?;
            results.send_replace(received);
        }

        Ok(())
    }

    async fn wait_until_visible(&mut self, transactions: Vec<u32>) -> Result<(), CaptureError> {
        let started_at = Instant::now();
        let mut polls = POLLS;
        let mut invisible = transactions;

        loop {
            let answer = tokio::time::timeout(CHECK_TIMEOUT, self.invisible(&invisible)).await;
            invisible = answer.map_err(|_| CaptureError::Silent(CHECK_TIMEOUT))??;

            if invisible.is_empty() {
                self.wait.end();
                return Ok(());
            }

            if started_at.elapsed() > REPORT_AFTER {
                self.wait.report(invisible.len());
            }

            polls.wait().await;
        }
    }

    async fn verify(&mut self, scope: CheckScope) -> Result<(), CaptureError> {
        if scope == CheckScope::Nothing {
            return Ok(());
        }

        let verified = tokio::time::timeout(CHECK_TIMEOUT, self.verify_tables(scope)).await;
        verified.map_err(|_| CaptureError::Silent(CHECK_TIMEOUT))?
    }

    /// Verifies that the stream still has everything that events and their routing need. If only
    /// the publication may have changed, one short query shows whether it has.
    async fn verify_tables(&mut self, scope: CheckScope) -> Result<(), CaptureError> {
        if !self.client.is_open() {
            self.version_query = None;
        }

        let client = self.client.get().await?;
        let query = match &mut self.version_query {
            Some(query) => query,
            none => none.insert(PublicationVersionQuery::prepare(client, &self.source).await?),
        };

        // Read first: a later change differs from it.
        let found = query.run(client).await?;
        if let Some(found) = &found {
            verify_timeline(&found.timeline, self.timeline)?;
        }

        let version = found.map(|found| found.version);
        if scope == CheckScope::Tables || version != self.version {
            let tables = tables::verify(
                client,
                GapLog::new(&self.source, &self.store, &self.wait.health),
            )
            .await?;
            let is_skipped = self.unmapped.iter().any(|oid| tables.contains_key(oid));
            let members = catalog::publication_members(client, &self.source).await?;
            if is_skipped || !self.members.left_by(&members).is_empty() {
                return Err(CaptureError::PublicationInterrupted);
            }

            self.members = members;
        }

        self.version = version;
        Ok(())
    }

    /// Returns the transactions that are not visible, on the same server timeline that the stream
    /// comes from.
    async fn invisible(&mut self, transactions: &[u32]) -> Result<Vec<u32>, CaptureError> {
        let client = self.client.get().await?;
        let row = client
            .query_typed_one(sql::server::CURRENT_SNAPSHOT, &[])
            .await?;
        // After a failover the same ids belong to other transactions.
        verify_timeline(row.get("timeline"), self.timeline)?;
        Ok(Snapshot::from(row.get::<_, &str>("snapshot")).not_ended(transactions))
    }
}

/// Verifies that a query was answered by a server on the stream's timeline. `found` has hexadecimal
/// digits.
fn verify_timeline(found: &str, expected: u32) -> Result<(), CaptureError> {
    match u32::from_str_radix(found, 16) {
        Ok(found) if found == expected => Ok(()),
        _ => Err(CaptureError::TimelineChanged),
    }
}

/// Reports a long wait, and its end. The wait also ends with the stream, whose errors are reported
/// elsewhere.
struct WaitReport {
    health: Health,
}

impl WaitReport {
    fn report(&self, transactions: usize) {
        const REASON: &str = "committed transactions are not visible on the primary: does a synchronous standby keep up?";
        self.health.report_unhealthy(VISIBILITY, REASON);

        if WAITING.starts_failing() {
            tracing::warn!(transactions, "{REASON}");
        }
    }

    fn end(&self) {
        self.health.report_healthy(VISIBILITY);

        if WAITING.stops_failing() {
            tracing::info!("all received transactions are visible on the primary again");
        }
    }
}

impl Drop for WaitReport {
    fn drop(&mut self) {
        self.health.report_healthy(VISIBILITY);
    }
}
