//! How far idle WAL may be acknowledged, and which reader moves this limit.

use deadpool_postgres::GenericClient;
use uuid::Uuid;

use super::statement::Statements;
use super::{Result, Store};
use crate::domain::lsn::Lsn;
use crate::failpoint::failpoint;
use crate::sql::store as sql;

impl Store {
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
