//! Figures about the store that no statement of the daily work gives.

use super::{Result, Store};

const BACKLOG: &str = include_str!("../../sql/store/backlog.sql");
const WEBHOOK_STATES: &str = include_str!("../../sql/store/webhook_states.sql");
const CHECKPOINT_AGE: &str = include_str!("../../sql/store/checkpoint_age.sql");

/// Deliveries are counted up to here: more is as bad.
const COUNTED: i64 = 1_000_000;

/// What waits: first attempts and retries apart, as they are worked off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    pub fresh: Pile,
    pub retry: Pile,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pile {
    /// At most a million.
    pub deliveries: i64,
    /// For how long the oldest has been due, in seconds; zero while none is.
    pub oldest_due: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookStates {
    pub active: i64,
    pub inactive: i64,
    /// Inactive because their deliveries kept failing.
    pub disabled: i64,
}

/// Connections of the pool: those there are, and those at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub open: usize,
    pub busy: usize,
}

impl Store {
    pub async fn backlog(&self) -> Result<Backlog> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(BACKLOG).await?;
        let row = connection.query_one(&statement, &[&COUNTED]).await?;
        Ok(Backlog {
            fresh: Pile { deliveries: row.get(0), oldest_due: row.get(2) },
            retry: Pile { deliveries: row.get(1), oldest_due: row.get(3) },
        })
    }

    pub async fn webhook_states(&self) -> Result<WebhookStates> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(WEBHOOK_STATES).await?;
        let row = connection.query_one(&statement, &[]).await?;
        Ok(WebhookStates { active: row.get(0), inactive: row.get(1), disabled: row.get(2) })
    }

    /// Seconds since the checkpoint last moved; nothing before setup.
    pub async fn checkpoint_age(&self, slot: &str) -> Result<Option<f64>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(CHECKPOINT_AGE).await?;
        Ok(connection.query_opt(&statement, &[&slot]).await?.map(|row| row.get(0)))
    }
}
