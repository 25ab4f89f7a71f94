//! The checkpoint of capture, and what guards it: the claims and the lease on reading, the limit of
//! acknowledged WAL, notes of a slot's creation, and gaps.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{GenericClient, Transaction};
use parking_lot::Mutex;
use postgres_types::Json;
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use super::statement::{FromRow, Params, Statements, column, from_row};
use super::{Result, Store, StoreError, commit_durably};
use crate::domain::gap::Gap;
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::{Checkpoint, LogProgress, Progress, Through};
use crate::domain::publication::PublicationMembers;
use crate::domain::read_pages::ReadPages;
use crate::domain::window::{Snapshot, Window};
use crate::failpoint::failpoint;
use crate::postgres::without_transaction_timeout;
use crate::sql::store as sql;

/// A checkpoint, and a switch from the outbox to the WAL that was started.
#[derive(Clone, Debug)]
pub struct StoredCheckpoint {
    pub checkpoint: Checkpoint,
    /// While the outbox is read: the prepared switch. While the WAL is read: the switch that was
    /// made, until the triggers are dropped.
    pub switch: Option<SwitchToWal>,
}

/// A switch to the WAL: the outbox is read up to `snapshot`, the WAL from `begins`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchToWal {
    pub snapshot: Snapshot,
    pub begins: Lsn,
}

impl StoredCheckpoint {
    /// Returns whether the outbox is read.
    pub const fn is_outbox(&self) -> bool {
        self.checkpoint.progress.is_outbox()
    }
}

impl FromRow for StoredCheckpoint {
    fn from_row(row: &Row) -> Result<Self> {
        let text = |name| column::<Option<String>>(row, name);
        let switch = text("handover_snapshot")?.zip(column::<Option<Lsn>>(row, "handover_lsn")?);

        Ok(StoredCheckpoint {
            checkpoint: Checkpoint {
                lineage: Lineage::from_row(row)?,
                progress: Progress::from_row(row)?,
            },
            switch: switch.map(|(snapshot, begins)| SwitchToWal {
                snapshot: Snapshot::from(&*snapshot),
                begins,
            }),
        })
    }
}

impl FromRow for Progress {
    fn from_row(row: &Row) -> Result<Self> {
        let ordinal: Option<u64> = column(row, "ordinal")?;
        let through = ordinal.map_or(Through::End, Through::Ordinal);

        if let Some(commit) = column(row, "commit_lsn")? {
            return Ok(Progress::Wal {
                commit,
                through,
                resume: column(row, "resume_lsn")?,
            });
        }

        if let Some(store) = column(row, "log_store")? {
            return Ok(Progress::Log(LogProgress {
                store,
                number: column(row, "log_number")?,
                event: column(row, "log_event")?,
            }));
        }

        let snapshot = |name| Ok::<_, StoreError>(Snapshot::from(row.try_get::<_, &str>(name)?));
        let window = Window {
            number: column(row, "window_number")?,
            from: snapshot("window_from")?,
            to: snapshot("window_to")?,
        };

        let read = ReadPages::from_text(row.try_get("read_pages")?)
            .map_err(|error| StoreError::Corrupt(format!("read_pages: {error}")))?;

        Ok(Progress::Outbox {
            window,
            through,
            last_row: column(row, "last_row")?,
            read: Arc::new(read),
        })
    }
}

impl FromRow for Lineage {
    fn from_row(row: &Row) -> Result<Self> {
        // PostgreSQL's catalog shows the identifier as a signed number too.
        let system_identifier = row.try_get::<_, i64>("system_identifier")? as u64;
        Ok(Lineage {
            system_identifier,
            timeline: column(row, "timeline")?,
        })
    }
}

/// A position as the columns of `walhook.checkpoint`.
#[derive(Default)]
struct Columns<'a> {
    commit: Option<Lsn>,
    resume: Option<Lsn>,
    window: Option<i64>,
    window_from: Option<&'a str>,
    window_to: Option<&'a str>,
    last_row: Option<i64>,
    read_pages: Option<String>,
    ordinal: Option<i64>,
    log_store: Option<Uuid>,
    log_number: Option<i64>,
    log_event: Option<Uuid>,
}

impl<'a> From<&'a Progress> for Columns<'a> {
    fn from(progress: &'a Progress) -> Self {
        let ordinal = match progress.through() {
            // Far from 2⁶³: PostgreSQL itself counts the commands of a transaction in 32 bits.
            Through::Ordinal(ordinal) => Some(ordinal as i64),
            Through::End => None,
        };

        match progress {
            Progress::Wal { commit, resume, .. } => Columns {
                commit: Some(*commit),
                resume: Some(*resume),
                ordinal,
                ..Columns::default()
            },
            Progress::Outbox {
                window,
                last_row,
                read,
                ..
            } => Columns {
                window: Some(window.number as i64),
                window_from: Some(window.from.as_str()),
                window_to: Some(window.to.as_str()),
                last_row: Some(*last_row as i64),
                read_pages: Some(read.to_text()),
                ordinal,
                ..Columns::default()
            },
            Progress::Log(log) => Columns {
                log_store: Some(log.store),
                log_number: Some(log.number as i64),
                log_event: log.event,
                ..Columns::default()
            },
        }
    }
}

/// A gap that is not repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenGap {
    /// A name from a fixed set, such as `slot_missing`.
    pub reason: String,
    pub detail: String,
}

from_row!(OpenGap { reason, detail });

impl Store {
    pub async fn checkpoint(&self, slot: &str) -> Result<Option<Checkpoint>> {
        self.checkpoint_of_reader(slot, None).await
    }

    /// Returns the checkpoint if `reader` holds the claim on it. No other process has stored
    /// anything since the claim.
    pub async fn checkpoint_of_reader(
        &self,
        slot: &str,
        reader: Option<Uuid>,
    ) -> Result<Option<Checkpoint>> {
        let stored: Option<StoredCheckpoint> = self
            .fetch_optional(sql::checkpoint::GET, &[&slot, &reader])
            .await?;
        Ok(stored.map(|stored| stored.checkpoint))
    }

    /// Returns the checkpoint with a switch to the WAL that was started.
    pub async fn stored_checkpoint(&self, slot: &str) -> Result<Option<StoredCheckpoint>> {
        self.fetch_optional(sql::checkpoint::GET, &[&slot, &None::<Uuid>])
            .await
    }

    /// Makes `reader` the only process whose batches advance the checkpoint. Use a new id for each
    /// claim: with the same id, batches that were read before another process's claim would be
    /// accepted again.
    pub async fn claim_checkpoint(&self, slot: &str, reader: Uuid) -> Result<()> {
        self.run(sql::checkpoint::CLAIM, &[&slot, &reader]).await?;
        Ok(())
    }

    /// Returns what the publication streamed at the last start of the stream. None before the first
    /// one, and while the outbox is read.
    pub async fn publication_members(&self, slot: &str) -> Result<Option<PublicationMembers>> {
        Ok(self
            .fetch_optional::<Option<PublicationMembers>>(
                sql::checkpoint::PUBLICATION_MEMBERS,
                &[&slot],
            )
            .await?
            .flatten())
    }

    /// Stores what the publication streams.
    pub async fn store_publication_members(
        &self,
        slot: &str,
        members: &PublicationMembers,
    ) -> Result<()> {
        self.run(
            sql::checkpoint::SET_PUBLICATION_MEMBERS,
            &[&slot, &Json(members)],
        )
        .await?;
        Ok(())
    }

    /// Moves the checkpoint to another timeline. Returns false if it is no longer `found`. From
    /// then on, batches that were read on the previous timeline are rejected in every process.
    pub async fn enter_timeline(
        &self,
        slot: &str,
        found: &Checkpoint,
        timeline: u32,
    ) -> Result<bool> {
        let expected = Columns::from(&found.progress);
        let from = found.lineage.timeline as i32;
        let to = timeline as i32;

        Ok(self
            .run(
                sql::checkpoint::ENTER_TIMELINE,
                &[&slot, &expected.commit, &expected.ordinal, &from, &to],
            )
            .await?
            == 1)
    }

    /// Replaces the checkpoint, also by one that is earlier or of another kind. Returns false if it
    /// is no longer `expected`. Ends every claim on it. `closes_gaps`: together with the gaps.
    pub async fn replace_checkpoint(
        &self,
        slot: &str,
        expected: Option<&Checkpoint>,
        next: &Checkpoint,
        closes_gaps: bool,
    ) -> Result<bool> {
        self.transaction(async |transaction| {
            hold_checkpoint(transaction, slot).await?;
            let found: Option<StoredCheckpoint> = transaction
                .fetch_optional(sql::checkpoint::GET, &[&slot, &None::<Uuid>])
                .await?;
            if found.map(|found| found.checkpoint).as_ref() != expected {
                return Ok(false);
            }

            match closes_gaps {
                true => close_gaps(transaction, slot).await?,
                false => transaction.run(sql::checkpoint::DELETE, &[&slot]).await?,
            };
            insert_first_checkpoint(transaction, slot, next, None).await?;
            Ok(true)
        })
        .await
    }

    /// Closes the open gaps of a slot. Its checkpoint stays.
    pub async fn accept_gaps(&self, slot: &str) -> Result<()> {
        self.run(sql::gap::CLOSE, &[&slot]).await?;
        Ok(())
    }

    /// Forgets a switch to the WAL whose triggers are dropped.
    pub async fn forget_switch(&self, slot: &str) -> Result<()> {
        self.run(sql::checkpoint::FORGET_SWITCH, &[&slot]).await?;
        Ok(())
    }

    /// Deletes the slot's checkpoint and closes the gaps that were measured from it.
    pub async fn forget_checkpoint(&self, slot: &str) -> Result<()> {
        self.transaction(async |transaction| {
            close_gaps(transaction, slot).await?;
            end_slot_creation(transaction, slot).await
        })
        .await
    }

    /// Takes or renews the lease on reading the outbox. Returns false if another process holds it.
    pub async fn take_capture_lease(
        &self,
        slot: &str,
        holder: Uuid,
        length: Duration,
    ) -> Result<bool> {
        Ok(self
            .run(
                sql::capture_lease::TAKE,
                &[&slot, &holder, &length.as_secs_f64()],
            )
            .await?
            == 1)
    }

    pub async fn release_capture_lease(&self, slot: &str, holder: Uuid) -> Result<()> {
        self.run(sql::capture_lease::RELEASE, &[&slot, &holder])
            .await?;
        Ok(())
    }

    /// Records a gap. Returns false if it was known, or if the checkpoint no longer resumes `at`
    /// this LSN.
    pub async fn record_gap(&self, slot: &str, gap: &Gap, at: Option<Lsn>) -> Result<bool> {
        Ok(self
            .run(
                sql::gap::RECORD,
                &[&slot, &gap.reason(), &gap.to_string(), &at],
            )
            .await?
            == 1)
    }

    pub async fn open_gaps(&self, slot: &str) -> Result<Vec<OpenGap>> {
        self.fetch_all(sql::gap::OPEN, &[&slot]).await
    }

    /// Notes that the slot is about to be created. The note is removed with the transaction that
    /// stores its first checkpoint.
    pub async fn begin_slot(&self, slot: &str) -> Result<()> {
        self.run(sql::slot_creation::BEGIN, &[&slot]).await?;
        Ok(())
    }

    /// Returns whether a setup started to create the slot and did not finish.
    pub async fn is_creating_slot(&self, slot: &str) -> Result<bool> {
        self.fetch_one(sql::slot_creation::EXISTS, &[&slot]).await
    }

    /// Returns the limit. Zero if none is stored.
    pub async fn acknowledgement_limit(&self, slot: &str) -> Result<Lsn> {
        let limit = self
            .fetch_optional(sql::acknowledgement::LIMIT, &[&slot])
            .await?;
        Ok(limit.unwrap_or(Lsn::ZERO))
    }

    /// Returns the reader that moves the limit.
    pub async fn acknowledgement_reader(&self, slot: &str) -> Result<Option<Uuid>> {
        let reader = self
            .fetch_optional(sql::acknowledgement::READER, &[&slot])
            .await?;
        Ok(reader.flatten())
    }

    /// Makes `reader` the only one that moves the limit, and returns the limit. None if the reader
    /// is no longer `found`.
    pub async fn claim_acknowledgement(
        &self,
        slot: &str,
        found: Option<Uuid>,
        reader: Uuid,
    ) -> Result<Option<Lsn>> {
        self.fetch_optional(sql::acknowledgement::CLAIM, &[&slot, &found, &reader])
            .await
    }

    /// Raises the limit. Returns false if another reader has replaced this one.
    pub async fn raise_acknowledgement_limit(
        &self,
        slot: &str,
        reader: Uuid,
        limit: Lsn,
    ) -> Result<bool> {
        failpoint!("idle_wal_read_limit_not_raised")?;
        Ok(self
            .run(sql::acknowledgement::RAISE, &[&slot, &reader, &limit])
            .await?
            == 1)
    }

    /// Lowers the limit to the LSN that was acknowledged. Returns false if another reader has
    /// replaced this one.
    pub async fn lower_acknowledgement_limit(
        &self,
        slot: &str,
        reader: Uuid,
        acknowledged: Lsn,
    ) -> Result<bool> {
        Ok(self
            .run(
                sql::acknowledgement::LOWER,
                &[&slot, &reader, &acknowledged],
            )
            .await?
            == 1)
    }
}

/// Moves the checkpoint from `expected` to `next`. Returns false if it is somewhere else, on
/// another timeline, or not claimed by `reader`.
pub async fn advance_checkpoint(
    transaction: &impl GenericClient,
    slot: &str,
    expected: &Checkpoint,
    next: &Checkpoint,
    reader: Option<Uuid>,
) -> Result<bool> {
    let from = Columns::from(&expected.progress);
    let to = Columns::from(&next.progress);
    let old_timeline = expected.lineage.timeline as i32;
    let new_timeline = next.lineage.timeline as i32;

    let params: &Params<'_> = &[
        &slot,
        &old_timeline,
        &from.commit,
        &from.window,
        &from.ordinal,
        &from.log_number,
        &from.log_event,
        &reader,
        &new_timeline,
        &to.commit,
        &to.resume,
        &to.window,
        &to.window_from,
        &to.window_to,
        &to.last_row,
        &to.read_pages,
        &to.ordinal,
        &to.log_number,
        &to.log_event,
    ];

    Ok(transaction.run(sql::checkpoint::ADVANCE, params).await? == 1)
}

/// Stores the first checkpoint of a slot, with what the publication streams from there on. Fails if
/// the slot has one.
pub async fn insert_first_checkpoint(
    transaction: &Transaction<'_>,
    slot: &str,
    first: &Checkpoint,
    members: Option<&PublicationMembers>,
) -> Result<()> {
    commit_durably(transaction).await?;
    let Lineage {
        system_identifier,
        timeline,
    } = first.lineage;
    let system_identifier = system_identifier as i64;
    let timeline = timeline as i32;

    let first = Columns::from(&first.progress);
    let members = members.map(Json);

    let params: &Params<'_> = &[
        &slot,
        &system_identifier,
        &timeline,
        &first.commit,
        &first.resume,
        &first.window,
        &first.window_from,
        &first.window_to,
        &first.last_row,
        &first.read_pages,
        &first.ordinal,
        &first.log_store,
        &first.log_number,
        &first.log_event,
        &members,
    ];

    transaction.run(sql::checkpoint::INSERT, params).await?;
    Ok(())
}

/// Prepares the switch to the WAL. Returns false if the outbox is not being read.
pub async fn prepare_switch(
    transaction: &Transaction<'_>,
    slot: &str,
    switch: &SwitchToWal,
) -> Result<bool> {
    commit_durably(transaction).await?;

    Ok(transaction
        .run(
            sql::checkpoint::PREPARE_SWITCH,
            &[&slot, &switch.snapshot.as_str(), &switch.begins],
        )
        .await?
        == 1)
}

/// Removes the note that the slot is being created.
pub async fn end_slot_creation(transaction: &Transaction<'_>, slot: &str) -> Result<()> {
    transaction.run(sql::slot_creation::END, &[&slot]).await?;
    Ok(())
}

/// Locks out other repairs of the slot until the transaction ends. Returns false if one is running.
/// The transaction may wait for as long as the primary needs to build indexes and to create a slot.
pub async fn lock_repair(transaction: &Transaction<'_>, slot: &str) -> Result<bool> {
    let unlimited = format!(
        "set local idle_in_transaction_session_timeout = 0; {}",
        without_transaction_timeout(true)
    );
    transaction.batch_execute(&unlimited).await?;
    transaction
        .fetch_one(sql::checkpoint::LOCK_REPAIR, &[&slot])
        .await
}

/// Locks the checkpoint: no other process moves it until the transaction ends.
pub async fn hold_checkpoint(transaction: &Transaction<'_>, slot: &str) -> Result<()> {
    transaction.run(sql::checkpoint::LOCK, &[&slot]).await?;
    Ok(())
}

/// Deletes the checkpoint and closes the gaps that were measured from it. Returns the number of
/// gaps.
pub async fn close_gaps(transaction: &Transaction<'_>, slot: &str) -> Result<u64> {
    transaction.run(sql::checkpoint::DELETE, &[&slot]).await?;
    transaction.run(sql::gap::CLOSE, &[&slot]).await
}

/// Sets the limit, in the transaction that stores the first checkpoint of a slot.
pub async fn set_acknowledgement_limit(
    transaction: &impl GenericClient,
    slot: &str,
    limit: Lsn,
) -> Result<()> {
    transaction
        .run(sql::acknowledgement::SET, &[&slot, &limit])
        .await?;
    Ok(())
}

/// The checkpoint that this process committed last. A store with an earlier one was restored from a
/// backup, or failed over without its last commits. Shared by the clones of a [`Store`].
#[derive(Clone, Default)]
pub(super) struct Committed(Arc<Mutex<Option<Checkpoint>>>);

impl Committed {
    fn set(&self, checkpoint: Option<Checkpoint>) {
        *self.0.lock() = checkpoint;
    }

    /// Returns whether `found` is older than what was committed. Only positions in the WAL of one
    /// timeline compare.
    fn is_after(&self, found: &Checkpoint) -> bool {
        let committed = self.0.lock();
        committed.as_ref().is_some_and(|committed| {
            let are_comparable = committed.lineage == found.lineage
                && committed.progress.resume().is_some()
                && found.progress.resume().is_some();
            are_comparable && !found.progress.has_reached(&committed.progress)
        })
    }
}

impl Store {
    /// Notes that this process has committed `checkpoint`.
    pub fn note_committed(&self, checkpoint: &Checkpoint) {
        self.committed.set(Some(checkpoint.clone()));
    }

    /// Returns whether the store has lost commits of this process: `found` is the checkpoint that
    /// it has now.
    pub fn has_lost_commits(&self, found: &Checkpoint) -> bool {
        self.committed.is_after(found)
    }

    /// Forgets what this process has committed, because it is read again.
    pub fn forget_committed(&self) {
        self.committed.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(timeline: u32, commit: u64) -> Checkpoint {
        let progress = Progress::Wal {
            commit: Lsn(commit),
            through: Through::End,
            resume: Lsn(commit + 1),
        };

        Checkpoint {
            lineage: Lineage {
                system_identifier: 1,
                timeline,
            },
            progress,
        }
    }

    #[test]
    fn an_earlier_checkpoint_of_the_same_timeline_has_lost_commits() {
        let committed = Committed::default();
        assert!(
            !committed.is_after(&checkpoint(1, 5)),
            "nothing was committed"
        );
        committed.set(Some(checkpoint(1, 7)));
        assert!(committed.is_after(&checkpoint(1, 5)));
        assert!(!committed.is_after(&checkpoint(1, 7)) && !committed.is_after(&checkpoint(1, 9)));
        assert!(
            !committed.is_after(&checkpoint(2, 5)),
            "another timeline is compared by its history"
        );
        committed.set(None);
        assert!(!committed.is_after(&checkpoint(1, 5)));
    }
}
