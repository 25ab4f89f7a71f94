//! A transaction whose `begin` is sent together with its first statements.

use std::ops::Deref;

use deadpool_postgres::Object;

use super::connection::Connection;
use super::{Result, Store};
use crate::sql::store as sql;

/// Sends statements behind `begin` without waiting for its answer, which saves a round trip.
/// Dropping it without [`PipelinedTransaction::release`] closes the connection, which rolls back
/// what is not committed.
pub struct PipelinedTransaction(Option<Connection>);

impl Store {
    /// Borrows a connection for one transaction, which starts with [`PipelinedTransaction::begin`].
    pub async fn pipelined_transaction(&self) -> Result<PipelinedTransaction> {
        Ok(PipelinedTransaction(Some(self.connection().await?)))
    }
}

impl PipelinedTransaction {
    pub async fn begin(&self) -> Result<()> {
        Ok(self.batch_execute(sql::server::BEGIN_PIPELINED).await?)
    }

    /// Can be sent together with the last statements: if one of them fails, the server rolls back.
    pub async fn commit(&self) -> Result<()> {
        Ok(self.batch_execute("commit").await?)
    }

    /// Returns the connection to the pool. Call it when the transaction is known to have ended.
    pub fn release(mut self) {
        self.0 = None;
    }
}

impl Deref for PipelinedTransaction {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("present until it is released")
    }
}

impl Drop for PipelinedTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close();
        }
    }
}
