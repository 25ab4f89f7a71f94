//! Raises the events of changes that a repair found, in the repair's own transaction and by the
//! same rules as the stream.

use std::collections::HashSet;

use super::derive::{Raised, derive_found};
use super::error::EnqueueError;
use super::fan_out::fan_out;
use super::save::{insert, subscriptions_of};
use crate::domain::change::Change;
use crate::domain::event::Event;
use crate::domain::lsn::Lineage;
use crate::lookup::Lookups;
use crate::store::enqueue::{claim_distributed, undistributed};
use crate::store::ignored::add_ignored;
use crate::store::unrouted::insert_unrouted;
use crate::store::{Transaction, sequences};

/// The events of one part of the found changes.
#[derive(Debug, Default)]
pub struct Repaired {
    pub events: Vec<Event>,
    pub deliveries: usize,
    /// How many events inactive webhooks missed.
    pub missed: usize,
    /// How many events have no owner.
    pub unrouted: usize,
}

/// Stores the events of changes that a repair found.
pub struct RepairEnqueue {
    /// Lookups of the primary's current rows: the add-ons in the store are as old as the
    /// checkpoint.
    pub lookups: Lookups,
    pub lineage: Lineage,
    /// Longer data of an event cannot be sent, and is not stored whole.
    pub max_data: usize,
    /// Whether to store nothing.
    pub dry_run: bool,
}

impl RepairEnqueue {
    /// Stores the events of `changes`, unless this is a dry run.
    pub async fn raise(
        &mut self,
        transaction: &Transaction<'_>,
        changes: &[Change],
    ) -> Result<Repaired, EnqueueError> {
        let mut raised =
            derive_found(&mut self.lookups, changes, self.lineage, self.max_data).await?;

        for event in &mut raised.events {
            event.repaired = true;
        }

        self.store(transaction, raised).await
    }

    /// Stores derived events.
    pub(super) async fn store(
        &self,
        transaction: &Transaction<'_>,
        mut raised: Raised,
    ) -> Result<Repaired, EnqueueError> {
        let first_time = self.first_distributions(transaction, &raised).await?;
        raised.once.keep_first(&mut raised.events, first_time);

        // A dry run locks no numbers: others may make deliveries meanwhile.
        let (subscriptions, mut numbers) =
            subscriptions_of(transaction, &raised.events, !self.dry_run).await?;
        let mut fanned_out = fan_out(&raised.events, &subscriptions, &mut numbers, |_, _, _| {
            false
        });

        // Deliveries with an order key are parked, also those that wait for none: this transaction
        // takes so long that it must not lock deliveries. Afterwards, `Store::promote_stranded`
        // makes the first ones due.
        for delivery in &mut fanned_out.deliveries {
            delivery.is_parked = delivery.order_key.is_some();
        }

        if !self.dry_run {
            insert(transaction, &raised.events, &fanned_out, None).await?;
            sequences::store(transaction, &numbers.changed()).await?;
            insert_unrouted(transaction, &raised.unrouted).await?;
            add_ignored(transaction, &raised.ignored).await?;
        }

        Ok(Repaired {
            deliveries: fanned_out.deliveries.len(),
            missed: fanned_out.missed.len(),
            unrouted: raised.unrouted.len(),
            events: raised.events,
        })
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
