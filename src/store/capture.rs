//! What capture and its setup keep: the first checkpoint, gaps, releases distributed before, replica identities as found.

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use postgres_types::PgLsn;

use super::{Result, Store, commit_durably};
use crate::domain::lsn::{Checkpoint, Lsn};
use crate::domain::window::Bounds;

const GAP_RECORD: &str = include_str!("../../sql/store/gap_record.sql");
const GAP_OPEN: &str = include_str!("../../sql/store/gap_open.sql");
const GAP_CLOSE: &str = include_str!("../../sql/store/gap_close.sql");
const CHECKPOINT_HOLD: &str = include_str!("../../sql/store/checkpoint_hold.sql");
const REPAIR_LOCK: &str = include_str!("../../sql/store/repair_lock.sql");
const CHECKPOINT_ENTER_TIMELINE: &str = include_str!("../../sql/store/checkpoint_enter_timeline.sql");
const CHECKPOINT_FIRST: &str = include_str!("../../sql/store/checkpoint_first.sql");
const CHECKPOINT_DELETE: &str = include_str!("../../sql/store/checkpoint_delete.sql");
const DISTRIBUTED_RELEASE_SEED: &str = include_str!("../../sql/store/distributed_release_seed.sql");
const SLOT_CREATION_BEGIN: &str = include_str!("../../sql/store/slot_creation_begin.sql");
const SLOT_CREATION_END: &str = include_str!("../../sql/store/slot_creation_end.sql");
const SLOT_CREATION_EXISTS: &str = include_str!("../../sql/store/slot_creation_exists.sql");
const REPLICA_IDENTITY_REMEMBER: &str = include_str!("../../sql/store/replica_identity_remember.sql");
const REPLICA_IDENTITY_LIST: &str = include_str!("../../sql/store/replica_identity_list.sql");
const REPLICA_IDENTITY_FORGET: &str = include_str!("../../sql/store/replica_identity_forget.sql");
const SCHEMA_DROP: &str = include_str!("../../sql/store/schema_drop.sql");
const SCHEMA_EXISTS: &str = include_str!("../../sql/store/schema_exists.sql");
const IDENTIFY: &str = include_str!("../../sql/store/identify.sql");

/// A table's replica identity before setup changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundIdentity {
    pub table_oid: u32,
    /// For people; the number is what identifies it.
    pub table_name: String,
    /// As in `pg_class`: `d`, `n`, `f` or `i`.
    pub identity: String,
    pub index: Option<String>,
}

/// A stretch of the log that was lost and is not repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenGap {
    /// A word of a fixed set, such as `slot_missing`.
    pub reason: String,
    /// In words.
    pub detail: String,
}

/// Where the store is.
#[derive(Clone, Debug)]
pub struct Place {
    pub system_identifier: i64,
    pub database: String,
    pub role: String,
    pub synchronous_commit: String,
    /// Whether commits can wait for a standby.
    pub synchronous: bool,
    pub now: Timestamp,
}

impl Store {
    /// Notes a stretch of the log as lost; false when it was known, or when the checkpoint does not resume `at` any more.
    pub async fn record_gap(&self, slot: &str, reason: &str, detail: &str, at: Option<Lsn>) -> Result<bool> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(GAP_RECORD).await?;
        Ok(connection.execute(&statement, &[&slot, &reason, &detail, &at.map(|at| PgLsn::from(at.0))]).await? == 1)
    }

    pub async fn open_gaps(&self, slot: &str) -> Result<Vec<OpenGap>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(GAP_OPEN).await?;
        let rows = connection.query(&statement, &[&slot]).await?;
        Ok(rows.iter().map(|row| OpenGap { reason: row.get(0), detail: row.get(1) }).collect())
    }

    /// Puts the checkpoint on another timeline; false when it is not `found` any more. Batches that were read on the timeline
    /// before are refused from then on, in every process.
    pub async fn enter_timeline(&self, slot: &str, found: &Checkpoint, timeline: u32) -> Result<bool> {
        let Checkpoint { lineage, position, .. } = *found;
        let (commit, ordinal) = (PgLsn::from(position.commit.0), position.ordinal as i64);
        let connection = self.connection().await?;
        let timelines = (lineage.timeline as i32, timeline as i32);
        let moved = connection
            .execute(CHECKPOINT_ENTER_TIMELINE, &[&slot, &commit, &ordinal, &timelines.0, &timelines.1])
            .await?;
        Ok(moved == 1)
    }

    /// Gives the slot's position up, with the gaps that were measured from it.
    pub async fn forget_checkpoint(&self, slot: &str) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        close_gaps(&transaction, slot).await?;
        end_slot_creation(&transaction, slot).await?;
        Ok(transaction.commit().await?)
    }

    /// Notes that a slot is about to be created, until its first checkpoint is here.
    pub async fn begin_slot(&self, slot: &str) -> Result<()> {
        self.connection().await?.execute(SLOT_CREATION_BEGIN, &[&slot]).await?;
        Ok(())
    }

    /// Whether a setup has begun to create the slot and has not come to its end.
    pub async fn is_creating_slot(&self, slot: &str) -> Result<bool> {
        Ok(self.connection().await?.query_one(SLOT_CREATION_EXISTS, &[&slot]).await?.get(0))
    }

    pub async fn remember_identity(&self, found: &FoundIdentity) -> Result<()> {
        let connection = self.connection().await?;
        connection
            .execute(REPLICA_IDENTITY_REMEMBER, &[&found.table_oid, &found.table_name, &found.identity, &found.index])
            .await?;
        Ok(())
    }

    pub async fn found_identities(&self) -> Result<Vec<FoundIdentity>> {
        let rows = self.connection().await?.query(REPLICA_IDENTITY_LIST, &[]).await?;
        let found = rows.iter().map(|row| FoundIdentity {
            table_oid: row.get(0),
            table_name: row.get(1),
            identity: row.get(2),
            index: row.get(3),
        });
        Ok(found.collect())
    }

    pub async fn forget_identity(&self, table_oid: u32) -> Result<()> {
        self.connection().await?.execute(REPLICA_IDENTITY_FORGET, &[&table_oid]).await?;
        Ok(())
    }

    pub async fn has_schema(&self) -> Result<bool> {
        Ok(self.connection().await?.query_one(SCHEMA_EXISTS, &[]).await?.get(0))
    }

    pub async fn drop_schema(&self) -> Result<()> {
        Ok(self.connection().await?.batch_execute(SCHEMA_DROP).await?)
    }

    pub async fn place(&self) -> Result<Place> {
        let row = self.connection().await?.query_one(IDENTIFY, &[]).await?;
        Ok(Place {
            system_identifier: row.get("system_identifier"),
            database: row.get("database"),
            role: row.get("role"),
            synchronous_commit: row.get("synchronous_commit"),
            synchronous: row.get("synchronous"),
            now: row.get("now"),
        })
    }
}

/// Stores where capture begins: in the log, or behind a window of the outbox. Fails where the slot has a checkpoint.
pub async fn insert_first_checkpoint(
    transaction: &Transaction<'_>,
    slot: &str,
    first: &Checkpoint,
    window: Option<&Bounds>,
) -> Result<()> {
    commit_durably(transaction).await?;
    // The catalog shows the identifier as a signed number too.
    let system_identifier = first.lineage.system_identifier as i64;
    transaction
        .execute(
            CHECKPOINT_FIRST,
            &[
                &slot,
                &system_identifier,
                &(first.lineage.timeline as i32),
                &PgLsn::from(first.position.commit.0),
                &(first.position.ordinal as i64),
                &PgLsn::from(first.resume.0),
                &window.map(|window| window.from.as_str()),
                &window.map(|window| window.to.as_str()),
            ],
        )
        .await?;
    Ok(())
}

/// The slot's creation is complete, or given up.
pub async fn end_slot_creation(transaction: &Transaction<'_>, slot: &str) -> Result<()> {
    transaction.execute(SLOT_CREATION_END, &[&slot]).await?;
    Ok(())
}

/// Enters releases that were distributed before capture began: for them the event is not raised again.
pub async fn seed_distributed(transaction: &Transaction<'_>, releases: &[i64]) -> Result<()> {
    let statement = transaction.prepare_cached(DISTRIBUTED_RELEASE_SEED).await?;
    transaction.execute(&statement, &[&releases]).await?;
    Ok(())
}

/// Whether this transaction, for as long as it lasts, is the slot's only repair.
pub async fn lock_repair(transaction: &Transaction<'_>, slot: &str) -> Result<bool> {
    Ok(transaction.query_one(REPAIR_LOCK, &[&slot]).await?.get(0))
}

/// Keeps everybody else from moving the checkpoint.
pub async fn hold_checkpoint(transaction: &Transaction<'_>, slot: &str) -> Result<()> {
    transaction.execute(CHECKPOINT_HOLD, &[&slot]).await?;
    Ok(())
}

/// Gives the slot's position up within a transaction, with the gaps that were measured from it.
pub async fn close_gaps(transaction: &Transaction<'_>, slot: &str) -> Result<u64> {
    transaction.execute(CHECKPOINT_DELETE, &[&slot]).await?;
    Ok(transaction.execute(GAP_CLOSE, &[&slot]).await?)
}
