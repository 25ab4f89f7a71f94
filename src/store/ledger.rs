//! The ledger: the last state that the store saw of each watched row.

use std::collections::HashSet;

use deadpool_postgres::GenericClient;

use super::Result;
use super::statement::{Statements, arrays, from_row};
use crate::domain::ledger::{LedgerChanges, LedgerRow, State, relation, tables};
use crate::domain::table::Table;
use crate::sql::store as sql;

from_row!(LedgerRow { id = "row_id", state: |row: &tokio_postgres::Row| Ok::<_, super::StoreError>(State::stored(row.try_get("state")?)) });

/// Applies changes of watched rows, in the transaction that stores their events.
pub async fn change_ledger(
    transaction: &impl GenericClient,
    changes: &LedgerChanges,
) -> Result<()> {
    let emptied: Vec<i16> = changes.emptied().filter_map(relation).collect();
    if !emptied.is_empty() {
        transaction.run(sql::ledger::EMPTY, &[&emptied]).await?;
    }

    let mut removed = Vec::new();
    let mut put = Vec::new();

    for (table, id, state) in changes.rows() {
        let Some(number) = relation(table) else {
            continue;
        };

        match state {
            Some(state) => put.push((number, id, state.as_str())),
            None => removed.push((number, id)),
        }
    }

    if !removed.is_empty() {
        let rows = arrays!(removed, |row| (row.0, row.1));
        transaction.run(sql::ledger::REMOVE, &rows.params()).await?;
    }

    if !put.is_empty() {
        // In the index's order: neighbouring rows are written together.
        put.sort_unstable_by_key(|(relation, id, _)| (*relation, *id));
        let rows = arrays!(put, |row| (row.0, row.1, row.2));
        transaction.run(sql::ledger::PUT, &rows.params()).await?;
    }

    Ok(())
}

/// Deletes the ledger.
pub async fn forget_ledger(transaction: &impl GenericClient) -> Result<()> {
    transaction.run(sql::ledger::FORGET, &[]).await?;
    Ok(())
}

/// Notes that the ledger has every row of every watched table.
pub async fn mark_ledger_complete(transaction: &impl GenericClient) -> Result<()> {
    let relations: Vec<i16> = tables().filter_map(relation).collect();
    transaction
        .run(sql::ledger::MARK_COMPLETE, &[&relations])
        .await?;

    Ok(())
}

/// Returns the tables of which the ledger has every row.
pub async fn complete_tables(transaction: &impl GenericClient) -> Result<HashSet<Table>> {
    let numbers: Vec<i16> = transaction.fetch_all(sql::ledger::COMPLETE, &[]).await?;
    Ok(tables()
        .filter(|table| relation(*table).is_some_and(|number| numbers.contains(&number)))
        .collect())
}

/// Returns the next `limit` rows of the ledger by id, after the row `after` or from the first one.
pub async fn ledger_page(
    transaction: &impl GenericClient,
    table: Table,
    after: Option<i64>,
    limit: i64,
) -> Result<Vec<LedgerRow>> {
    // No row of the platform has the lowest possible id.
    let after = after.unwrap_or(i64::MIN);
    let sql = sql::ledger::PAGE;
    transaction
        .fetch_all(sql, &[&relation(table), &after, &limit])
        .await
}
