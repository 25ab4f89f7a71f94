//! Capture by triggers: statement triggers write changes to an outbox on the primary, and one process reads it. It needs neither
//! a superuser nor `wal_level = logical`, and every question fits through a pooler that changes servers after each transaction.

pub(super) mod catalog;
pub(super) mod definition;
pub(super) mod install;
pub(super) mod lease;
pub(super) mod page;
mod reader;
pub(super) mod watch;

use std::time::{Duration, Instant};

use metrics::gauge;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::error::Gap;
use super::faults::Faults;
use super::lag::KnownUntil;
use super::{CaptureError, Context, Ended, STAGE, leave};
use crate::config::Source;
use crate::domain::lsn::Checkpoint;
use crate::domain::window::Bounds;
use crate::postgres::{self, ANSWER_TIMEOUT};
use crate::retry::Backoff;
use crate::store::outbox::{Handover, Place};
use crate::telemetry::{self, Condition};

use lease::Lease;
use reader::{Cursor, Reader, Step};
use watch::Watch;

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// A session that held for this long was a good one: the next retry is a first one.
const STABLE: Duration = Duration::from_secs(5);
/// How often a process that stands by looks whether it is its turn.
const STAND_BY: Duration = Duration::from_secs(1);

/// Reads until shutdown, until the switch to the log that was prepared, or until a fault that no retry can mend.
pub(super) async fn run(context: &Context<'_>) -> Result<Ended, CaptureError> {
    let holder = Uuid::now_v7();
    let ended = context.shutdown.run_until_cancelled(stand_by_and_read(context, holder)).await;
    gauge!(telemetry::CAPTURE_CONNECTED).set(0);
    // Safe while batches are in flight: the claim fences them.
    if let Err(error) = context.store.release_capture_lease(&context.source.slot, holder).await {
        tracing::debug!(%error, "the capture lease runs out by itself");
    }
    ended.unwrap_or(Ok(Ended::Stopped))
}

async fn stand_by_and_read(context: &Context<'_>, holder: Uuid) -> Result<Ended, CaptureError> {
    let known_until = KnownUntil::default();
    let _shown = known_until.show(context.source);
    let mut reading = Reading { context, holder, cursor: None, handover: None, known_until };
    let mut retries = RETRIES;
    let mut faults = Faults::default();
    loop {
        let begun = Instant::now();
        let error = match reading.session(&mut faults).await {
            Ok(ended) => return Ok(ended),
            Err(error) => error,
        };
        gauge!(telemetry::CAPTURE_CONNECTED).set(0);
        let standing_by = matches!(error, CaptureError::LeaseHeld(_));
        let goes_on = error.is_transient() || matches!(error, CaptureError::Gap(Gap::OutboxLost(_)));
        if !goes_on {
            return Err(error);
        }
        if standing_by {
            context.health.report_healthy(STAGE);
            reading.known_until.forget();
        } else {
            context.health.report_unhealthy(STAGE, "changes cannot be read now");
        }
        faults.tell(&error);
        if begun.elapsed() > STABLE {
            retries.reset();
        }
        tokio::time::sleep(if standing_by { STAND_BY } else { retries.next_wait() }).await;
    }
}

/// What lasts from one connection to the next.
struct Reading<'a> {
    context: &'a Context<'a>,
    /// Holds the lease and claims the checkpoint, once: when the claim is lost, reading starts again with a new id.
    holder: Uuid,
    cursor: Option<Cursor>,
    handover: Option<Handover>,
    known_until: KnownUntil,
}

impl Reading<'_> {
    /// One connection, from the lease to its end.
    async fn session(&mut self, faults: &mut Faults) -> Result<Ended, CaptureError> {
        let Context { source, url, store, health, .. } = *self.context;
        let Some(lease) = Lease::take(store, &source.slot, self.holder).await? else {
            return Err(CaptureError::LeaseHeld(source.slot.clone()));
        };
        if self.cursor.is_some() {
            // Another process may have held the lease since this one last did.
            if store.checkpoint_of_reader(&source.slot, Some(self.holder)).await?.is_none() {
                return Err(CaptureError::Superseded(source.slot.clone()));
            }
        } else {
            store.claim_checkpoint(&source.slot, self.holder).await?;
            let Some((checkpoint, bounds, handover)) = self.stored().await? else {
                // Another process has made the switch.
                lease.release().await;
                return Ok(Ended::HandedOver);
            };
            (self.cursor, self.handover) = (Some(Cursor::new(&checkpoint, bounds)), handover);
        }
        let client = postgres::connect(url).await?;
        let mut watch = Watch::new(source, store, health);
        let work = async {
            in_time(watch.examine(&client)).await?;
            tracing::info!(slot = source.slot, "reading changes from the outbox");
            faults.are_over();
            health.report_healthy(STAGE);
            gauge!(telemetry::CAPTURE_CONNECTED).set(1);
            self.read(client, &lease, &mut watch).await
        };
        match work.await.map_err(lost) {
            Err(CaptureError::Gap(gap)) => {
                watch.record(gap.clone()).await?;
                Err(CaptureError::Gap(gap))
            }
            Ok(Ended::HandedOver) => {
                lease.release().await;
                Ok(Ended::HandedOver)
            }
            other => other,
        }
    }

    /// Where to go on; nothing where the outbox is not what is read any more.
    async fn stored(&self) -> Result<Option<(Checkpoint, Bounds, Option<Handover>)>, CaptureError> {
        let Context { source, store, .. } = *self.context;
        let checkpoint = store.checkpoint(&source.slot).await?;
        match (checkpoint, store.capture_place(&source.slot).await?) {
            (Some(checkpoint), Some(Place::Outbox { window, handover })) => Ok(Some((checkpoint, window, handover))),
            (Some(_), Some(Place::Log)) => Ok(None),
            _ => Err(CaptureError::NotSetUp { slot: source.slot.clone() }),
        }
    }

    async fn read(
        &mut self,
        client: tokio_postgres::Client,
        lease: &Lease,
        watch: &mut Watch<'_>,
    ) -> Result<Ended, CaptureError> {
        let Context { source, batches, durable, .. } = *self.context;
        let Some(cursor) = &mut self.cursor else { return Err(CaptureError::NotSetUp { slot: source.slot.clone() }) };
        let handover = self.handover.as_ref();
        let durable = durable.clone();
        cursor.disconnected();
        let mut reader = Reader { client, source, batches, durable, reader: self.holder, handover, failed: false };
        let mut examined = Instant::now();
        let in_the_way = Condition::new();
        let mut left = handover.is_some() || leave::log(&reader.client, self.context, &in_the_way).await;
        loop {
            if lease.is_lost() {
                return Err(CaptureError::LeaseHeld(source.slot.clone()));
            }
            let asked = Instant::now();
            let step = reader.step(cursor).await?;
            self.known_until.advance(asked);
            if reader.failed {
                watch.failed(&reader.client).await?;
            }
            if examined.elapsed() > source.heartbeat.0 {
                in_time(watch.examine(&reader.client)).await?;
                left = left || leave::log(&reader.client, self.context, &in_the_way).await;
                examined = Instant::now();
            }
            match step {
                Step::Read => {}
                Step::Closed => return Ok(Ended::Stopped),
                Step::HandedOver => return Ok(Ended::HandedOver),
                // What becomes durable is cleared at once.
                Step::Idle => tokio::select! {
                    () = tokio::time::sleep(source.poll_interval.0) => {}
                    Ok(()) = reader.durable.changed() => {}
                },
            }
        }
    }
}

/// Bounds questions to the primary.
async fn in_time<T>(asked: impl Future<Output = Result<T, CaptureError>>) -> Result<T, CaptureError> {
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.unwrap_or(Err(CaptureError::Silent(ANSWER_TIMEOUT)))
}

/// What cannot be asked any more because it is gone, or is not ours any more.
fn lost(error: CaptureError) -> CaptureError {
    let CaptureError::Primary(primary) = &error else { return error };
    let gone = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ];
    match primary.code().is_some_and(|code| gone.contains(code)) {
        true => CaptureError::Gap(Gap::OutboxLost(postgres::describe(primary))),
        false => error,
    }
}

/// Triggers that were made for another mapping would tell of other columns.
pub(super) async fn verify(client: &tokio_postgres::Client, source: &Source) -> Result<(), CaptureError> {
    let watched = catalog::watched(client, source).await?;
    let comparison = catalog::compare(client, &watched).await?;
    let made = |name: &str| !comparison.lacking.iter().any(|lacking| lacking.function == name);
    let state = catalog::state(client).await?;
    if state.installed && !state.paired {
        tracing::warn!(
            "rows that move between partitions, or are deleted and inserted in one transaction, raise events as new rows: run `walhook setup`"
        );
    }
    match comparison.outdated.iter().find(|function| made(&function.name)) {
        Some(function) => Err(CaptureError::TriggersOutdated(function.name.clone())),
        None => Ok(()),
    }
}
