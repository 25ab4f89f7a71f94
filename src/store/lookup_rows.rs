//! The rows that events of other rows need, and the add-ons of users, as of the checkpoint.

use std::collections::HashMap;

use deadpool_postgres::GenericClient;

use super::statement::{Statements, arrays, from_row};
use super::{Result, Store};
use crate::domain::addons::AddonChanges;
use crate::domain::ledger::{LedgerChanges, LedgerRow};
use crate::domain::table::{Table, transcoder_queue_file};
use crate::sql::store as sql;

impl Store {
    /// Returns the tables whose rows the store has, by number, with the mapping by which they were
    /// read.
    pub async fn lookup_tables(&self) -> Result<HashMap<i16, String>> {
        let tables: Vec<(i16, String)> = self.fetch_all(sql::lookup_row::TABLES, &[]).await?;
        Ok(tables.into_iter().collect())
    }

    /// Notes that the rows of these tables no longer follow the stream.
    pub async fn forget_lookup_tables(&self, tables: &[i16]) -> Result<()> {
        self.run(sql::lookup_row::REMOVE_TABLES, &[&tables]).await?;
        Ok(())
    }

    /// Returns the rows of `table` with these ids.
    pub async fn lookup_rows(&self, table: Table, ids: &[i64]) -> Result<Vec<LedgerRow>> {
        self.fetch_all(sql::lookup_row::LIST, &[&table.number(), &ids])
            .await
    }

    /// Returns the transcoded files of these transcoder queue entries.
    pub async fn files_of(&self, entries: &[i64]) -> Result<Vec<LedgerRow>> {
        let table = Table::TranscoderQueueFile.number();
        self.fetch_all(sql::lookup_row::CHILDREN, &[&table, &entries])
            .await
    }

    /// Returns each add-on that one of `users` has.
    pub async fn addons(&self, users: &[String]) -> Result<Vec<UserAddon>> {
        self.fetch_all(sql::user_addon::LIST, &[&users]).await
    }
}

/// Applies changes of looked-up rows, in the transaction that stores the events of the same
/// changes.
pub async fn change_lookup_rows(
    transaction: &impl GenericClient,
    changes: &LedgerChanges,
) -> Result<()> {
    let emptied: Vec<i16> = changes.emptied().filter_map(Table::number).collect();
    if !emptied.is_empty() {
        transaction.run(sql::lookup_row::EMPTY, &[&emptied]).await?;
    }

    let mut removed = Vec::new();
    let mut put = Vec::new();

    for (table, id, state) in changes.rows() {
        let Some(number) = table.number() else {
            continue;
        };

        match state {
            Some(state) => {
                let is_file = table == Table::TranscoderQueueFile;
                let row = if is_file {
                    state.looked_up_row(table, id)
                } else {
                    None
                };

                let parent =
                    row.and_then(|row| row.int(transcoder_queue_file::transcoder_queue_id));
                put.push((number, id, state.as_str(), parent));
            }
            None => removed.push((number, id)),
        }
    }

    if !removed.is_empty() {
        let rows = arrays!(removed, |row| (row.0, row.1));
        transaction
            .run(sql::lookup_row::REMOVE, &rows.params())
            .await?;
    }

    if !put.is_empty() {
        // In the index's order: neighbouring rows are written together.
        put.sort_unstable_by_key(|(relation, id, ..)| (*relation, *id));
        let rows = arrays!(put, |row| (row.0, row.1, row.2, row.3));
        transaction
            .run(sql::lookup_row::PUT, &rows.params())
            .await?;
    }

    Ok(())
}

/// Deletes all looked-up rows.
pub async fn forget_lookup_rows(transaction: &impl GenericClient) -> Result<()> {
    transaction.run(sql::lookup_row::FORGET, &[]).await?;
    Ok(())
}

/// Notes that the store has every row of `table`, read by `mapping`.
pub async fn mark_lookup_table(
    transaction: &impl GenericClient,
    table: Table,
    mapping: &str,
) -> Result<()> {
    transaction
        .run(sql::lookup_row::PUT_TABLE, &[&table.number(), &mapping])
        .await?;
    Ok(())
}

/// An add-on of a user.
pub struct UserAddon {
    pub user: String,
    pub addon: String,
    /// The number of rows of the platform's table that say so.
    pub copies: i32,
}

from_row!(UserAddon { user = "user_id", addon, copies });

pub async fn change_addons(transaction: &impl GenericClient, changes: &AddonChanges) -> Result<()> {
    if changes.is_cleared() {
        transaction.run(sql::user_addon::CLEAR, &[]).await?;
    }

    let emptied: Vec<&str> = changes.emptied().collect();
    if !emptied.is_empty() {
        transaction
            .run(sql::user_addon::REVOKE_ALL, &[&emptied])
            .await?;
    }

    for (granted, sql) in [
        (false, sql::user_addon::REVOKE),
        (false, sql::user_addon::REDUCE),
        (true, sql::user_addon::GRANT),
    ] {
        let rows = changes.rows(granted);
        if !rows.is_empty() {
            let rows = arrays!(rows, |row| (row.0, row.1, row.2));
            transaction.run(sql, &rows.params()).await?;
        }
    }

    Ok(())
}
