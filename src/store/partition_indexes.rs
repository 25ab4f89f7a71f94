//! Statements that build the indexes of partitions. A migration creates an index of a partitioned
//! table on the table alone, because building it at once would block writes. New partitions get it
//! when they are attached; maintenance builds it for the others.

use std::time::Duration;

use deadpool_postgres::Transaction;

use super::pool::allow_idle;
use super::statement::{FromRow, from_row};
use super::{Result, Store, StoreError, cancel_on_drop, partitions};
use crate::postgres::ANSWER_TIMEOUT;
use crate::sql::store as sql;

/// The state of an index by its name. No row if there is none.
const IS_VALID: &str =
    "select indisvalid from pg_catalog.pg_index where indexrelid = to_regclass($1)";
/// A build waits for the transactions that run when it starts, such as a `pg_dump`. It blocks
/// nothing but other maintenance, and partitions exist days ahead.
const LONGEST_BUILD: Duration = Duration::from_secs(3_600);

/// An index that a partition lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingIndex {
    table: String,
    partition: String,
    /// The index of the partitioned table.
    pub parent: String,
    /// From `USING` on.
    definition: String,
}

from_row! { MissingIndex { table, partition, parent, definition } }

impl MissingIndex {
    /// The name of the partition's index: `event_20260301_feed` for the parent `event_feed`.
    pub fn name(&self) -> String {
        let parent = self
            .parent
            .strip_prefix(&*self.table)
            .and_then(|rest| rest.strip_prefix('_'));
        format!("{}_{}", self.partition, parent.unwrap_or(&self.parent))
    }
}

/// The result of building a missing index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    Built,
    /// Another replica maintains partitions.
    NotNeeded,
}

impl Store {
    /// Returns the indexes that partitions lack, those of the newest partitions first.
    pub async fn missing_indexes(&self) -> Result<Vec<MissingIndex>> {
        self.fetch_all(sql::partition::MISSING_INDEXES, &[]).await
    }

    /// Builds an index while the partition is read and written, and attaches it to the parent.
    /// Removes what an interrupted attempt left.
    pub async fn build_index(&self, missing: &MissingIndex) -> Result<Build> {
        let mut connection = self.connection().await?;

        // Holds the lock of maintenance. A lock of the session would not be safe behind a
        // transaction pooler.
        let turn = connection.transaction().await?;

        // Without the lock, another replica would take the index for one that an interrupted build
        // left, and drop it. Not without a limit: the lock of a process that has vanished must be
        // released some time.
        allow_idle(&turn, LONGEST_BUILD + ANSWER_TIMEOUT).await?;

        if !partitions::try_lock(&turn).await?
            || !partitions::exists(&turn, &missing.partition).await?
        {
            return Ok(Build::NotNeeded);
        }

        let name = missing.name();
        let state = is_valid(&turn, &name).await?;
        if state != Some(true) {
            // Closes the portal of the query before, which has a snapshot until then. The build
            // would wait for it.
            turn.batch_execute("select").await?;

            // Not in the transaction: a concurrent build has its own ones.
            let build = cancel_on_drop(self.build_alone(missing, &name, state.is_some()));
            tokio::time::timeout(LONGEST_BUILD, build)
                .await
                .map_err(|_| StoreError::Silent(LONGEST_BUILD))??;
        }

        // Locks the new index exclusively for a moment: within the transaction, whose waits for
        // locks are short.
        turn.batch_execute(&format!(
            "alter index walhook.{} attach partition walhook.{name}",
            missing.parent
        ))
        .await?;
        turn.commit().await?;

        Ok(Build::Built)
    }

    async fn build_alone(
        &self,
        missing: &MissingIndex,
        name: &str,
        is_left_over: bool,
    ) -> Result<()> {
        let connection = self.connection().await?;

        if is_left_over {
            connection
                .batch_execute(&format!("drop index concurrently if exists walhook.{name}"))
                .await?;
        }

        let MissingIndex {
            partition,
            definition,
            ..
        } = missing;
        let create =
            format!("create index concurrently {name} on walhook.{partition} {definition}");
        Ok(connection.batch_execute(&create).await?)
    }
}

async fn is_valid(transaction: &Transaction<'_>, name: &str) -> Result<Option<bool>> {
    let row = transaction
        .query_opt(IS_VALID, &[&format!("walhook.{name}")])
        .await?;
    row.as_ref().map(bool::from_row).transpose()
}
