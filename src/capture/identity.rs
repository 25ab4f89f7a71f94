//! Replica identities: which are good enough, and how they are changed and put back.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::CaptureError;
use super::primary::{self, Relation};
use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::{quote_identifier, quote_qualified};
use crate::store::capture::FoundIdentity;

const SET: &str = include_str!("../../sql/primary/replica_identity_set.sql");
const CURRENT: &str = include_str!("../../sql/primary/replica_identity_current.sql");

/// How long a change of the primary may wait for a lock, and with it everybody who comes after.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const BOUNDS: &str = "set lock_timeout = '5s'; set statement_timeout = '60s'";

/// The columns, by the platform's names, that old rows of the table must come with.
pub(super) fn wanted(source: &Source, table: Table) -> Vec<&str> {
    let name = |column| source.tables.column(table, column);
    match table {
        Table::UserAddon => vec![name("user_id")],
        // A table that is only looked up: its key says which row is no longer what it was.
        _ => std::iter::once("id").chain(table.watched().iter().copied()).map(name).collect(),
    }
}

/// Without the old status in the log, a transition could not be told from a row that stayed as it was.
pub(super) async fn verify(client: &Client, source: &Source) -> Result<(), CaptureError> {
    for table in Table::ALL.iter().copied().filter(|table| table.is_captured()) {
        let wanted = wanted(source, table);
        let relations = primary::relations(client, source, table).await?;
        if let Some(lacking) = relations.iter().find(|relation| !relation.identifies(&wanted)) {
            return Err(CaptureError::IdentityLacking { table: lacking.qualified(), columns: wanted.join(", ") });
        }
    }
    Ok(())
}

pub(super) fn statement(table: &str, identity: &str) -> String {
    SET.replace("{table}", table).replace("{identity}", identity)
}

/// No change of the primary waits long: who waits for a lock makes others wait.
pub(super) async fn bound(client: &Client) -> Result<(), CaptureError> {
    Ok(client.batch_execute(BOUNDS).await?)
}

pub(super) async fn set_full(client: &Client, relation: &Relation) -> Result<(), CaptureError> {
    let result = client.batch_execute(&statement(&relation.quoted(), "full")).await;
    result.map_err(|error| busy(error, &relation.qualified()))
}

pub(super) fn busy(error: tokio_postgres::Error, table: &str) -> CaptureError {
    match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => CaptureError::TableBusy { table: table.to_owned(), limit: LOCK_TIMEOUT },
        _ => error.into(),
    }
}

/// Puts back what setup found, unless somebody has changed it since. Says what was done.
pub(super) async fn restore(client: &Client, found: &FoundIdentity) -> Result<Option<String>, CaptureError> {
    let Some(row) = client.query_opt(CURRENT, &[&found.table_oid, &found.index]).await? else { return Ok(None) };
    let (schema, name): (String, String) = (row.get("schema"), row.get("name"));
    let (now, has_index): (String, bool) = (row.get("identity"), row.get("has_index"));
    if now != "f" || found.identity == "f" {
        return Ok(None);
    }
    let identity = match (found.identity.as_str(), &found.index) {
        ("n", _) => "nothing".to_owned(),
        ("i", Some(index)) if has_index => format!("using index {}", quote_identifier(index)),
        _ => "default".to_owned(),
    };
    let result = client.batch_execute(&statement(&quote_qualified(&schema, &name), &identity)).await;
    result.map_err(|error| busy(error, &format!("{schema}.{name}")))?;
    Ok(Some(format!("replica identity of {schema}.{name}: {identity} again")))
}
