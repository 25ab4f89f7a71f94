//! Walhook's own tables: a pool of connections, the schema's migrations, and one function a statement.
//!
//! States and kinds are text columns, so that a replica of an earlier build can read values that it does not know. The derives of
//! `postgres-types` map enumerated and composite types, of which the schema has none.

pub mod addons;
pub mod audit;
pub mod capture;
mod connection;
pub mod deliver;
pub mod disable;
pub mod enqueue;
pub mod erase;
pub mod hours;
pub mod idempotency;
pub mod ledger;
mod limited;
pub mod logs;
pub mod migrate;
pub mod notices;
pub mod observe;
pub mod outbox;
pub mod partitions;
mod pipelined;
mod pool;
pub mod record;
pub mod recovery;
pub mod sealed;
pub mod sessions;
mod statement;
pub mod superseded;
pub mod tokens;
pub mod webhooks;

pub use connection::cancel_on_drop;
pub use deadpool_postgres::{GenericClient, Transaction};
pub use pipelined::PipelinedTransaction;
pub use pool::Store;

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
    /// Whether the values themselves were refused, so that trying again cannot help: data exceptions, violated constraints,
    /// exceeded limits.
    pub fn refuses_data(&self) -> bool {
        let StoreError::Query(error) = self else { return false };
        error.code().is_some_and(|code| ["22", "23", "54"].iter().any(|class| code.code().starts_with(class)))
    }

    /// Whether the server ended the statement because it took longer than it may.
    pub fn is_timeout(&self) -> bool {
        matches!(self, StoreError::Query(error) if error.code() == Some(&tokio_postgres::error::SqlState::QUERY_CANCELED))
    }
}

impl From<deadpool_postgres::PoolError> for StoreError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => StoreError::Query(error),
            other => StoreError::Pool(other.to_string()),
        }
    }
}

const PLAN_BY_INDEX: &str = include_str!("../../sql/store/plan_by_index.sql");

/// For transactions that look for single deliveries, however many there are.
async fn plan_by_index(transaction: &deadpool_postgres::Transaction<'_>) -> Result<()> {
    Ok(transaction.batch_execute(PLAN_BY_INDEX).await?)
}

const DURABLE: &str = include_str!("../../sql/store/durable.sql");

/// For transactions after which the primary may forget WAL: a crash of the store must not lose them.
async fn commit_durably(transaction: &deadpool_postgres::Transaction<'_>) -> Result<()> {
    Ok(transaction.batch_execute(DURABLE).await?)
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;
