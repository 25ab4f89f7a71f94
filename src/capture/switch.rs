//! Going over from one mode of capture to the other, without losing or repeating anything.
//!
//! To triggers, setup commits a message to the log in the transaction that makes them: every writer before it has committed before
//! it, every one after it is in the outbox. Any role may commit such a message: it counts only where the catalog says that its
//! transaction made triggers. To the log, setup makes the slot, and the slot's snapshot says which rows of the outbox
//! the slot does not have. Either way the last batch of the one mode carries the position that the other begins with.

use std::time::Duration;

use postgres_types::{ToSql, Type};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{CaptureError, Context, Ended, wal};
use crate::domain::change::Batch;
use crate::domain::lsn::{Lsn, Position};
use crate::domain::window::{Bounds, Window};
use crate::postgres;
use crate::primary::error::PrimaryError;
use crate::primary::lease::Lease;
use crate::primary::uninstall;
use crate::store::outbox::Place;
use crate::telemetry::Condition;

const RUNNING: &str = include_str!("../../sql/primary/transaction_running.sql");
const MADE_BY: &str = include_str!("../../sql/primary/outbox_made_by.sql");

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
        Err(CaptureError::Setup(PrimaryError::OutboxIsRead)) => return Ok(Ended::HandedOver),
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
    let commit = Lsn(last.checkpoint.position.commit.0 + 1);
    let mut checkpoint = last.checkpoint;
    // Of the outbox, nothing has been read.
    (checkpoint.position, checkpoint.resume) = (Position::end_of(commit), Lsn::ZERO);
    let window = Window { bounds: Some(Bounds::nothing()), reader: holder };
    let ended = store(context, Batch { checkpoint, window: Some(window), ..last }).await;
    lease.release().await;
    Ok(ended)
}

/// Whether other sessions may not see yet what a transaction did.
pub(super) async fn is_running(client: &Client, transaction: u32) -> Result<bool, CaptureError> {
    let transaction = transaction.to_string();
    Ok(client.query_typed_one(RUNNING, &[(&transaction, Type::TEXT)]).await?.get(0))
}

/// Whether a transaction that is over put triggers on some of `tables`.
pub(super) async fn has_made_triggers(client: &Client, transaction: u32, tables: &[u32]) -> Result<bool, CaptureError> {
    let transaction = transaction.to_string();
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&transaction, Type::TEXT), (&tables, Type::OID_ARRAY)];
    Ok(client.query_typed_one(MADE_BY, &parameters).await?.get(0))
}

/// Hands a batch on and waits until it is durable.
async fn store(context: &Context<'_>, batch: Batch) -> Ended {
    let wanted = batch.checkpoint.position;
    if context.batches.send(batch).await.is_err() {
        return Ended::Stopped;
    }
    wait_until_durable(context, wanted).await
}

async fn wait_until_durable(context: &Context<'_>, wanted: Position) -> Ended {
    let mut durable = context.durable.clone();
    let stored = durable.wait_for(|durable| durable.is_some_and(|durable| durable.position >= wanted));
    match context.shutdown.run_until_cancelled(stored).await {
        Some(Ok(_)) => Ended::HandedOver,
        Some(Err(_)) | None => Ended::Stopped,
    }
}

/// The outbox is read to the switch: once that is durable, the triggers go.
pub(super) async fn to_log(context: &Context<'_>) -> Result<(), CaptureError> {
    let mut durable = context.durable.clone();
    while !context.shutdown.is_cancelled() {
        if context.store.capture_place(&context.source.slot).await? == Some(Place::Log) {
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
        Ok(client) => uninstall::drop_triggers_after_switch(&client, context.source, context.store).await,
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
    match uninstall::drop_wal_capture(client, context.source, context.store).await {
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
