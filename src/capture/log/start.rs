//! Where reading of a log starts: at the checkpoint, or before it if the log has failed over
//! without its last events; and what an operator decides, by `walhook setup` and `walhook repair`.

use jiff::{SignedDuration, Timestamp};
use metrics::counter;
use uuid::Uuid;

use super::{open, open_readable};
use crate::capture::error::CaptureError;
use crate::config::Source;
use crate::domain::cell::{self, Cell, Shards};
use crate::domain::gap::Gap;
use crate::domain::lsn::Lineage;
use crate::domain::position::{Checkpoint, LogProgress, Progress};
use crate::failpoint::failpoint;
use crate::postgres;
use crate::primary::error::PrimaryError;
use crate::store::Store;
use crate::store::log::LogState;
use crate::store::migrate;
use crate::telemetry;

/// By how much the clocks of the log's server and this machine may differ: a fifth of what receivers
/// usually accept.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// Returns whether the log no longer has the event up to which it was read. An event that is only
/// missing was dropped or erased.
pub(super) fn has_diverged(read: LogProgress, found: &LogState) -> bool {
    let is_other = found
        .before
        .zip(read.event)
        .is_some_and(|(found, read)| found != read);
    found.last < read.number || is_other
}

/// Compares the log with the checkpoint, and moves the checkpoint back to the last common event if
/// the log has lost events. Returns the server and the progress from which to read.
pub(super) async fn start(
    log: &Store,
    store: &Store,
    slot: &str,
    stored: &Checkpoint,
    read: LogProgress,
    shards: Shards,
) -> Result<(Lineage, LogProgress), CaptureError> {
    let before = Timestamp::now();
    let found = log_state(log, read.number).await?;
    let skew = postgres::clock_skew(found.now, before);
    if skew > MAX_SKEW {
        return Err(CaptureError::LogClock(skew.as_secs()));
    }

    let lineage = found.lineage().ok_or(CaptureError::LogStandby)?;
    let known = stored.lineage;

    if found.store != read.store {
        return Err(foreign(read, &found));
    }

    if lineage.system_identifier == known.system_identifier && lineage.timeline < known.timeline {
        return Err(CaptureError::LogReplaced {
            found: lineage.timeline,
            known: known.timeline,
        });
    }

    let mut progress = read;
    let has_diverged = has_diverged(read, &found);

    if has_diverged {
        let number = last_common(log, store, read.number.min(found.last), shards).await?;
        progress = progress_at(log, number).await?;
    }

    if progress != read || lineage != known {
        let next = checkpoint(lineage, progress);
        move_checkpoint(store, slot, Some(stored), &next, false).await?;
    }

    if has_diverged {
        // The log's numbers count the events of other cells too.
        let own = store.events_after(progress.event).await?;
        let lost = own.unwrap_or(read.number - progress.number);
        counter!(telemetry::LOG_LOST).increment(lost);
        tracing::warn!(
            lost,
            after = progress.number,
            "the log store has lost its last events, which this store has: reading again after the last common event. Events that \
             the log gets again are skipped here, unless a repair of the log raises them under other ids"
        );
    }

    Ok((lineage, progress))
}

/// Finds the last event that the log and this store have at the same number, up to `highest`. What
/// is stored below it is common: a failover only removes the last events. If there is none, returns
/// the progress before the first event that this store does not have.
async fn last_common(
    log: &Store,
    store: &Store,
    highest: u64,
    shards: Shards,
) -> Result<u64, CaptureError> {
    let mut highest = highest;

    loop {
        let listed = numbers(log, highest, shards).await?;
        let Some((lowest, _)) = listed.last().copied() else {
            return Ok(highest);
        };

        let lowest = lowest as u64;
        let found = store.compare_log(&listed).await?;

        match (found.last_read, found.first_missing) {
            (Some(number), _) => return Ok(number),
            (None, None) => return Ok(highest),
            (None, Some(first)) if first > lowest => return Ok(first - 1),
            (None, Some(_)) => highest = lowest - 1,
        }
    }
}

/// Finds the first event that this store does not have, and returns the number before it, and
/// whether the two have any event in common. A page without a missing event ends the search. Events
/// after it that this store has are skipped when they are read.
async fn first_new(
    log: &Store,
    store: &Store,
    last: u64,
    shards: Shards,
) -> Result<(u64, bool), CaptureError> {
    let mut before = last;
    let mut has_common = false;
    let mut highest = last;

    loop {
        let listed = numbers(log, highest, shards).await?;
        let found = store.compare_log(&listed).await?;
        has_common |= found.has_common;

        match (listed.last(), found.first_missing) {
            (Some((lowest, _)), Some(first)) => {
                before = first - 1;
                highest = *lowest as u64 - 1;
            }
            _ => return Ok((before, has_common)),
        }
    }
}

async fn numbers(
    log: &Store,
    highest: u64,
    shards: Shards,
) -> Result<Vec<(i64, Uuid)>, CaptureError> {
    log.log_numbers(highest, shards)
        .await
        .map_err(CaptureError::Log)
}

/// Reads the state of the log, and the event at `after`.
async fn log_state(log: &Store, after: u64) -> Result<LogState, CaptureError> {
    log.log_state(after).await.map_err(CaptureError::Log)
}

/// Returns the cell of this process, as its store and the log's have it.
pub async fn cell(
    log: &Store,
    store: &Store,
    name: Option<&str>,
) -> Result<Option<Cell>, CaptureError> {
    let own = store.own_cell(name).await??;
    let map = log.cells().await.map_err(CaptureError::Log)?;
    cell::verify(own.as_ref(), &map)?;
    Ok(own)
}

/// Returns the shards whose events are read into a store, which may not be a cell yet.
async fn shards(store: &Store) -> Result<Shards, CaptureError> {
    let own = store.cells().await?;
    Ok(own.first().map_or(Shards::ALL, |cell| cell.shards))
}

/// Returns the progress up to the event of this number.
async fn progress_at(log: &Store, number: u64) -> Result<LogProgress, CaptureError> {
    let found = log_state(log, number).await?;

    Ok(LogProgress {
        store: found.store,
        number,
        event: found.before,
    })
}

pub(super) fn checkpoint(lineage: Lineage, progress: LogProgress) -> Checkpoint {
    Checkpoint {
        lineage,
        progress: Progress::Log(progress),
    }
}

/// Replaces the checkpoint. Fails if another process has moved it meanwhile.
async fn move_checkpoint(
    store: &Store,
    slot: &str,
    from: Option<&Checkpoint>,
    to: &Checkpoint,
    closes_gaps: bool,
) -> Result<(), CaptureError> {
    failpoint!("log_compared_checkpoint_not_moved")?;

    match store
        .replace_checkpoint(slot, from, to, closes_gaps)
        .await?
    {
        true => Ok(()),
        false => Err(CaptureError::Superseded(slot.to_owned())),
    }
}

/// Prepares the store for reading a log: migrates it, and stores the first checkpoint. A store with
/// events of its own continues with the first one that it does not have, another begins at the end
/// of the log. Returns what it did. Creates nothing on a primary or in the log.
pub async fn setup(
    source: &Source,
    url: &str,
    store_url: &str,
) -> Result<Vec<String>, CaptureError> {
    let log = open_readable(url).await?;
    let end = log.log_end().await.map_err(CaptureError::Log)?;
    let lineage = end.lineage().ok_or(CaptureError::LogStandby)?;

    let migrated = migrate::migrate(store_url).await?;
    let store = Store::open(store_url, 1)?;
    let mut done = Vec::new();

    if !migrated.is_empty() {
        done.push(format!(
            "store: schema brought up to date ({})",
            migrated.join(", ")
        ));
    }

    if is_same(&log, &store).await? {
        return Err(CaptureError::LogIsStore);
    }

    let stored = store.checkpoint(&source.slot).await?;
    if let Some(read) = stored.as_ref().and_then(|stored| stored.progress.log()) {
        return match read.store == end.store {
            true => Ok(done),
            false => Err(foreign(read, &end)),
        };
    }

    let (number, has_common) = first_new(&log, &store, end.last, shards(&store).await?).await?;

    if !has_common && stored.is_some() {
        return Err(CaptureError::LogNotCommon);
    }

    let progress = progress_at(&log, number).await?;
    let next = checkpoint(lineage, progress);
    move_checkpoint(&store, &source.slot, stored.as_ref(), &next, false).await?;
    done.push(format!(
        "checkpoint: the log of store {} is read after event {}",
        progress.store, progress.number
    ));

    match stored.map(|stored| stored.progress) {
        Some(Progress::Wal { .. }) => done.push(format!(
            "the slot of this store is not needed any more: on the primary, `select pg_drop_replication_slot('{}')`",
            source.slot
        )),
        Some(Progress::Outbox { .. }) => done.push(
            "the triggers of this store are not needed any more: on the primary, `drop schema walhook_capture cascade`"
                .to_owned(),
        ),
        Some(Progress::Log(_)) | None => {}
    }

    Ok(done)
}

/// Closes the gaps: what a log no longer has is nowhere else. With `force`, also reads another
/// installation's log from now on. Returns what it did.
pub async fn repair(
    source: &Source,
    url: &str,
    store: &Store,
    force: bool,
    dry_run: bool,
) -> Result<Vec<String>, CaptureError> {
    let gaps = store.open_gaps(&source.slot).await?;
    let (stored, read) = super::stored_progress(source, store).await?;
    let log = open(url)?;
    let end = log.log_end().await.map_err(CaptureError::Log)?;
    let lineage = end.lineage().ok_or(CaptureError::LogStandby)?;

    if gaps.is_empty() && (!force || read.store == end.store) {
        return Err(PrimaryError::NothingToRepair.into());
    }

    let would = if dry_run { "would be " } else { "" };
    let mut done: Vec<String> = gaps
        .iter()
        .map(|gap| format!("gap {} {would}closed: {}", gap.reason, gap.detail))
        .collect();

    if read.store == end.store {
        if !dry_run {
            store.accept_gaps(&source.slot).await?;
        }

        return Ok(done);
    }

    if !force {
        return Err(foreign(read, &end));
    }

    let (number, _) = first_new(&log, store, end.last, shards(store).await?).await?;
    let progress = progress_at(&log, number).await?;
    if !dry_run {
        let next = checkpoint(lineage, progress);
        move_checkpoint(store, &source.slot, Some(&stored), &next, true).await?;
    }

    done.push(format!(
        "the log of store {} {would}read after event {}",
        progress.store, progress.number
    ));
    Ok(done)
}

fn foreign(read: LogProgress, found: &LogState) -> CaptureError {
    let (known, found) = (read.store, found.store);
    PrimaryError::Gap(Gap::LogForeign { known, found }).into()
}

/// Returns whether both are the same database of the same server.
pub async fn is_same(log: &Store, store: &Store) -> Result<bool, CaptureError> {
    let log = log.identity().await.map_err(CaptureError::Log)?;
    Ok(log.is_same(&store.identity().await?))
}
