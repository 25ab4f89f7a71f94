//! Erases a user: removes everything that is stored about the user, while replicas continue to
//! deliver.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::fault::Result;
use crate::domain::event::UserId;
use crate::failpoint::failpoint;
use crate::store::erase::{self, ACCESS, OF_WEBHOOK, RECORDS, Unrecorded};
use crate::store::handoffs::{Handoffs, Locked, unpack};
use crate::store::{Store, StoreError};

/// Each pass removes what requests and replicas stored during the previous one. The number is
/// limited, because the platform may continue to commit rows of the user.
const MAX_PASSES: usize = 3;

/// The result of an erasure.
#[derive(Clone, Debug)]
pub struct Erased {
    /// Identifies the erasure in the audit log, which does not name the user.
    pub id: Uuid,
    /// The number of rows of each kind, in the order of removal.
    pub counts: Vec<(&'static str, u64)>,
}

impl Erased {
    /// Adds to the number of rows of one kind. Returns whether `count` is not zero.
    fn add(&mut self, what: &'static str, count: u64) -> bool {
        match self.counts.iter_mut().find(|(name, _)| *name == what) {
            Some((_, sum)) => *sum += count,
            None => self.counts.push((what, count)),
        }

        count > 0
    }

    /// Returns the erasure until rows were removed: the audit log has it from then on.
    fn unrecorded(&self) -> Unrecorded {
        (self.total() == 0).then_some(self.id)
    }

    /// Returns the number of rows of all kinds.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

/// Removes the user's tokens, sessions, events and audit records, and their webhooks with secrets,
/// deliveries, logs and statistics, those of deleted webhooks included. Can be repeated, and must
/// be repeated if it fails midway.
///
/// Keeps add-ons, which mirror the platform's own table, events whose owner was never found, and
/// ids of the platform's rows without which events would be raised twice.
pub async fn erase(store: &Store, user: &UserId) -> Result<Erased> {
    let mut erased = Erased {
        id: Uuid::now_v7(),
        counts: Vec::new(),
    };

    let mut webhooks = BTreeSet::new();

    for _ in 0..MAX_PASSES {
        let before = erased.total();
        pass(store, user, &mut webhooks, &mut erased).await?;

        if erased.total() == before {
            break;
        }
    }

    failpoint!("rows_removed_erasure_not_ended").map_err(StoreError::from)?;
    Ok(erased)
}

/// Removes everything once. Adds the user's deleted webhooks to `webhooks`, which contains those
/// that earlier passes found.
async fn pass(
    store: &Store,
    user: &UserId,
    webhooks: &mut BTreeSet<Uuid>,
    erased: &mut Erased,
) -> Result<()> {
    for removal in ACCESS {
        while erased.add(
            removal.what,
            erase::remove(store, removal, user, erased.unrecorded()).await?,
        ) {}
    }

    failpoint!("access_removed_webhooks_not_removed").map_err(StoreError::from)?;
    erased.add(
        "webhooks with their secrets",
        erase::remove_webhooks(store, user, erased.unrecorded()).await?,
    );
    failpoint!("webhooks_removed_traces_not_removed").map_err(StoreError::from)?;
    webhooks.extend(erase::find_deleted_webhooks(store, user).await?);

    for webhook in &*webhooks {
        // What was handed off has rows afterwards.
        unpack(store, Handoffs::OfWebhook(*webhook), Locked::Wait).await?;

        for removal in OF_WEBHOOK {
            while erased.add(
                removal.what,
                erase::remove(store, removal, webhook, erased.unrecorded()).await?,
            ) {}
        }
    }

    failpoint!("traces_removed_events_not_removed").map_err(StoreError::from)?;
    let mut after = Some(Uuid::nil());
    while let Some(last) = after {
        let chunk = erase::remove_events(store, user, last, erased.unrecorded()).await?;
        erased.add("events", chunk.removed);
        after = chunk.next();
    }

    failpoint!("events_removed_records_not_removed").map_err(StoreError::from)?;

    for removal in RECORDS {
        while erased.add(
            removal.what,
            erase::remove(store, removal, user, erased.unrecorded()).await?,
        ) {}
    }

    Ok(())
}
