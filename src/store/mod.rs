//! Walhook's own tables: the pool of connections, migrations, and typed statements, grouped by
//! table. The callers decide what to store.
//!
//! States and kinds are text columns, so that a replica of an earlier build can read values that it
//! does not know. The derives of `postgres-types` are not used: they map PostgreSQL's enumerated
//! types, composite types and domains, of which the schema has none.

pub mod access;
pub mod attempt;
pub mod audit;
pub mod cells;
pub mod checkpoint;
mod configured;
pub mod deliveries;
pub mod delivery;
pub mod enqueue;
pub mod erase;
mod events;
pub mod feed;
pub mod handoffs;
pub mod hours;
pub mod idempotency;
pub mod ignored;
pub mod job_progress;
pub mod jobs;
pub mod keys;
pub mod ledger;
pub mod log;
pub mod logs;
pub mod lookup_rows;
pub mod migrate;
pub mod notices;
pub mod observe;
pub mod occurrences;
pub mod partitions;
mod pool;
pub mod processes;
pub mod recovery;
pub mod replay;
pub mod sequences;
mod statement;
pub mod unrouted;
pub mod webhooks;

pub use deadpool_postgres::{GenericClient, Transaction};
pub use pool::{PipelinedTransaction, Store, cancel_on_drop};

use deadpool_postgres::{HookError, PoolError};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::failpoint::Injected;
use crate::postgres::DiskFault;
use crate::sql::store as sql;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store: {}", crate::postgres::describe(.0))]
    Query(#[from] tokio_postgres::Error),
    #[error("the store: {0}")]
    Connect(#[from] crate::postgres::ConnectError),
    #[error("the store: no connection free: {0}")]
    Pool(String),
    #[error("the store: no answer within {0:?}")]
    Silent(std::time::Duration),
    #[error("the store's migrations: {0}")]
    Migration(String),
    #[error("the store holds something unexpected: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// Whether the server rejected the values, so that a retry cannot help: a data exception, a
    /// violated constraint or an exceeded limit.
    pub fn refuses_data(&self) -> bool {
        let StoreError::Query(error) = self else {
            return false;
        };

        error.code().is_some_and(|code| {
            ["22", "23", "54"]
                .iter()
                .any(|class| code.code().starts_with(class))
        })
    }

    /// Whether the store can be reached, and rejected a statement or holds something wrong.
    pub fn is_rejection(&self) -> bool {
        match self {
            StoreError::Query(error) => crate::postgres::is_rejection(error),
            StoreError::Migration(_) | StoreError::Corrupt(_) => true,
            StoreError::Connect(_) | StoreError::Pool(_) | StoreError::Silent(_) => false,
        }
    }

    /// Whether a process that starts can wait until the error is over.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Query(error) => crate::postgres::is_transient(error),
            StoreError::Connect(error) => error.is_transient(),
            StoreError::Pool(_) | StoreError::Silent(_) => true,
            StoreError::Migration(_) | StoreError::Corrupt(_) => false,
        }
    }

    /// Whether the store cannot work at the moment, whatever the statement: it cannot be reached,
    /// shuts down, recovers, lacks a resource such as space on its disk, or cannot read its files.
    pub fn is_outage(&self) -> bool {
        // Classes of errors: connections, resources, operator intervention such as a shutdown, and
        // the system's.
        const OUTAGES: [&str; 4] = ["08", "53", "57", "58"];
        let is_outage = |code: &SqlState| {
            DiskFault::of_code(code).is_some()
                || OUTAGES.iter().any(|class| code.code().starts_with(class))
        };

        match self {
            // Without a code the connection was lost.
            StoreError::Query(error) => !self.is_timeout() && error.code().is_none_or(is_outage),
            StoreError::Connect(_) | StoreError::Pool(_) => true,
            StoreError::Silent(_) | StoreError::Migration(_) | StoreError::Corrupt(_) => false,
        }
    }

    /// Whether a lock was not granted within `lock_timeout`.
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self, StoreError::Query(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    /// Whether the statement exceeded `statement_timeout`.
    pub fn is_timeout(&self) -> bool {
        matches!(self, StoreError::Query(error) if error.code() == Some(&SqlState::QUERY_CANCELED))
    }
}

impl From<Injected> for StoreError {
    fn from(error: Injected) -> Self {
        StoreError::Pool(error.to_string())
    }
}

impl From<PoolError> for StoreError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                error.into()
            }
            PoolError::PostCreateHook(HookError::Message(reason)) => {
                StoreError::Pool(reason.into_owned())
            }
            other => StoreError::Pool(other.to_string()),
        }
    }
}

/// Makes a transaction find deliveries by their ids, even if the plan was made while few deliveries
/// were pending.
pub async fn plan_by_index(transaction: &impl GenericClient) -> Result<()> {
    Ok(transaction
        .batch_execute(sql::server::PLAN_BY_INDEX)
        .await?)
}

/// Makes the transaction's commit durable even if the store runs with `synchronous_commit = off`.
/// Needed if the primary may remove WAL afterwards.
async fn commit_durably(transaction: &deadpool_postgres::Transaction<'_>) -> Result<()> {
    Ok(transaction.batch_execute(sql::server::DURABLE).await?)
}

/// The time in an attempt's id may differ from its start by this much, because of long requests and
/// clocks that disagree.
const ID_TOLERANCE_MS: i64 = 3_600_000;

/// The length of the days by which the attempt log is partitioned.
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Returns the start of the UTC day of a time, both in milliseconds since 1970.
fn start_of_day(millis: i64) -> i64 {
    millis - millis.rem_euclid(DAY_MS)
}

/// Returns the lowest UUIDv7 of a time.
fn lowest_id_at(millis: i64) -> Uuid {
    // An id has 48 bits for the time.
    let millis = u64::try_from(millis).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(u128::from(millis) << 80)
}

/// Returns the time of a UUIDv7 in milliseconds.
fn millis_of_id(id: Uuid) -> i64 {
    i64::try_from(id.as_u128() >> 80).unwrap_or(i64::MAX)
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;
