//! Repairs a gap: creates a new slot and compares the watched rows at the slot's snapshot with the
//! ledger, which has their last known states. The caller raises events for the differences, in the
//! transaction that also stores the new checkpoint.
//!
//! A repair that is killed leaves a slot that must not be read, and the gap `repair_unfinished`.
//! The next repair drops the slot and starts over. With capture by triggers, a snapshot replaces
//! the slot: the comparison covers the outbox's rows that the snapshot sees, and later rows are
//! read from the outbox.

pub(crate) mod continuity;
mod differences;
pub(crate) mod gaps;
pub(crate) mod watch;

use jiff::Timestamp;
use tokio_postgres::Client;

use crate::config::{CaptureMode, Source};
use crate::domain::gap::Gap;
use crate::domain::lsn::{Lineage, Lsn};
use crate::failpoint::failpoint;
use crate::postgres;
use crate::primary::catalog;
use crate::primary::error::{PrimaryError, Result};
use crate::primary::inspect::{Conditions, explained, inspect};
use crate::primary::install::prepare;
use crate::primary::lease::CaptureLease;
use crate::primary::lineage;
use crate::primary::slot::{Opened, connect, open, seed_lookups, store_beginning, undo};
use crate::primary::snapshot::SnapshotSession;
use crate::primary::triggers::catalog::failures;
use crate::primary::triggers::{Beginning, reinstall, stop_reading};
use crate::primary::uninstall::drop_slot;
use crate::sql::primary as sql;
use crate::store::checkpoint::{
    OpenGap, close_gaps, hold_checkpoint, insert_first_checkpoint, lock_repair,
};
use crate::store::ledger::{complete_tables, forget_ledger, mark_ledger_complete};
use crate::store::{Store, Transaction};
use crate::telemetry::health::Health;

use gaps::GapLog;
use watch::{Watch, acknowledge};

pub use differences::{Differences, Found};

/// The parameters of a repair.
#[derive(Clone, Copy)]
pub struct Request<'a, 'r> {
    pub source: &'a Source,
    pub url: &'r str,
    pub store: &'r Store,
    /// It must not have written anything yet: a new slot waits for all transactions that have
    /// written, and the store may be on the primary's server.
    pub transaction: &'r Transaction<'r>,
    pub dry_run: bool,
    pub force: bool,
}

/// A running repair.
pub struct Repair<'a> {
    source: &'a Source,
    client: Client,
    snapshot: SnapshotSession,
    begins: Begins,
    /// With triggers: no other process reads the outbox meanwhile.
    lease: Option<CaptureLease>,
    /// The gaps to repair.
    pub gaps: Vec<OpenGap>,
    /// The changes made on the primary, one line each.
    pub done: Vec<String>,
}

/// Where changes are read from after the repair.
enum Begins {
    /// A dry run changes nothing.
    Nowhere,
    Slot(Box<Opened>),
    Outbox(Beginning),
}

impl<'a> Repair<'a> {
    /// Takes a snapshot and, except in a dry run, creates a slot that starts there. Fails while
    /// another process captures and, without `force`, if no gap is open.
    pub async fn begin(request: Request<'a, '_>) -> Result<Repair<'a>> {
        let Request {
            source,
            url,
            store,
            transaction,
            dry_run,
            force,
        } = request;

        if !lock_repair(transaction, &source.slot).await? {
            return Err(PrimaryError::RepairRunning(source.slot.clone()));
        }

        let client = postgres::connect(url).await?;
        let mut lease = None;
        let mut done = Vec::new();

        let gaps = match source.capture {
            CaptureMode::Wal => {
                catalog::unused_slot(&client, &source.slot).await?;
                diagnose(&client, source, store, force).await?
            }
            CaptureMode::Trigger => {
                lease = Some(stop_reading(source, store).await?);
                diagnose_triggers(&client, source, store, force).await?
            }
            CaptureMode::Log => return Err(PrimaryError::LogIsRead),
        };

        let (snapshot, begins) = match source.capture {
            _ if dry_run => (SnapshotSession::now(url).await?, Begins::Nowhere),
            CaptureMode::Wal => new_slot(request, &client, &mut done).await?,
            CaptureMode::Trigger => new_window(request, &client, &mut done).await?,
            CaptureMode::Log => return Err(PrimaryError::LogIsRead),
        };

        Ok(Repair {
            source,
            client,
            snapshot,
            begins,
            lease,
            gaps,
            done,
        })
    }

    /// Returns the time of the snapshot, which is the time of the raised events.
    pub fn at(&self) -> Timestamp {
        self.snapshot.at
    }

    /// Returns the LSN from which changes are read, or at which the snapshot was taken. None in a
    /// dry run.
    pub fn begins(&self) -> Option<Lsn> {
        match &self.begins {
            Begins::Nowhere => None,
            Begins::Slot(opened) => Some(opened.begins),
            Begins::Outbox(beginning) => Some(beginning.inserted),
        }
    }

    /// Returns the cluster and timeline of the changes' positions.
    pub fn lineage(&self) -> Lineage {
        match &self.begins {
            Begins::Nowhere => Lineage {
                system_identifier: 0,
                timeline: 0,
            },
            Begins::Slot(opened) => opened.lineage,
            Begins::Outbox(beginning) => beginning.lineage,
        }
    }

    /// Compares the tables with the ledger.
    pub async fn differences(&self, transaction: &Transaction<'_>) -> Result<Differences<'_>> {
        // Before the slot's LSN and after every earlier change: WAL records start at even
        // addresses.
        let commit = Lsn(self.begins().unwrap_or_default().0.saturating_sub(1));
        let complete = complete_tables(transaction).await?;
        let timeline = self.lineage().timeline;

        Ok(Differences::new(
            self.source,
            &self.snapshot,
            complete,
            commit,
            timeline,
        ))
    }

    /// Stores the new checkpoint and closes the gaps. The caller commits.
    pub async fn finish(&self, transaction: &Transaction<'_>) -> Result<()> {
        if matches!(self.begins, Begins::Nowhere) {
            return Ok(());
        }

        failpoint!("differences_raised_checkpoint_not_stored")?;
        seed_lookups(&self.snapshot, self.source, transaction).await?;

        match self.source.ledger {
            true => mark_ledger_complete(transaction).await?,
            false => forget_ledger(transaction).await?,
        }

        close_gaps(transaction, &self.source.slot).await?;

        match &self.begins {
            Begins::Nowhere => Ok(()),
            Begins::Slot(opened) => store_beginning(transaction, self.source, opened).await,
            Begins::Outbox(beginning) => Ok(insert_first_checkpoint(
                transaction,
                &self.source.slot,
                &beginning.checkpoint(),
                None,
            )
            .await?),
        }
    }

    /// Releases the lease on the outbox, so that capture continues. To be called after the
    /// transaction was committed.
    pub async fn end(self) {
        if let Begins::Outbox(beginning) = &self.begins
            && let Err(error) = beginning.record(&self.client).await
        {
            tracing::warn!(%error, "a failover before `walhook run` has read the outbox would be reported as a gap");
        }

        if let Some(lease) = self.lease {
            lease.release().await;
        }
    }

    /// Drops the new slot after the transaction has failed. Returns the error to report.
    pub async fn abandon(self, error: anyhow::Error) -> anyhow::Error {
        let Begins::Slot(opened) = self.begins else {
            return error;
        };

        drop(opened);

        match self
            .client
            .execute(sql::slot::DROP, &[&self.source.slot])
            .await
        {
            Ok(_) => error,
            Err(cleanup) => error.context(format!(
                "slot {} could not be dropped ({}); the next repair drops it",
                self.source.slot,
                postgres::describe(&cleanup)
            )),
        }
    }
}

/// Replaces the slot. Returns the new one with its snapshot.
async fn new_slot(
    request: Request<'_, '_>,
    client: &Client,
    done: &mut Vec<String>,
) -> Result<(SnapshotSession, Begins)> {
    let Request {
        source, url, store, ..
    } = request;

    let found = inspect(client, source, Conditions::All).await?;
    found.accept()?;

    done.extend(prepare(client, source, store, &found).await?);

    // Recorded first: until the repair is finished, no process may read from the new slot.
    let unfinished = Gap::RepairUnfinished {
        slot: source.slot.clone(),
    };

    store.record_gap(&source.slot, &unfinished, None).await?;
    failpoint!("repair_noted_old_slot_not_dropped")?;
    done.extend(drop_slot(client, source).await?);

    let walsender = connect(source, url, found.can_fail_over(source)).await?;
    let opened = open(walsender, client, source).await?;

    done.push(format!(
        "slot {}: created at {}",
        source.slot, opened.begins
    ));

    let imported = async {
        failpoint!("new_slot_created_snapshot_not_imported")?;
        hold_checkpoint(request.transaction, &source.slot).await?;
        opened.snapshot(url).await
    };

    match imported.await {
        Ok(snapshot) => Ok((snapshot, Begins::Slot(Box::new(opened)))),
        Err(error) => {
            drop(opened);
            Err(undo(client, source, error).await)
        }
    }
}

/// Restores the triggers. Returns the window from which the outbox is read, with its snapshot.
async fn new_window(
    request: Request<'_, '_>,
    client: &Client,
    done: &mut Vec<String>,
) -> Result<(SnapshotSession, Begins)> {
    let Request {
        source, url, store, ..
    } = request;

    done.extend(reinstall(client, source).await?);

    // Later failures either happen after the snapshot, or the comparison covers them and they are
    // reported needlessly.
    acknowledge(client).await?;
    failpoint!("trigger_failures_reset_snapshot_not_taken")?;
    hold_checkpoint(request.transaction, &source.slot).await?;

    let snapshot = SnapshotSession::now(url).await?;
    let mut beginning = Beginning::at(&snapshot, client).await?;
    let known = store.checkpoint(&source.slot).await?;
    if let Some(known) = known.as_ref().filter(|_| !request.force) {
        lineage::verify(beginning.lineage, known.lineage)?;
    }

    // Window numbers continue from the checkpoint.
    let number = known.map_or(0, |known| known.progress.number() + 1);
    beginning.window.number = number.max(beginning.inserted.0);

    Ok((snapshot, Begins::Outbox(beginning)))
}

/// Determines the open gaps, including one that is not recorded yet.
async fn diagnose(
    client: &Client,
    source: &Source,
    store: &Store,
    force: bool,
) -> Result<Vec<OpenGap>> {
    let health = Health::default();
    let gaps = GapLog::new(source, store, &health);
    match continuity::verify(client, gaps).await {
        Ok(_) | Err(PrimaryError::Gap(_)) => {}
        // Only with `force`: a restored cluster cannot be distinguished from the wrong one, or from
        // a replaced primary.
        Err(PrimaryError::ForeignCluster { .. } | PrimaryError::Replaced(_)) if force => {}
        Err(error) => return Err(error),
    }

    open_gaps(gaps, force).await
}

/// Determines the open gaps of capture by triggers: failures, and triggers that are missing or
/// changed.
async fn diagnose_triggers(
    client: &Client,
    source: &Source,
    store: &Store,
    force: bool,
) -> Result<Vec<OpenGap>> {
    if let Some(known) = store.checkpoint(&source.slot).await?.filter(|_| !force) {
        let found = catalog::lineage(client).await?;
        lineage::verify(found, known.lineage)?;
    }

    let health = Health::default();
    let gaps = GapLog::new(source, store, &health);
    let mut watch = Watch::new(gaps);
    match watch.examine(client, 0).await {
        Ok(_) => {
            if let Some((count, last)) = failures(client).await? {
                watch
                    .record(Gap::TriggersFailed {
                        count,
                        last: explained(last),
                    })
                    .await?;
            }
        }
        Err(PrimaryError::Gap(gap)) => watch.record(gap).await?,
        Err(error) => return Err(error),
    }

    open_gaps(gaps, force).await
}

async fn open_gaps(gaps: GapLog<'_>, force: bool) -> Result<Vec<OpenGap>> {
    let open = gaps.report_open().await?;
    if open.is_empty() && !force {
        return Err(PrimaryError::NothingToRepair);
    }

    Ok(open)
}
