//! Deliveries that were claimed or promoted, as the statements return them.

use tokio_postgres::Row;
use uuid::Uuid;

use super::{Result, StoreError};
use crate::domain::delivery::{Delivery, Lease};
use crate::telemetry::recurring;

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    pub deliveries: Vec<Delivery>,
    /// Deliveries whose event was removed by age. They can only be removed.
    pub orphans: Vec<Uuid>,
    /// Deliveries that were due but exceeded `max_bytes`, and were released.
    pub refused: usize,
    /// How many webhooks were visited.
    pub visited: usize,
    /// The last webhook visited. None when all webhooks were visited.
    pub last_visited: Option<Uuid>,
}

impl Claimed {
    pub(super) fn add(&mut self, id: Uuid, row: &Row, lease: Lease) -> Result<()> {
        let Some(kind) = row.get::<_, Option<&str>>("kind") else {
            self.orphans.push(id);
            return Ok(());
        };

        let Ok(kind) = kind.parse() else {
            // Replicas of a newer build may know it. The lease keeps this replica from claiming it
            // again for a while.
            recurring!(warn, delivery = %id, kind, "deliveries of an event type that this build does not know are left alone");
            return Ok(());
        };

        let number = |name: &str| {
            let negative = |_| StoreError::Corrupt(format!("delivery {id}: {name} is negative"));
            u16::try_from(row.get::<_, i16>(name)).map_err(negative)
        };

        self.deliveries.push(Delivery {
            id,
            webhook: row.get("webhook_id"),
            event: row.get("event_id"),
            kind,
            occurred_at: row.get("occurred_at"),
            data: row.get::<_, &str>("data").into(),
            round: number("round")?,
            attempt: number("attempt")?,
            sequence: row.get("sequence"),
            order_key: row.get("order_key"),
            activation: row.get("activation"),
            lease,
        });

        Ok(())
    }
}
