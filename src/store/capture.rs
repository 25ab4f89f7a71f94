//! What capture stores: the checkpoint, the lease on reading the outbox, gaps, replica identities
//! and the store's own identity.
//!
//! ## Stored positions
//!
//! `walhook.checkpoint` keeps positions in the WAL and in the outbox in the same columns. `Columns`
//! and [`StoredCheckpoint`] are the only code that translates them:
//!
//! | column | WAL | outbox |
//! |---|---|---|
//! | `commit_lsn` | LSN of the commit | number of the window |
//! | `ordinal` | ordinal of the last stored change, or 2⁶³-1 for the whole transaction | the same for rows of the window |
//! | `resume_lsn` | where streaming restarts | highest sequence number that was read |
//! | `window_from`, `window_to` | null | the window's two snapshots |
//! | `publication_members` | what the publication streamed at the last start of the stream | null |
//! | `outbox_pages` | null | the pages that were read last, with the number and the ordinal that they belong to |
//! | `handover_*` | set until the triggers are dropped after a switch | set when a switch to the WAL is prepared |
//!
//! The meaning of the columns has not changed since version 0.1.0, which does not know
//! `outbox_pages` and `publication_members`. An upgrade continues from the row that the previous
//! version wrote, and after a rollback the previous version continues from the row that this one
//! wrote. Replicas of both may run at the same time.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{GenericClient, Transaction};
use jiff::Timestamp;
use postgres_types::{Json, ToSql};
use tokio_postgres::Row;
use uuid::Uuid;

use super::statement::{FromRow, Params, Statements, column, from_row};
use super::{Result, Store, StoreError, commit_durably};
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::publication::PublicationMembers;
use crate::domain::read_pages::ReadPages;
use crate::domain::window::{Snapshot, Window};
use crate::sql::store as sql;

/// The stored `ordinal` of a whole transaction or window.
const END: i64 = i64::MAX;

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
        let number: Lsn = column(row, "commit_lsn")?;
        let resume: Lsn = column(row, "resume_lsn")?;
        let through = match row.try_get("ordinal")? {
            END => Through::End,
            ordinal => Through::Ordinal(u64::try_from(ordinal).map_err(|_| negative("ordinal"))?),
        };

        let snapshot =
            |name| Ok::<_, StoreError>(row.try_get::<_, Option<&str>>(name)?.map(Snapshot::from));
        let progress = match snapshot("window_from")?.zip(snapshot("window_to")?) {
            Some((from, to)) => {
                let ordinal = row.try_get("ordinal")?;
                let text: Option<&str> = row.try_get("outbox_pages")?;
                let read = text.and_then(|text| ReadPages::from_text(text, number.0, ordinal));
                let read = Arc::new(read.unwrap_or_else(|| ReadPages::after_window(number.0)));

                Progress::Outbox {
                    window: Window {
                        number: number.0,
                        from,
                        to,
                    },
                    through,
                    last_row: resume.0,
                    read,
                }
            }
            None => Progress::Wal {
                commit: number,
                through,
                resume,
            },
        };

        let switch =
            snapshot("handover_snapshot")?.zip(column::<Option<Lsn>>(row, "handover_lsn")?);
        Ok(StoredCheckpoint {
            checkpoint: Checkpoint {
                lineage: Lineage::from_row(row)?,
                progress,
            },
            switch: switch.map(|(snapshot, begins)| SwitchToWal { snapshot, begins }),
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

fn negative(column: &str) -> StoreError {
    StoreError::Corrupt(format!("{column} of a checkpoint is negative"))
}

/// A position as the columns of `walhook.checkpoint`.
struct Columns<'a> {
    commit: Lsn,
    ordinal: i64,
    resume: Lsn,
    window_from: Option<&'a str>,
    window_to: Option<&'a str>,
    outbox_pages: Option<String>,
}

impl<'a> From<&'a Progress> for Columns<'a> {
    fn from(progress: &'a Progress) -> Self {
        let (Progress::Wal { through, .. } | Progress::Outbox { through, .. }) = progress;
        let ordinal = match through {
            // Far from 2⁶³: PostgreSQL itself counts the commands of a transaction in 32 bits.
            Through::Ordinal(ordinal) => *ordinal as i64,
            Through::End => END,
        };

        let (resume, window, outbox_pages) = match progress {
            Progress::Wal { resume, .. } => (*resume, None, None),
            Progress::Outbox {
                window,
                last_row,
                read,
                ..
            } => (
                Lsn(*last_row),
                Some(window),
                Some(read.to_text(window.number, ordinal)),
            ),
        };

        Columns {
            commit: Lsn(progress.number()),
            ordinal,
            resume,
            window_from: window.map(|window| window.from.as_str()),
            window_to: window.map(|window| window.to.as_str()),
            outbox_pages,
        }
    }
}

/// A table's replica identity before setup changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundIdentity {
    pub table_oid: u32,
    /// For messages. The oid identifies the table.
    pub table_name: String,
    /// As in `pg_class`: `d`, `n`, `f` or `i`.
    pub identity: String,
    pub index: Option<String>,
}

/// A gap that is not repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenGap {
    /// A name from a fixed set, such as `slot_missing`.
    pub reason: String,
    pub detail: String,
}

from_row!(OpenGap { reason, detail });

/// The server, database and role of the store.
#[derive(Clone, Debug)]
pub struct Identity {
    pub system_identifier: i64,
    pub database: String,
    pub role: String,
    pub encoding: String,
    pub synchronous_commit: String,
    /// Whether commits can wait for a standby.
    pub synchronous: bool,
    pub now: Timestamp,
}

from_row!(Identity {
    system_identifier,
    database,
    role,
    encoding,
    synchronous_commit,
    synchronous,
    now
});

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
            .fetch_optional(sql::checkpoint::READ, &[&slot, &reader])
            .await?;
        Ok(stored.map(|stored| stored.checkpoint))
    }

    /// Returns the checkpoint with a switch to the WAL that was started.
    pub async fn stored_checkpoint(&self, slot: &str) -> Result<Option<StoredCheckpoint>> {
        self.fetch_optional(sql::checkpoint::READ, &[&slot, &None::<Uuid>])
            .await
    }

    /// Makes `reader` the only process whose batches advance the checkpoint. Use a new id for each
    /// claim: with the same id, batches that were read before another process's claim would be
    /// accepted again.
    pub async fn claim_checkpoint(&self, slot: &str, reader: Uuid) -> Result<()> {
        self.run(sql::checkpoint::CLAIM, &[&slot, &reader]).await?;
        Ok(())
    }

    /// Returns what the publication streamed at the last start of the stream. None if an earlier
    /// version has stored the checkpoint.
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
            sql::checkpoint::STORE_PUBLICATION_MEMBERS,
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
        let Columns {
            commit, ordinal, ..
        } = Columns::from(&found.progress);
        let from = found.lineage.timeline as i32;
        let to = timeline as i32;

        Ok(self
            .run(
                sql::checkpoint::ENTER_TIMELINE,
                &[&slot, &commit, &ordinal, &from, &to],
            )
            .await?
            == 1)
    }

    /// Forgets a switch to the WAL whose triggers are dropped.
    pub async fn forget_switch(&self, slot: &str) -> Result<()> {
        self.run(sql::checkpoint::HANDED_OVER, &[&slot]).await?;
        Ok(())
    }

    /// Deletes the slot's checkpoint and closes the gaps that were measured from it.
    pub async fn forget_checkpoint(&self, slot: &str) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;

        close_gaps(&transaction, slot).await?;
        end_slot_creation(&transaction, slot).await?;
        Ok(transaction.commit().await?)
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
    pub async fn record_gap(
        &self,
        slot: &str,
        reason: &str,
        detail: &str,
        at: Option<Lsn>,
    ) -> Result<bool> {
        Ok(self
            .run(sql::gap::RECORD, &[&slot, &reason, &detail, &at])
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

    pub async fn remember_identity(&self, found: &FoundIdentity) -> Result<()> {
        let FoundIdentity {
            table_oid,
            table_name,
            identity,
            index,
        } = found;

        self.run(
            sql::replica_identity::REMEMBER,
            &[table_oid, table_name, identity, index],
        )
        .await?;
        Ok(())
    }

    pub async fn found_identities(&self) -> Result<Vec<FoundIdentity>> {
        self.fetch_all(sql::replica_identity::LIST, &[]).await
    }

    pub async fn forget_identities(&self) -> Result<()> {
        self.run(sql::replica_identity::FORGET, &[]).await?;
        Ok(())
    }

    pub async fn has_schema(&self) -> Result<bool> {
        self.fetch_one(sql::server::SCHEMA_EXISTS, &[]).await
    }

    /// Drops the schema, also one without tables. Returns false if there is none.
    pub async fn drop_schema(&self) -> Result<bool> {
        let was_created = self.fetch_one(sql::server::SCHEMA_CREATED, &[]).await?;
        self.run(sql::server::DROP_SCHEMA, &[]).await?;

        Ok(was_created)
    }

    pub async fn identity(&self) -> Result<Identity> {
        self.fetch_one(sql::server::IDENTIFY, &[]).await
    }
}

impl FromRow for FoundIdentity {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(FoundIdentity {
            // An oid, which is read as `u32` itself.
            table_oid: row.try_get("table_oid")?,
            table_name: column(row, "table_name")?,
            identity: column(row, "identity")?,
            index: column(row, "index_name")?,
        })
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

    let params: [&(dyn ToSql + Sync); 12] = [
        &slot,
        &from.commit,
        &from.ordinal,
        &to.commit,
        &to.ordinal,
        &to.resume,
        &new_timeline,
        &to.window_from,
        &to.window_to,
        &reader,
        &old_timeline,
        &to.outbox_pages,
    ];

    Ok(transaction.run(sql::checkpoint::ADVANCE, &params).await? == 1)
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

    let Columns {
        commit,
        ordinal,
        resume,
        window_from,
        window_to,
        ..
    } = Columns::from(&first.progress);

    let sql = sql::checkpoint::FIRST;
    let members = members.map(Json);

    let params: &Params<'_> = &[
        &slot,
        &system_identifier,
        &timeline,
        &commit,
        &ordinal,
        &resume,
        &window_from,
        &window_to,
        &members,
    ];

    transaction.run(sql, params).await?;
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
            sql::checkpoint::HAND_OVER,
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
    transaction
        .batch_execute("set local idle_in_transaction_session_timeout = 0")
        .await?;
    transaction
        .fetch_one(sql::checkpoint::LOCK_REPAIR, &[&slot])
        .await
}

/// Locks the checkpoint: no other process moves it until the transaction ends.
pub async fn hold_checkpoint(transaction: &Transaction<'_>, slot: &str) -> Result<()> {
    transaction.run(sql::checkpoint::HOLD, &[&slot]).await?;
    Ok(())
}

/// Deletes the checkpoint and closes the gaps that were measured from it. Returns the number of
/// gaps.
pub async fn close_gaps(transaction: &Transaction<'_>, slot: &str) -> Result<u64> {
    transaction.run(sql::checkpoint::DELETE, &[&slot]).await?;
    transaction.run(sql::gap::CLOSE, &[&slot]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_stored_as_earlier_versions_store_them() {
        let wal = Progress::Wal {
            commit: Lsn(7),
            through: Through::End,
            resume: Lsn(9),
        };

        let columns = Columns::from(&wal);
        assert_eq!(
            (columns.commit, columns.ordinal, columns.resume),
            (Lsn(7), i64::MAX, Lsn(9))
        );
        assert_eq!(
            (columns.window_from, columns.window_to, columns.outbox_pages),
            (None, None, None)
        );

        let window = Window {
            number: 8,
            from: "1:5:".into(),
            to: "5:9:".into(),
        };

        let outbox = Progress::in_window(window, Through::Ordinal(3), 4);
        let columns = Columns::from(&outbox);

        assert_eq!(
            (columns.commit, columns.ordinal, columns.resume),
            (Lsn(8), 3, Lsn(4))
        );
        assert_eq!(
            (columns.window_from, columns.window_to),
            (Some("1:5:"), Some("5:9:"))
        );
        assert_eq!(columns.outbox_pages.as_deref(), Some("[8,3,8,[]]"));
    }
}
