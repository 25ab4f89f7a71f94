//! What capture by triggers keeps beside its checkpoint: the window being read, a prepared switch to the log, and the lease of
//! the one process that reads.

use std::time::Duration;

use deadpool_postgres::Transaction;
use postgres_types::PgLsn;
use uuid::Uuid;

use super::{Result, Store, commit_durably};
use crate::domain::lsn::Lsn;
use crate::domain::window::{Bounds, Snapshot};

const CLAIM: &str = include_str!("../../sql/store/checkpoint_claim.sql");
const WINDOW: &str = include_str!("../../sql/store/checkpoint_window.sql");
const HAND_OVER: &str = include_str!("../../sql/store/checkpoint_hand_over.sql");
const HANDED_OVER: &str = include_str!("../../sql/store/checkpoint_handed_over.sql");
const LEASE_TAKE: &str = include_str!("../../sql/store/capture_lease_take.sql");
const LEASE_RELEASE: &str = include_str!("../../sql/store/capture_lease_release.sql");

/// Where a switch to the log is made: the outbox is read up to `snapshot`, the log from `begins` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    pub snapshot: Snapshot,
    pub begins: Lsn,
}

/// Where the stored position is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Log,
    Outbox { window: Bounds, handover: Option<Handover> },
}

impl Store {
    /// Where the checkpoint of `slot` stands; nothing where it has none.
    pub async fn capture_place(&self, slot: &str) -> Result<Option<Place>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(WINDOW).await?;
        let Some(row) = connection.query_opt(&statement, &[&slot]).await? else { return Ok(None) };
        let snapshot = |column: usize| row.get::<_, Option<&str>>(column).map(Snapshot::from);
        let Some((from, to)) = snapshot(0).zip(snapshot(1)) else { return Ok(Some(Place::Log)) };
        let handover = snapshot(2).zip(row.get::<_, Option<PgLsn>>(3));
        let handover = handover.map(|(snapshot, begins)| Handover { snapshot, begins: Lsn(begins.into()) });
        Ok(Some(Place::Outbox { window: Bounds { from, to }, handover }))
    }

    /// Whether a switch to the log has been made, and is not yet forgotten.
    pub async fn handed_over(&self, slot: &str) -> Result<bool> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(WINDOW).await?;
        let row = connection.query_opt(&statement, &[&slot]).await?;
        Ok(row.is_some_and(|row| row.get::<_, Option<&str>>(1).is_none() && row.get::<_, Option<PgLsn>>(3).is_some()))
    }

    /// Forgets a switch that has been made.
    pub async fn forget_handover(&self, slot: &str) -> Result<()> {
        self.connection().await?.execute(HANDED_OVER, &[&slot]).await?;
        Ok(())
    }

    /// Takes or renews the lease on reading the outbox; false when another process has it.
    pub async fn take_capture_lease(&self, slot: &str, holder: Uuid, length: Duration) -> Result<bool> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(LEASE_TAKE).await?;
        Ok(connection.execute(&statement, &[&slot, &holder, &length.as_secs_f64()]).await? == 1)
    }

    pub async fn release_capture_lease(&self, slot: &str, holder: Uuid) -> Result<()> {
        self.connection().await?.execute(LEASE_RELEASE, &[&slot, &holder]).await?;
        Ok(())
    }

    /// Makes `reader` the only process whose batches advance the checkpoint. Use a new id for each claim: with the same id, batches
    /// that were read before another process's claim would be accepted again.
    pub async fn claim_checkpoint(&self, slot: &str, reader: Uuid) -> Result<()> {
        self.connection().await?.execute(CLAIM, &[&slot, &reader]).await?;
        Ok(())
    }
}

/// Prepares the switch to the log; false where the outbox is not what is read.
pub async fn hand_over(transaction: &Transaction<'_>, slot: &str, handover: &Handover) -> Result<bool> {
    commit_durably(transaction).await?;
    let begins = PgLsn::from(handover.begins.0);
    Ok(transaction.execute(HAND_OVER, &[&slot, &handover.snapshot.as_str(), &begins]).await? == 1)
}
