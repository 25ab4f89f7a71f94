//! Going over from one mode of capture to the other, without losing or repeating anything.
//!
//! To triggers, setup commits a message to the log in the transaction that makes them: every writer before it has committed before
//! it, every one after it is in the outbox. Any role may commit such a message: it counts only where the catalog says that its
//! transaction made triggers. To the log, setup makes the slot, and the slot's snapshot says which rows of the outbox
//! the slot does not have. Either way the last batch of the one mode carries the position that the other begins with.

use std::time::Duration;

use tokio_postgres::Client;
use uuid::Uuid;

use super::context::{Context, Ended};
use super::error::CaptureError;
use super::wal;
use crate::domain::change::Batch;
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::window::Window;
use crate::postgres;
use crate::primary::lease::Lease;
use crate::primary::uninstall;
use crate::telemetry::Condition;

/// How often a switch is tried again while another process has the lease.
const RETRY: Duration = Duration::from_millis(500);

/// Reads the log, to the switch if one comes. Its last batch is stored as the outbox's first window, which holds nothing: so
/// there is no moment at which the log is read to its end and the outbox is not begun.
pub(super) async fn read_log(context: &Context<'_>) -> Result<Ended, CaptureError> {
    let leaving = context.shutdown.run_until_cancelled(finish_leaving(context));
    let (last, _) = tokio::join!(wal::run(context), leaving);
    let last = match last {
        Ok(Some(last)) => last,
        Ok(None) => return Ok(Ended::Stopped),
        // Another process has made the switch.
        Err(CaptureError::OutboxIsRead) => return Ok(Ended::Switched),
        Err(error) => return Err(error),
    };
    let holder = Uuid::now_v7();
    let take = async {
        loop {
            if let Some(lease) = Lease::take(context.store, &context.source.slot, holder).await? {
                return Ok::<_, CaptureError>(lease);
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    let Some(lease) = context.shutdown.run_until_cancelled(take).await else { return Ok(Ended::Stopped) };
    let lease = lease?;
    context.store.claim_checkpoint(&context.source.slot, holder).await?;
    let window = Window::empty(last.checkpoint.progress.number() + 1);
    // Nothing of the outbox has been read.
    let progress = Progress::Outbox { window, through: Through::End, last_row: 0 };
    let checkpoint = Checkpoint { progress, ..last.checkpoint };
    let ended = store(context, Batch { checkpoint, reader: Some(holder), ..last }).await;
    lease.release().await;
    Ok(ended)
}

/// Hands a batch on and waits until it is durable.
async fn store(context: &Context<'_>, batch: Batch) -> Ended {
    let wanted = batch.checkpoint.progress.clone();
    if context.batches.send(batch).await.is_err() {
        return Ended::Stopped;
    }
    wait_until_durable(context, &wanted).await
}

async fn wait_until_durable(context: &Context<'_>, wanted: &Progress) -> Ended {
    let mut durable = context.durable.clone();
    let stored =
        durable.wait_for(|durable| durable.as_ref().is_some_and(|durable| durable.progress.has_reached(wanted)));
    match context.shutdown.run_until_cancelled(stored).await {
        Some(Ok(_)) => Ended::Switched,
        Some(Err(_)) | None => Ended::Stopped,
    }
}

/// The outbox is read to the switch: once that is durable, the triggers go.
pub(super) async fn to_log(context: &Context<'_>) -> Result<(), CaptureError> {
    let mut durable = context.durable.clone();
    while !context.shutdown.is_cancelled() {
        let stored = context.store.checkpoint(&context.source.slot).await?;
        if stored.is_some_and(|stored| !stored.progress.is_outbox()) {
            break;
        }
        // The next batch to become durable may be the one.
        if let Some(Err(_)) = context.shutdown.run_until_cancelled(durable.changed()).await {
            return Ok(());
        }
    }
    tracing::info!("the outbox is read up to the switch: the log is read from there");
    Ok(())
}

/// After the switch to the log: drops the triggers. A failure is told, and is no reason not to read.
async fn finish_leaving(context: &Context<'_>) {
    let client = postgres::connect(context.url).await;
    let left = match client {
        Ok(client) => uninstall::drop_triggers(&client, context.source, context.store).await,
        Err(error) => Err(error.into()),
    };
    match left {
        Ok(done) => done.iter().for_each(|line| tracing::info!("{line}")),
        Err(error) => {
            tracing::warn!(%error, "the triggers may still be there: the next start, or `walhook setup`, drops them");
        }
    }
}

/// After the switch to triggers: drops slot and publication and puts the identities back. Whether nothing is left to do.
/// `in_the_way` is that something keeps it from that.
pub(super) async fn leave_log(client: &Client, context: &Context<'_>, in_the_way: &Condition) -> bool {
    match uninstall::log_objects(client, context.source, context.store).await {
        Ok(done) => {
            done.iter().for_each(|line| tracing::info!("{line}"));
            true
        }
        Err(error) => {
            if in_the_way.begins() {
                tracing::warn!(%error, "what capture by the log needed is still on the primary; trying again");
            }
            false
        }
    }
}
