//! Verifies a message that requests the switch to triggers. Any role can emit it, but only a role that may install the triggers can do
//! so in the transaction that installs them.

use postgres_types::{ToSql, Type};
use tokio_postgres::Client;

use super::super::error::CaptureError;

const RUNNING: &str = include_str!("../../../sql/primary/transaction_running.sql");
const MADE_BY: &str = include_str!("../../../sql/primary/outbox_made_by.sql");

/// Returns whether other sessions may not see yet what a transaction did.
pub(super) async fn is_running(client: &Client, transaction: u32) -> Result<bool, CaptureError> {
    let transaction = transaction.to_string();
    Ok(client.query_typed_one(RUNNING, &[(&transaction, Type::TEXT)]).await?.get(0))
}

/// Returns whether a transaction that has ended installed triggers on some of `tables`.
pub(super) async fn installed_triggers(
    client: &Client,
    transaction: u32,
    tables: &[u32],
) -> Result<bool, CaptureError> {
    let transaction = transaction.to_string();
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&transaction, Type::TEXT), (&tables, Type::OID_ARRAY)];
    Ok(client.query_typed_one(MADE_BY, &parameters).await?.get(0))
}
