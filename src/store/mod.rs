//! Walhook's own tables: a pool of connections, the schema's migrations, and one function a statement.

pub mod enqueue;
pub mod migrate;
pub mod partitions;
mod pool;

pub use pool::Store;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store: {}", crate::postgres::describe(.0))]
    Query(#[from] tokio_postgres::Error),
    #[error("the store: {0}")]
    Connect(#[from] crate::postgres::ConnectError),
    #[error("the store: no connection free: {0}")]
    Pool(String),
    #[error("the store's migrations: {0}")]
    Migration(String),
    #[error("the store holds something unexpected: {0}")]
    Corrupt(String),
}

impl From<deadpool_postgres::PoolError> for StoreError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => StoreError::Query(error),
            other => StoreError::Pool(other.to_string()),
        }
    }
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;
