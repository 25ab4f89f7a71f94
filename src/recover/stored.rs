//! Creates deliveries of stored events, and limits how many are pending.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::event::delivery_id;
use crate::domain::sequence::Sequences;
use crate::store::enqueue::{NewDelivery, NewLease, insert_deliveries};
use crate::store::order::{self, OrderedDelivery};
use crate::store::{Result, Transaction, sequences};

/// No more deliveries are started while the webhook has this many pending first attempts: new
/// events must not queue behind old ones.
pub const MAX_PENDING: i64 = 500;
/// How long a job then pauses.
pub const PAUSE: Duration = Duration::from_millis(200);

/// Creates deliveries of stored events, each with its release if it has one, numbered behind the
/// deliveries that exist. Those of a webhook with an ordering wait for these. Returns the
/// deliveries' ids.
pub async fn deliver_stored(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    events: &[(Uuid, Option<i64>)],
) -> Result<Vec<Uuid>> {
    let mut numbers = Sequences::default();
    sequences::start(transaction, &[webhook], &mut numbers).await?;

    let ordering = order::ordering(transaction, webhook).await?;
    let ids = events
        .iter()
        .map(|(event, _)| delivery_id(*event, webhook))
        .collect();
    let mut deliveries = Vec::new();
    let mut ordered = Vec::new();
    let mut keys = HashSet::new();

    for (event, release) in events {
        let id = delivery_id(*event, webhook);
        let sequence = numbers.next(webhook);

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

    insert_deliveries(transaction, &deliveries, NewLease::NONE).await?;
    order::insert(transaction, &ordered, NewLease::NONE).await?;
    sequences::store(transaction, &numbers.changed()).await?;

    Ok(ids)
}
