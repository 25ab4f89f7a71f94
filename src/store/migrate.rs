//! Migrations, one process at a time: the runner itself takes no lock.

use super::{Result, StoreError};
use crate::postgres;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// Any number that no other program is likely to use: "walhook" in ASCII.
const LOCK: i64 = 0x0077_616C_686F_6F6B;

/// Brings the store's schema up to date and returns the versions applied now. Runs on a connection of its own, directly:
/// through a transaction pooler the advisory lock would be nobody's.
pub async fn migrate(url: &str) -> Result<Vec<String>> {
    let mut client = postgres::connect(url).await?;
    client.batch_execute(&format!("set lock_timeout = '60s'; select pg_advisory_lock({LOCK})")).await?;
    client.batch_execute("create schema if not exists walhook; set search_path = walhook, pg_catalog").await?;
    let report = embedded::migrations::runner()
        .run_async(&mut client)
        .await
        .map_err(|error| StoreError::Migration(describe(&error)))?;
    Ok(report.applied_migrations().iter().map(|migration| format!("V{}", migration.version())).collect())
}

/// Whether the store's schema is the one this build wants; the difference in words where it is not.
pub async fn pending(url: &str) -> Result<Option<String>> {
    let client = postgres::connect(url).await?;
    let known = client.query_one("select to_regclass('walhook.refinery_schema_history') is not null", &[]).await?;
    let wanted = embedded::migrations::runner().get_migrations().iter().map(|m| m.version()).max().unwrap_or(0);
    if !known.get::<_, bool>(0) {
        return Ok(Some("the store has no schema yet".into()));
    }
    let row = client.query_one("select coalesce(max(version), 0) from walhook.refinery_schema_history", &[]).await?;
    let found: i32 = row.get(0);
    Ok((found < wanted).then(|| format!("the store's schema is at version {found}, this build wants {wanted}")))
}

fn describe(error: &refinery::Error) -> String {
    use std::error::Error;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = match cause.downcast_ref::<tokio_postgres::Error>() {
            Some(error) => format!("{text}: {}", postgres::describe(error)),
            None => format!("{text}: {cause}"),
        };
        source = cause.source();
    }
    text
}
