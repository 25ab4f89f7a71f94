//! Reads the log of another store: the events that `walhook run --roles capture` has derived and
//! stored there. This store takes them with their ids, and makes its own deliveries.

mod start;

use std::sync::Arc;
use std::time::Instant;

use metrics::gauge;
use tokio::sync::Notify;
use uuid::Uuid;

use super::context::{CaptureContext, Ended, Origin, STAGE};
use super::error::CaptureError;
use super::session::{ReadUntil, Session, Sessions};
use crate::config::Source;
use crate::domain::cell::{Cell, CellFault, Shards};
use crate::domain::change::Batch;
use crate::domain::gap::Gap;
use crate::domain::lsn::Lineage;
use crate::domain::position::{Checkpoint, LogProgress};
use crate::failpoint::failpoint;
use crate::postgres::{self, ANSWER_TIMEOUT};
use crate::primary::error::PrimaryError;
use crate::primary::lease::CaptureLease;
use crate::store::Store;
use crate::store::cells::claim_cell;
use crate::store::log::{CHANNEL, PAGE, lowest_id_after};
use crate::store::migrate;
use crate::store::processes::new_claim;
use crate::telemetry;

pub use start::{cell, is_same, repair, setup};

/// A page of a small cell has at most this many times the numbers of a page of a store without cells.
const MAX_PARTS: u64 = 16;

/// Reads until shutdown or a permanent error.
pub(super) async fn run(context: &CaptureContext<'_>) -> Result<Ended, CaptureError> {
    let sessions = Sessions::new(context);
    let holder = new_claim();

    let session = LogSession {
        context,
        holder,
        sent: None,
        read_until: sessions.read_until.clone(),
    };

    sessions.run_with_lease(holder, session).await
}

/// Opens the log's store: one connection, whose statements are limited and use indexes.
pub fn open(url: &str) -> Result<Store, CaptureError> {
    Store::open_log(url, ANSWER_TIMEOUT).map_err(CaptureError::Log)
}

/// Like [`open`]. Fails if this build cannot read the events of the store's schema.
pub async fn open_readable(url: &str) -> Result<Store, CaptureError> {
    let log = open(url)?;
    let schema = migrate::schema(url).await.map_err(CaptureError::Log)?;

    match schema.unreadable() {
        Some(problem) => Err(CaptureError::LogUnreadable(problem)),
        None => Ok(log),
    }
}

/// Checks that there is a checkpoint from which to read, that the log can be read, and that the
/// store is the cell that the settings name, or of no cell.
pub(super) async fn preflight(
    source: &Source,
    origin: Origin<'_>,
    store: &Store,
) -> Result<(), CaptureError> {
    stored_progress(source, store).await?;
    let log = open_readable(origin.url).await?;
    start::cell(&log, store, origin.cell).await.map(drop)
}

async fn stored_progress(
    source: &Source,
    store: &Store,
) -> Result<(Checkpoint, LogProgress), CaptureError> {
    let stored = store.checkpoint(&source.slot).await?;
    let found = stored.and_then(|stored| stored.progress.log().map(|log| (stored, log)));

    Ok(found.ok_or_else(|| PrimaryError::NotSetUp {
        slot: source.slot.clone(),
    })?)
}

/// The state that outlives connections.
struct LogSession<'a> {
    context: &'a CaptureContext<'a>,
    /// The id of the lease and of the claim on the checkpoint.
    holder: Uuid,
    /// What was sent to enqueue last.
    sent: Option<Checkpoint>,
    read_until: ReadUntil,
}

impl Session for LogSession<'_> {
    async fn run(&mut self, sessions: &mut Sessions<'_>) -> Result<Ended, CaptureError> {
        let CaptureContext {
            source,
            url,
            cell: name,
            store,
            ref gaps,
            ..
        } = *self.context;

        // The checkpoint may have to move back. No batch may be under way that does not know.
        if !self.wait_until_stored().await {
            return Ok(Ended::Stopped);
        }

        let Some(lease) = CaptureLease::take(store, &source.slot, self.holder).await? else {
            return Err(CaptureError::LeaseHeld(source.slot.clone()));
        };

        failpoint!("log_lease_taken_checkpoint_not_claimed")?;
        gaps.report_open().await?;

        let log = open(url)?;
        let wake = Arc::new(Notify::new());
        let listener = postgres::listen(url, CHANNEL, wake.clone())
            .await
            .map_err(|error| CaptureError::Log(error.into()))?;
        let cell = start::cell(&log, store, name).await?;
        let shards = cell.as_ref().map_or(Shards::ALL, |cell| cell.shards);

        if let Some(Cell { name, .. }) = &cell
            && !claim_cell(&listener, name)
                .await
                .map_err(CaptureError::Log)?
        {
            return Err(CaptureError::CellHeld(name.clone()));
        }

        let (stored, progress) = stored_progress(source, store).await?;
        let started = start::start(&log, store, &source.slot, &stored, progress, shards).await;

        let (lineage, progress) = match started {
            Err(CaptureError::Primary(PrimaryError::Gap(gap))) => {
                return Err(gaps.record_and_end(gap, None).await.into());
            }
            other => other?,
        };

        // Enqueue continues from the last batch that it has stored.
        let begins = start::checkpoint(lineage, progress);
        if self.sent.as_ref().is_some_and(|sent| *sent != begins) {
            return Err(CaptureError::LogMoved);
        }

        store.claim_checkpoint(&source.slot, self.holder).await?;

        // A change of the map after this ends the claim.
        if start::cell(&log, store, name).await? != cell {
            return Err(CellFault::Changed.into());
        }

        failpoint!("log_checkpoint_claimed_log_not_read")?;

        tracing::info!(
            slot = source.slot,
            after = progress.number,
            "reading events from the log"
        );
        sessions.started();

        let mut reader = LogReader {
            log,
            lineage,
            progress,
            cell,
            numbers: PAGE,
            reads_all: false,
            examined_at: Instant::now(),
        };

        while !listener.is_closed() {
            if lease.is_lost() {
                return Err(CaptureError::LeaseHeld(source.slot.clone()));
            }

            let Some(is_idle) = self.step(&mut reader).await? else {
                return Ok(Ended::Stopped);
            };

            if reader.examined_at.elapsed() > source.heartbeat.0 {
                gaps.report_open().await?;
                reader.examined_at = Instant::now();
            }

            if is_idle {
                // Behind some poolers, notifications do not arrive.
                let _ = tokio::time::timeout(source.poll_interval.0, wake.notified()).await;
            }
        }

        Err(CaptureError::LogStops)
    }
}

/// How far one session has read, and where.
struct LogReader {
    log: Store,
    lineage: Lineage,
    progress: LogProgress,
    cell: Option<Cell>,
    /// How many numbers the next page has: as many as fitted into the last one, if events are long.
    numbers: u64,
    /// Whether the next page looks for events of all ids: among those of recent ids, some were missing.
    reads_all: bool,
    /// When gaps were last looked up: an operator may have closed them.
    examined_at: Instant,
}

impl LogReader {
    /// Returns the numbers among which a page of own events is expected.
    fn most_numbers(&self) -> u64 {
        let shards = self.cell.as_ref().map_or(Shards::ALL, |cell| cell.shards);
        PAGE * shards.parts().min(MAX_PARTS)
    }
}

impl LogSession<'_> {
    /// Waits until everything that was sent is stored. Returns false if enqueue has stopped.
    async fn wait_until_stored(&self) -> bool {
        let Some(sent) = &self.sent else {
            return true;
        };

        let mut durable = self.context.durable.clone();
        let stored = durable.wait_for(|durable| {
            durable
                .as_ref()
                .is_some_and(|durable| durable.progress.has_reached(&sent.progress))
        });
        stored.await.is_ok()
    }

    /// Reads a page and passes it on. Returns whether there was nothing to read, and none if
    /// enqueue has stopped.
    async fn step(&mut self, reader: &mut LogReader) -> Result<Option<bool>, CaptureError> {
        let CaptureContext {
            batches,
            health,
            durable,
            store: own,
            cell: name,
            ref gaps,
            ..
        } = *self.context;

        if batches.is_closed() {
            return Ok(None);
        }

        let started_at = Instant::now();
        let after = reader.progress;
        let lowest = match after.event {
            Some(event) if !reader.reads_all => lowest_id_after(event),
            _ => Uuid::nil(),
        };
        let page = reader
            .log
            .log_page(after.number, lowest, reader.numbers, reader.cell.as_ref())
            .await
            .map_err(CaptureError::Log)?;
        let state = &page.state;

        if state.epoch != reader.cell.as_ref().map(|cell| cell.epoch) {
            start::cell(&reader.log, own, name).await?;
            return Err(CellFault::Changed.into());
        }

        if state.store != after.store
            || state.lineage() != Some(reader.lineage)
            || start::has_diverged(after, state)
        {
            return Err(CaptureError::LogMoved);
        }

        self.read_until.advance(started_at);
        let durable = durable
            .borrow()
            .as_ref()
            .and_then(|stored| stored.progress.log());
        let behind = state.last.saturating_sub(durable.unwrap_or(after).number);
        gauge!(telemetry::LOG_BEHIND).set(behind as f64);

        let is_complete =
            state.missing == 0 && (page.newest().is_some() || state.last <= after.number);
        reader.reads_all = !is_complete && !lowest.is_nil();
        if reader.reads_all {
            return Ok(Some(false));
        }

        let Some((number, newest)) = page.newest() else {
            return match page.unknown {
                Some(kind) => Err(CaptureError::LogNewer(kind)),
                None => {
                    health.report_healthy(STAGE);
                    Ok(Some(true))
                }
            };
        };

        let read = number - after.number;
        let missed = state.missing;

        if missed > 0 {
            // Which of them are before the end of a page that was cut is not known.
            if page.is_cut && reader.numbers > 1 {
                reader.numbers /= 2;
                return Ok(Some(false));
            }

            let after = after.number;
            gaps.record(&Gap::LogExpired { missed, after }, None)
                .await?;
            failpoint!("log_gap_recorded_events_not_sent")?;
        }

        let progress = LogProgress {
            number,
            event: Some(newest),
            ..after
        };
        let checkpoint = start::checkpoint(reader.lineage, progress);

        let batch = Batch {
            changes: Vec::new(),
            derived: page.events,
            checkpoint: checkpoint.clone(),
            transaction: None,
            reader: Some(self.holder),
        };

        failpoint!("log_page_read_batch_not_sent")?;
        health.report_healthy(STAGE);
        if batches.send(batch).await.is_err() {
            return Ok(None);
        }

        reader.progress = progress;
        reader.numbers = match page.is_cut {
            true => read,
            false => (reader.numbers * 2).min(reader.most_numbers()),
        };
        self.sent = Some(checkpoint);
        Ok(Some(false))
    }
}
