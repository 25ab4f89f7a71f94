//! Statements for the metrics.

use tokio_postgres::Row;

use super::statement::{column, from_row};
use super::{Result, Store};

const BACKLOG: &str = include_str!("../../sql/store/backlog.sql");
const WEBHOOK_STATES: &str = include_str!("../../sql/store/webhook_states.sql");
const CHECKPOINT_AGE: &str = include_str!("../../sql/store/checkpoint_age.sql");

/// Counting deliveries stops here: a longer backlog needs the same action.
const MAX_COUNTED: i64 = 1_000_000;

/// Pending deliveries: first attempts and retries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    pub fresh: Queue,
    pub retry: Queue,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// At most `MAX_COUNTED`.
    pub deliveries: i64,
    /// Seconds since the oldest was due, or zero.
    pub oldest_due: f64,
}

from_row!(Backlog {
    fresh: |row| Queue::from_columns(row, "fresh", "oldest_fresh"),
    retry: |row| Queue::from_columns(row, "retry", "oldest_retry")
});

impl Queue {
    fn from_columns(row: &Row, deliveries: &str, oldest_due: &str) -> Result<Queue> {
        Ok(Queue { deliveries: column(row, deliveries)?, oldest_due: column(row, oldest_due)? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookStates {
    pub active: i64,
    /// Deactivated by their owners.
    pub inactive: i64,
    /// Disabled because they kept failing.
    pub disabled: i64,
}

from_row!(WebhookStates { active, inactive, disabled });

/// Connections of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub open: usize,
    pub busy: usize,
}

impl Store {
    pub async fn backlog(&self) -> Result<Backlog> {
        self.fetch_one(BACKLOG, &[&MAX_COUNTED]).await
    }

    pub async fn webhook_states(&self) -> Result<WebhookStates> {
        self.fetch_one(WEBHOOK_STATES, &[]).await
    }

    /// Returns the seconds since the checkpoint moved. `None` before setup.
    pub async fn checkpoint_age(&self, slot: &str) -> Result<Option<f64>> {
        self.fetch_optional(CHECKPOINT_AGE, &[&slot]).await
    }
}
