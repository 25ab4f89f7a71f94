//! Statements for the metrics. They count in short statements with pauses: one that counts a long
//! backlog at once would delay others that need the same processor.

use std::time::Instant;

use postgres_types::ToSql;
use serde::Serialize;
use uuid::Uuid;

use super::statement::{Statements, from_row};
use super::{Result, Store};
use crate::domain::delivery::DeliveryClass;
use crate::sql::store as sql;

/// Rows that one statement counts, which takes about two milliseconds.
const AT_ONCE: i64 = 2_000;
/// Webhooks that are visited by one statement, which takes about 50 milliseconds.
const MAX_VISITS: i32 = 10_000;
/// The pause after a statement, relative to the time that it took.
const PAUSE: u32 = 9;

/// The pending deliveries of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Queue {
    pub deliveries: i64,
    /// Seconds since the oldest was due, or zero.
    #[serde(rename = "oldest_due_seconds")]
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WebhookStates {
    pub active: i64,
    /// Deactivated by their owners.
    pub inactive: i64,
    /// Disabled, automatically or by the operator.
    pub disabled: i64,
    /// Those of the active ones whose last attempt has failed.
    pub failing: i64,
}

impl WebhookStates {
    pub const fn total(&self) -> i64 {
        self.active + self.inactive + self.disabled
    }
}

/// Up to [`AT_ONCE`] webhooks.
struct CountedWebhooks {
    active: i64,
    inactive: i64,
    disabled: i64,
    failing: i64,
    last: Option<Uuid>,
}

from_row!(CountedWebhooks {
    active,
    inactive,
    disabled,
    failing,
    last
});

/// Connections of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub open: usize,
    pub busy: usize,
}

/// How much is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything. Takes at most a tenth of the time of the processor that executes the statements.
    All,
    /// At least so much, if there is as much, without pauses.
    Until(i64),
}

impl Extent {
    fn is_reached(self, counted: i64) -> bool {
        matches!(self, Extent::Until(most) if counted >= most)
    }

    /// Pauses after a statement that began at this moment.
    async fn pause(self, began: Instant) {
        if self == Extent::All {
            tokio::time::sleep(began.elapsed() * PAUSE).await;
        }
    }
}

/// Returns the statement for a class. The class is no parameter: each has a partial index of its
/// own, which generic plans use only for a literal condition.
fn of_class(sql: &str, class: DeliveryClass) -> String {
    match class {
        DeliveryClass::Fresh => sql.to_owned(),
        DeliveryClass::Retry => sql.replace("attempt = 1", "attempt > 1"),
    }
}

impl Store {
    /// Counts the pending deliveries of a class.
    pub async fn queue(&self, class: DeliveryClass, extent: Extent) -> Result<Queue> {
        let sql = of_class(sql::delivery::COUNT_BACKLOG, class);
        let mut queue = Queue {
            deliveries: self.handed_off(class).await?,
            ..Queue::default()
        };
        let mut from = (Uuid::nil(), "-infinity".to_owned());
        let mut skipped = 0;

        loop {
            let started = Instant::now();
            let params: [&(dyn ToSql + Sync); 4] = [&from.0, &from.1, &skipped, &AT_ONCE];
            let counted: PendingCount = self.fetch_by_index(&sql, &params).await?;

            queue.deliveries += counted.deliveries;
            queue.oldest_due = queue.oldest_due.max(counted.oldest_due);

            let last = counted.last_webhook.zip(counted.last_due_at);
            let is_last = counted.deliveries < AT_ONCE || extent.is_reached(queue.deliveries);
            let Some(last) = last.filter(|_| !is_last) else {
                return Ok(queue);
            };

            skipped = counted.same_as_last + if last == from { skipped } else { 0 };
            from = last;
            extent.pause(started).await;
        }
    }

    /// Counts the deliveries of a class that were handed off and have no row.
    async fn handed_off(&self, class: DeliveryClass) -> Result<i64> {
        match class {
            DeliveryClass::Fresh => self.fetch_one(sql::handoff::COUNT, &[]).await,
            DeliveryClass::Retry => Ok(0),
        }
    }

    /// Returns for how many seconds the oldest pending delivery of a class has been due, or zero.
    /// Visits the webhooks that have pending deliveries, up to `MAX_VISITS`.
    pub async fn oldest_due(&self, class: DeliveryClass) -> Result<f64> {
        let sql = of_class(sql::delivery::OLDEST_DUE, class);
        self.fetch_by_index(&sql, &[&MAX_VISITS]).await
    }

    /// Counts the webhooks.
    pub async fn webhook_states(&self, extent: Extent) -> Result<WebhookStates> {
        let mut states = WebhookStates::default();
        let mut after = Uuid::nil();

        loop {
            let started = Instant::now();
            let CountedWebhooks {
                active,
                inactive,
                disabled,
                failing,
                last,
            } = self
                .fetch_by_index(sql::webhook::STATES, &[&after, &AT_ONCE])
                .await?;

            states.active += active;
            states.inactive += inactive;
            states.disabled += disabled;
            states.failing += failing;

            let is_last =
                active + inactive + disabled < AT_ONCE || extent.is_reached(states.total());
            let Some(last) = last.filter(|_| !is_last) else {
                return Ok(states);
            };

            after = last;
            extent.pause(started).await;
        }
    }

    /// Returns the seconds since the checkpoint moved. `None` before setup.
    pub async fn checkpoint_age(&self, slot: &str) -> Result<Option<f64>> {
        self.fetch_optional(sql::checkpoint::AGE, &[&slot]).await
    }

    /// Returns the size of all tables with their indexes, in bytes.
    pub async fn size(&self) -> Result<i64> {
        self.fetch_one(sql::server::SIZE, &[]).await
    }
}
