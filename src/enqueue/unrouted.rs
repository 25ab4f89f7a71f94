//! Derives and routes unrouted events again, by the present mapping and rows, under the same ids.

use super::derive::{MALFORMED, Raised, derive_found};
use super::error::EnqueueError;
use super::repair::RepairEnqueue;
use crate::config::TableMappings;
use crate::domain::change::{Change, ChangeRecord};
use crate::domain::position::Position;
use crate::store::unrouted::{Unrouted, take_unrouted};
use crate::store::{Store, StoreError};

/// The result of one event.
#[derive(Debug, PartialEq, Eq)]
pub enum Rerouted {
    /// It is stored with its deliveries.
    Routed,
    /// Another process has routed or discarded it.
    Gone,
    /// It cannot be routed, for this reason.
    Unrouted(String),
}

impl RepairEnqueue {
    /// Derives an event again. If it has an owner now, stores it with its deliveries in one
    /// transaction.
    pub async fn reroute(
        &mut self,
        store: &Store,
        mappings: &TableMappings,
        unrouted: &Unrouted,
    ) -> Result<Rerouted, EnqueueError> {
        let record = unrouted
            .change
            .as_deref()
            .and_then(|change| serde_json::from_str::<ChangeRecord>(change).ok());
        let operation = record.and_then(|record| {
            record.operation(|table, column, value| mappings.datum(table, column, value))
        });
        let Some((table, operation)) = operation else {
            return Ok(Rerouted::Unrouted("change_not_stored".to_owned()));
        };

        let ordinal = unrouted.ordinal as u64;
        let position = match unrouted.commit {
            Some(commit) => Position::Wal {
                timeline: self.lineage.timeline,
                commit,
                ordinal,
            },
            None => Position::Outbox {
                window: 0,
                transaction: 0,
                ordinal,
            },
        };

        let mut change = Change {
            position,
            committed_at: unrouted.occurred_at,
            muted: false,
            table,
            operation,
        };

        let mut raised = self.derive_again(&change, &unrouted.kind).await?;
        let is_malformed = |again: &Unrouted| again.reason == MALFORMED;

        // The row may have been corrected since.
        if raised.unrouted.iter().any(is_malformed) {
            change.forget_unwatched();
            raised = self.derive_again(&change, &unrouted.kind).await?;
        }

        let Some(event) = raised.events.first_mut() else {
            let again = raised.unrouted.into_iter().next();

            // By the present mapping, the change raises no such event.
            return Ok(Rerouted::Unrouted(
                again.map_or_else(|| "not_raised".to_owned(), |again| again.reason),
            ));
        };

        raised.once.rename(event.id, unrouted.id);
        event.id = unrouted.id;
        raised.unrouted.clear();

        let mut connection = store.connection().await?;
        let transaction = connection.transaction().await.map_err(StoreError::from)?;
        if !take_unrouted(&transaction, unrouted.id).await? {
            return Ok(Rerouted::Gone);
        }

        // Without a commit, the unrouted event stays.
        match self.store(&transaction, raised).await {
            Err(EnqueueError::Store(error)) if error.refuses_data() => {
                return Ok(Rerouted::Unrouted("store_refused".to_owned()));
            }
            Ok(repaired) if repaired.events.is_empty() => {
                return Ok(Rerouted::Unrouted("distributed_before".to_owned()));
            }
            result => result?,
        };

        transaction.commit().await.map_err(StoreError::from)?;
        Ok(Rerouted::Routed)
    }

    /// Derives the events of one kind.
    async fn derive_again(&mut self, change: &Change, kind: &str) -> Result<Raised, EnqueueError> {
        let change = std::slice::from_ref(change);
        let mut raised =
            derive_found(&mut self.lookups, change, self.lineage, self.max_data).await?;

        raised.events.retain(|event| event.kind.as_str() == kind);
        raised.unrouted.retain(|again| again.kind == kind);
        // It was counted when it was captured.
        raised.ignored.clear();
        Ok(raised)
    }
}
