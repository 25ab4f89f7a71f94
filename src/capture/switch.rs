//! Switches between capture from the WAL and capture by triggers, without losing or repeating
//! changes.
//!
//! To triggers: setup writes a message to the WAL in the transaction that creates the triggers.
//! Every earlier writer has committed before the message, and the changes of every later one are in
//! the outbox. Any role can write such a message, so it only counts if, according to the catalog,
//! its transaction created triggers. To the WAL: setup creates the slot, and the slot's snapshot
//! sees exactly the rows of the outbox that the slot does not stream. In both directions, the
//! checkpoint of the last batch is the position at which the other mode starts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::context::{CaptureContext, Ended};
use super::error::CaptureError;
use super::wal;
use crate::domain::change::Batch;
use crate::domain::lsn::Lineage;
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::read_pages::ReadPages;
use crate::domain::window::Window;
use crate::failpoint::failpoint;
use crate::postgres;
use crate::primary::error::PrimaryError;
use crate::primary::lease::CaptureLease;
use crate::primary::table_locks::Attempts;
use crate::primary::{catalog, lineage, uninstall};
use crate::store::processes::new_claim;
use crate::telemetry::Activity;

/// How often to try to take the lease while another process has it.
const RETRY: Duration = Duration::from_millis(500);
/// How often to try to change tables that another session has locked, such as a running `pg_dump`,
/// or for which the role lacks rights. Each try makes the platform's statements wait for moments.
const DROP_RETRY: Duration = Duration::from_secs(300);

/// Reads the WAL until shutdown or up to a switch to triggers. The last batch is stored with the
/// position of an empty first window of the outbox, so that the end of the WAL and the start of the
/// outbox are stored together.
pub(super) async fn read_wal(context: &CaptureContext<'_>) -> Result<Ended, CaptureError> {
    let cleanup = async {
        drop_remaining_triggers(context).await;
        std::future::pending().await
    };

    let last = tokio::select! {
        last = wal::run(context) => last,
        never = cleanup => never,
    };

    let last = match last {
        Ok(Some(last)) => last,
        Ok(None) => return Ok(Ended::Stopped),
        // Another process has completed the switch.
        Err(CaptureError::Primary(PrimaryError::OutboxIsRead)) => return Ok(Ended::Switched),
        Err(error) => return Err(error),
    };

    failpoint!("wal_read_outbox_lease_not_taken")?;
    let holder = new_claim();
    let take = async {
        loop {
            if let Some(lease) =
                CaptureLease::take(context.store, &context.source.slot, holder).await?
            {
                return Ok::<_, CaptureError>(lease);
            }

            tokio::time::sleep(RETRY).await;
        }
    };

    let Some(lease) = context.shutdown.run_until_cancelled(take).await else {
        return Ok(Ended::Stopped);
    };

    let lease = lease?;
    context
        .store
        .claim_checkpoint(&context.source.slot, holder)
        .await?;
    failpoint!("outbox_claimed_last_batch_not_sent")?;

    let window = Window::empty(last.checkpoint.progress.number() + 1);
    let read = Arc::new(ReadPages::of_new_outbox());
    let progress = Progress::Outbox {
        window,
        through: Through::End,
        last_row: 0,
        read,
    };

    let checkpoint = Checkpoint {
        progress,
        ..last.checkpoint
    };

    let ended = store(
        context,
        Batch {
            checkpoint,
            reader: Some(holder),
            ..last
        },
    )
    .await;

    failpoint!("switch_stored_outbox_not_read")?;
    lease.release().await;

    Ok(ended)
}

/// Sends a batch and waits until it is stored.
async fn store(context: &CaptureContext<'_>, batch: Batch) -> Ended {
    let wanted = batch.checkpoint.progress.clone();

    if context.batches.send(batch).await.is_err() {
        return Ended::Stopped;
    }

    wait_until_durable(context, &wanted).await
}

async fn wait_until_durable(context: &CaptureContext<'_>, wanted: &Progress) -> Ended {
    let mut durable = context.durable.clone();
    let stored = durable.wait_for(|durable| {
        durable
            .as_ref()
            .is_some_and(|durable| durable.progress.has_reached(wanted))
    });

    match context.shutdown.run_until_cancelled(stored).await {
        Some(Ok(_)) => Ended::Switched,
        Some(Err(_)) | None => Ended::Stopped,
    }
}

/// Waits until the last batch before the switch to the WAL is stored.
pub(super) async fn wait_for_last_outbox_batch(
    context: &CaptureContext<'_>,
) -> Result<(), CaptureError> {
    let mut durable = context.durable.clone();

    while !context.shutdown.is_cancelled() {
        let stored = context.store.checkpoint(&context.source.slot).await?;
        if stored.is_some_and(|stored| !stored.progress.is_outbox()) {
            break;
        }

        // The next batch that is stored may be the last.
        if let Some(Err(_)) = context
            .shutdown
            .run_until_cancelled(durable.changed())
            .await
        {
            return Ok(());
        }
    }

    failpoint!("outbox_read_wal_not_started")?;
    tracing::info!("the outbox is read up to the switch: changes are read from the WAL now");

    Ok(())
}

/// Drops the triggers after a switch to the WAL. Retries until it succeeds: until then they write
/// to an outbox that is not read.
async fn drop_remaining_triggers(context: &CaptureContext<'_>) {
    let dropping = Activity::new("dropping the triggers");

    while let Err(error) = try_drop_triggers(context).await {
        // Without the store it is not known whether there was a switch. Reading reports that.
        if !matches!(error, PrimaryError::Store(_)) && dropping.starts_failing() {
            tracing::warn!(%error, "the triggers could not be dropped after the switch to the WAL, so the outbox grows; retrying every {DROP_RETRY:?}");
        }

        tokio::time::sleep(DROP_RETRY).await;
    }
}

async fn try_drop_triggers(context: &CaptureContext<'_>) -> Result<(), PrimaryError> {
    let stored = context
        .store
        .stored_checkpoint(&context.source.slot)
        .await?;
    if stored.is_none_or(|stored| stored.switch.is_none()) {
        return Ok(());
    }

    let client = postgres::connect(context.url).await?;
    let done =
        uninstall::drop_triggers_after_switch(&client, context.source, context.store).await?;
    done.iter().for_each(|line| tracing::info!("{line}"));
    Ok(())
}

/// The removal of what capture from the WAL has left on the primary, after a switch to triggers.
#[derive(Debug)]
pub(super) struct WalRemoval {
    /// When to try next; none after a success.
    due: Option<Instant>,
    removing: Activity,
}

impl WalRemoval {
    pub fn new() -> WalRemoval {
        WalRemoval {
            due: Some(Instant::now()),
            removing: Activity::new("removing the slot, publication and replica identities"),
        }
    }

    /// Drops the slot and the publication and restores the replica identities. Retries until it
    /// succeeds or the lease is lost. Runs beside the reader, over its own connection: it may wait
    /// for locks. Ended with the session of the reader, it continues with the next one. `read` is
    /// the lineage of the server that the reader is connected to.
    pub async fn run(&mut self, context: &CaptureContext<'_>, lease: &CaptureLease, read: Lineage) {
        while let Some(due) = self.due {
            tokio::time::sleep_until(due).await;
            self.due = Some(Instant::now() + context.source.heartbeat.0);

            match lease
                .run_until_lost(try_drop_wal_capture(context, read))
                .await
            {
                None => return,
                Some(Ok(())) => self.due = None,
                Some(Err(error)) => {
                    // A slot retains WAL: it is dropped soon after its reader has ended.
                    if !error.is_transient() && !matches!(error, PrimaryError::SlotInUse { .. }) {
                        self.due = Some(Instant::now() + DROP_RETRY);
                    }

                    if self.removing.starts_failing() {
                        tracing::warn!(%error, "the slot, the publication and the replica identities could not all be removed after the switch to triggers; retrying");
                    }
                }
            }
        }
    }
}

async fn try_drop_wal_capture(
    context: &CaptureContext<'_>,
    read: Lineage,
) -> Result<(), PrimaryError> {
    let client = postgres::connect(context.url).await?;

    // This connection may lead to another server: to a replaced primary, for example.
    lineage::verify(catalog::lineage(&client).await?, read)?;
    let done =
        uninstall::drop_wal_capture(&client, context.source, context.store, Attempts::Few).await?;
    done.iter().for_each(|line| tracing::info!("{line}"));

    Ok(())
}
