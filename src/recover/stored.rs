//! Creates deliveries of stored events, and limits how many are pending.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::delivery::NewDelivery;
use crate::domain::event::delivery_id;
use crate::domain::sequence::Sequences;
use crate::store::{Result, Transaction, delivery, sequences, webhooks};

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

    let ordering = webhooks::ordering(transaction, webhook).await?;
    let mut keys = HashSet::new();
    let mut deliveries = Vec::new();

    for (event, release) in events {
        let order_key = ordering.key(|| *release);

        deliveries.push(NewDelivery {
            id: delivery_id(*event, webhook),
            webhook,
            event: *event,
            sequence: numbers.next(webhook),
            order_key,
            is_parked: order_key.is_some_and(|key| !keys.insert(key)),
            leased: false,
        });
    }

    delivery::insert(transaction, &deliveries, None).await?;
    sequences::store(transaction, &numbers.changed()).await?;

    Ok(deliveries.iter().map(|new| new.id).collect())
}
