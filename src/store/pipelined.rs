//! A transaction that begins together with its first statements.

use std::ops::Deref;

use deadpool_postgres::Object;

use super::connection::Connection;
use super::{Result, Store};

/// Some statements the planner would plan anew each time, which takes longer than to carry them out.
/// A commit that a crash of the store can lose must not be acknowledged to the slot.
const BEGIN: &str =
    concat!("begin; set local plan_cache_mode = force_generic_plan; ", include_str!("../../sql/store/durable.sql"));

/// Statements go out behind the beginning without waiting for its answer, which is a way to the server and back saved. What is
/// not committed is undone: its connection is closed.
pub struct PipelinedTransaction(Option<Connection>);

impl Store {
    /// A connection for one transaction; [`PipelinedTransaction::begin`] comes first.
    pub async fn begun(&self) -> Result<PipelinedTransaction> {
        Ok(PipelinedTransaction(Some(self.connection().await?)))
    }
}

impl PipelinedTransaction {
    pub async fn begin(&self) -> Result<()> {
        Ok(self.batch_execute(BEGIN).await?)
    }

    /// May go out with the last statements: where one of them fails, the server undoes everything.
    pub async fn commit(&self) -> Result<()> {
        Ok(self.batch_execute("commit").await?)
    }

    /// Gives the connection back, when the transaction is known to have ended.
    pub fn end(mut self) {
        self.0 = None;
    }
}

impl Deref for PipelinedTransaction {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("there until the end")
    }
}

impl Drop for PipelinedTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close();
        }
    }
}
