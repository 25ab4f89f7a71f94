//! Creates deliveries of stored events, and limits how many are pending.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::event::delivery_id;
use crate::domain::sequence::Sequences;
use crate::store::Result;
use crate::store::contract::JobStatements;
use crate::store::enqueue::{NewDelivery, NewLease};
use crate::store::order::OrderedDelivery;

/// No more deliveries are started while the webhook has this many pending first attempts: new
/// events must not queue behind old ones.
pub const MAX_PENDING: i64 = 500;
/// How long a job then pauses.
pub const PAUSE: Duration = Duration::from_millis(200);

/// Creates deliveries of stored events, each with its release if it has one, numbered behind the
/// deliveries that exist. Those of a webhook with an ordering wait for these. Returns the
/// deliveries' ids.
pub async fn deliver_stored(
    transaction: &impl JobStatements,
    webhook: Uuid,
    events: &[(Uuid, Option<i64>)],
) -> Result<Vec<Uuid>> {
    let mut sequences = Sequences::default();
    transaction
        .start_sequences(&[webhook], &mut sequences)
        .await?;

    let ordering = transaction.ordering(webhook).await?;
    let ids = events
        .iter()
        .map(|(event, _)| delivery_id(*event, webhook))
        .collect();
    let mut deliveries = Vec::new();
    let mut ordered = Vec::new();
    let mut keys = HashSet::new();

    for (event, release) in events {
        let id = delivery_id(*event, webhook);
        let sequence = sequences.next(webhook);

        let delivery = NewDelivery {
            id,
            webhook,
            event: *event,
            leased: false,
            sequence,
        };

        match ordering.key(|| *release) {
            None => deliveries.push(delivery),
            Some(key) => ordered.push(OrderedDelivery {
                delivery,
                key,
                is_first: keys.insert(key),
            }),
        }
    }

    transaction
        .insert_deliveries(&deliveries, NewLease::NONE)
        .await?;
    transaction.insert_ordered(&ordered, NewLease::NONE).await?;
    transaction.store_sequences(&sequences.changed()).await?;

    Ok(ids)
}
