//! Locks on the platform's tables. While a session waits for a lock, the statements of all others
//! on the same table queue behind it, if they conflict with it. So Walhook waits briefly, and lets
//! them proceed before it tries again.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::lock_holder;
use super::error::{PrimaryError, Result};
use crate::sql::primary as sql;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// How often to try to get a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attempts {
    /// At least 12 × (0.8 s + 0.5 s): long enough for ordinary transactions to end.
    Many,
    /// For work that is tried again later.
    Few,
}

impl Attempts {
    pub const fn count(self) -> u32 {
        match self {
            Attempts::Many => 12,
            Attempts::Few => 3,
        }
    }
}

/// Runs `work` in a transaction, and again if it did not get a lock in time: before each statement
/// that waits for one, it calls [`limit_wait`]. This wait is too short for the server to cancel an
/// autovacuum: each attempt first waits for those on `tables`, which are quoted and belong to the
/// role. Returns false if no attempt succeeded.
pub(crate) async fn try_in_transaction<'a>(
    client: &Client,
    attempts: Attempts,
    tables: &[String],
    work: impl Fn() -> BoxFuture<'a, Result<()>>,
) -> Result<bool> {
    for _ in 0..attempts.count() {
        match attempt(client, tables, &work).await {
            Ok(()) => return Ok(true),
            Err(error) if is_lock_timeout(&error) => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(error),
        }
    }

    Ok(false)
}

async fn attempt<'a>(
    client: &Client,
    tables: &[String],
    work: &impl Fn() -> BoxFuture<'a, Result<()>>,
) -> Result<()> {
    for table in tables {
        client
            .batch_execute(&sql::lock::QUIESCE.replace("{table}", table))
            .await?;
    }

    client.batch_execute("begin").await?;
    let ended = async {
        work().await?;
        // The commit waits for no lock.
        limit_work(client).await?;
        Ok(client.batch_execute("commit").await?)
    };

    let ended = ended.await;
    if ended.is_err() {
        client.batch_execute("rollback").await?;
    }

    ended
}

/// Limits the wait of the transaction's statements to less than `deadlock_timeout`.
pub(crate) async fn limit_wait(client: &Client) -> Result<()> {
    client.query_typed(sql::lock::LIMIT, &[]).await?;
    Ok(())
}

/// Limits the duration of the transaction's statements that wait for no lock.
pub(crate) async fn limit_work(client: &Client) -> Result<()> {
    Ok(client
        .batch_execute("set local statement_timeout = '60s'")
        .await?)
}

/// How to lock a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockMode {
    /// As creating a trigger does.
    ShareRowExclusive,
    /// As dropping a trigger does.
    AccessExclusive,
}

/// Returns the statement that locks a table, which is quoted and belongs to the role.
pub(crate) fn lock_table(table: &str, mode: LockMode) -> String {
    let mode = match mode {
        LockMode::ShareRowExclusive => "share row exclusive",
        LockMode::AccessExclusive => "access exclusive",
    };
    sql::lock::TABLE
        .replace("{table}", table)
        .replace("{mode}", mode)
}

/// Makes one statement of several, so that one timeout covers all their locks together.
pub(crate) fn together(statements: &str) -> String {
    format!("do $lock$ begin\n{statements}end $lock$")
}

/// Runs statements that lock the table exclusively, in one transaction. `table` is quoted. The
/// error describes the session that keeps it from being locked.
pub(crate) async fn change_table(
    client: &Client,
    table: &str,
    attempts: Attempts,
    statements: &str,
) -> Result<()> {
    let change = || {
        let change = async {
            limit_wait(client).await?;
            Ok(client.batch_execute(statements).await?)
        };
        change.boxed()
    };

    let tables = [table.to_owned()];
    match try_in_transaction(client, attempts, &tables, change).await? {
        true => Ok(()),
        false => Err(busy(client, &tables).await),
    }
}

/// Runs a statement that locks `tables`, which are quoted, only against changes of their
/// definitions: its wait blocks no statement that reads or writes rows.
pub(crate) async fn change_publication(
    client: &Client,
    statement: &str,
    tables: &[String],
) -> Result<()> {
    // Several statements in one message are one transaction, to which these settings are local.
    let bounded =
        format!("set local lock_timeout = '5s'; set local statement_timeout = '60s'; {statement}");
    match client.batch_execute(&bounded).await {
        Ok(()) => Ok(()),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            Err(busy(client, tables).await)
        }
        Err(error) => Err(error.into()),
    }
}

/// Describes the session that keeps one of `tables`, which are quoted, from being locked.
pub(crate) async fn busy(client: &Client, tables: &[String]) -> PrimaryError {
    let holder = lock_holder(client, tables).await;
    let table = if tables.len() == 1 {
        format!("table {}", tables[0])
    } else {
        "one of the tables".to_owned()
    };

    PrimaryError::TableBusy { table, holder }
}

fn is_lock_timeout(error: &PrimaryError) -> bool {
    let PrimaryError::Query(error) = error else {
        return false;
    };

    let timeouts = [
        SqlState::QUERY_CANCELED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
    ];
    error.code().is_some_and(|code| timeouts.contains(code))
}
