//! What a comparison found, as events and deliveries: by the same rules as the stream, in the repair's own transaction.

use std::collections::HashSet;

use super::derive::{Raised, derive_found};
use super::fan_out::fan_out;
use super::{EnqueueError, insert, subscriptions_to};
use crate::domain::change::Change;
use crate::domain::event::Event;
use crate::domain::lsn::Lineage;
use crate::lookup::Lookups;
use crate::store::Transaction;
use crate::store::enqueue::{NewLease, claim_distributed, insert_unrouted, undistributed};

/// What a part of the differences came to.
#[derive(Debug, Default)]
pub struct Repaired {
    pub events: Vec<Event>,
    /// How many deliveries were made, and how many webhooks missed an event by being inactive.
    pub deliveries: usize,
    pub missed: usize,
    /// Events without anybody to tell.
    pub unrouted: usize,
}

/// Makes events of changes that a comparison found.
pub struct Repair {
    /// With add-ons as the primary has them: those of the store are as old as the checkpoint.
    pub lookups: Lookups,
    pub lineage: Lineage,
    /// Writes nothing.
    pub dry_run: bool,
}

impl Repair {
    /// Stores what `changes` raise, unless it is a dry run.
    pub async fn raise(&mut self, transaction: &Transaction<'_>, changes: &[Change]) -> Result<Repaired, EnqueueError> {
        let mut raised = derive_found(&mut self.lookups, changes, self.lineage).await?;
        let first_time = self.first_distributions(transaction, &raised).await?;
        raised.once.keep_first(&mut raised.events, first_time);
        let subscriptions = subscriptions_to(transaction, &raised.events).await?;
        let fanned_out = fan_out(&raised.events, &subscriptions, |_, _| false);
        let repaired = Repaired {
            deliveries: fanned_out.deliveries.len(),
            missed: fanned_out.missed.len(),
            unrouted: raised.unrouted.len(),
            events: Vec::new(),
        };
        if !self.dry_run {
            insert(transaction, &raised.events, &fanned_out, NewLease::NONE, true).await?;
            insert_unrouted(transaction, &raised.unrouted).await?;
        }
        Ok(Repaired { events: raised.events, ..repaired })
    }

    async fn first_distributions(
        &self,
        transaction: &Transaction<'_>,
        raised: &Raised,
    ) -> Result<HashSet<i64>, EnqueueError> {
        Ok(match self.dry_run {
            true => undistributed(transaction, &raised.distributed).await?,
            false => claim_distributed(transaction, &raised.distributed).await?,
        })
    }
}
