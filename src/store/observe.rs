//! Statements for the metrics. They count in short statements with pauses: one that counts a long
//! backlog at once would delay others that need the same processor.

use std::sync::LazyLock;
use std::time::Instant;

use postgres_types::ToSql;
use uuid::Uuid;

use super::statement::{Statements, from_row};
use super::{Result, Store};
use crate::domain::delivery::DeliveryClass;
use crate::sql::store as sql;

static COUNT_RETRIES: LazyLock<String> =
    LazyLock::new(|| sql::delivery::COUNT_BACKLOG.replace("attempt = 1", "attempt > 1"));

/// Rows that one statement counts, which takes about two milliseconds.
const AT_ONCE: i64 = 2_000;
/// The pause after a statement, relative to the time that it took.
const PAUSE: u32 = 9;

/// The pending deliveries of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Queue {
    pub deliveries: i64,
    /// Seconds since the oldest was due, or zero.
    pub oldest_due: f64,
}

/// Up to [`AT_ONCE`] pending deliveries.
struct PendingCount {
    deliveries: i64,
    oldest_due: f64,
    /// None if there is none.
    last_webhook: Option<Uuid>,
    /// As text, because it may be infinite.
    last_due_at: Option<String>,
    same_as_last: i64,
}

from_row!(PendingCount {
    deliveries,
    oldest_due,
    last_webhook,
    last_due_at,
    same_as_last
});

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookStates {
    pub active: i64,
    /// Deactivated by their owners.
    pub inactive: i64,
    /// Disabled because they kept failing.
    pub disabled: i64,
}

/// Up to [`AT_ONCE`] webhooks.
struct CountedWebhooks {
    active: i64,
    inactive: i64,
    disabled: i64,
    last: Option<Uuid>,
}

from_row!(CountedWebhooks {
    active,
    inactive,
    disabled,
    last
});

/// Connections of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub open: usize,
    pub busy: usize,
}

impl Store {
    /// Counts the pending deliveries of a class. Takes at most a tenth of the time of the processor
    /// that executes the statements.
    pub async fn queue(&self, class: DeliveryClass) -> Result<Queue> {
        let sql = match class {
            DeliveryClass::Fresh => sql::delivery::COUNT_BACKLOG,
            DeliveryClass::Retry => &COUNT_RETRIES,
        };

        let mut queue = Queue::default();
        let mut from = (Uuid::nil(), "-infinity".to_owned());
        let mut skipped = 0;

        loop {
            let started = Instant::now();
            let params: [&(dyn ToSql + Sync); 4] = [&from.0, &from.1, &skipped, &AT_ONCE];
            let counted: PendingCount = self.fetch_by_index(sql, &params).await?;

            queue.deliveries += counted.deliveries;
            queue.oldest_due = queue.oldest_due.max(counted.oldest_due);

            let last = counted.last_webhook.zip(counted.last_due_at);
            let Some(last) = last.filter(|_| counted.deliveries >= AT_ONCE) else {
                return Ok(queue);
            };

            skipped = counted.same_as_last + if last == from { skipped } else { 0 };
            from = last;
            tokio::time::sleep(started.elapsed() * PAUSE).await;
        }
    }

    /// Counts the webhooks, like [`Store::queue`].
    pub async fn webhook_states(&self) -> Result<WebhookStates> {
        let mut states = WebhookStates::default();
        let mut after = Uuid::nil();

        loop {
            let started = Instant::now();
            let CountedWebhooks {
                active,
                inactive,
                disabled,
                last,
            } = self
                .fetch_by_index(sql::webhook::STATES, &[&after, &AT_ONCE])
                .await?;

            states.active += active;
            states.inactive += inactive;
            states.disabled += disabled;

            let Some(last) = last.filter(|_| active + inactive + disabled >= AT_ONCE) else {
                return Ok(states);
            };

            after = last;
            tokio::time::sleep(started.elapsed() * PAUSE).await;
        }
    }

    /// Returns the seconds since the checkpoint moved. `None` before setup.
    pub async fn checkpoint_age(&self, slot: &str) -> Result<Option<f64>> {
        self.fetch_optional(sql::checkpoint::AGE, &[&slot]).await
    }
}
