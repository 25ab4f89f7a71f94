//! The ledger of last seen states, and how far the slot may be acknowledged.

use std::collections::HashSet;

use deadpool_postgres::GenericClient;
use postgres_types::PgLsn;
use uuid::Uuid;

use super::{Result, Store};
use crate::domain::ledger::{Entry, LedgerChanges, State, relation, tables};
use crate::domain::lsn::Lsn;
use crate::domain::table::Table;

const PUT: &str = include_str!("../../sql/store/ledger_put.sql");
const REMOVE: &str = include_str!("../../sql/store/ledger_remove.sql");
const EMPTY: &str = include_str!("../../sql/store/ledger_empty.sql");
const FORGET: &str = include_str!("../../sql/store/ledger_forget.sql");
const PAGE: &str = include_str!("../../sql/store/ledger_page.sql");
const MARK_COMPLETE: &str = include_str!("../../sql/store/ledger_mark_complete.sql");
const COMPLETE: &str = include_str!("../../sql/store/ledger_complete.sql");
const LIMIT: &str = include_str!("../../sql/store/acknowledgement_limit.sql");
const LIMIT_SET: &str = include_str!("../../sql/store/acknowledgement_set.sql");
const READER: &str = include_str!("../../sql/store/acknowledgement_reader.sql");
const CLAIM: &str = include_str!("../../sql/store/acknowledgement_claim.sql");
const RAISE: &str = include_str!("../../sql/store/acknowledgement_raise.sql");
const LOWER: &str = include_str!("../../sql/store/acknowledgement_lower.sql");

/// Moves the ledger on with the transaction that stores what the changes raised.
pub async fn change_ledger(transaction: &impl GenericClient, changes: &LedgerChanges) -> Result<()> {
    let emptied: Vec<i16> = changes.emptied().filter_map(relation).collect();
    if !emptied.is_empty() {
        let statement = transaction.prepare_cached(EMPTY).await?;
        transaction.execute(&statement, &[&emptied]).await?;
    }
    let (mut gone, mut gone_ids) = (Vec::new(), Vec::new());
    let mut kept: Vec<(i16, i64, &str)> = Vec::new();
    for (table, id, state) in changes.rows() {
        let Some(number) = relation(table) else { continue };
        match state {
            Some(state) => kept.push((number, id, state.as_str())),
            None => {
                gone.push(number);
                gone_ids.push(id);
            }
        }
    }
    if !gone.is_empty() {
        let statement = transaction.prepare_cached(REMOVE).await?;
        transaction.execute(&statement, &[&gone, &gone_ids]).await?;
    }
    if !kept.is_empty() {
        // In the index's order: neighbours are written together.
        kept.sort_unstable_by_key(|(number, id, _)| (*number, *id));
        let relations: Vec<i16> = kept.iter().map(|(number, ..)| *number).collect();
        let ids: Vec<i64> = kept.iter().map(|(_, id, _)| *id).collect();
        let states: Vec<&str> = kept.iter().map(|(.., state)| *state).collect();
        let statement = transaction.prepare_cached(PUT).await?;
        transaction.execute(&statement, &[&relations, &ids, &states]).await?;
    }
    Ok(())
}

/// Makes the connection know how states are put.
pub async fn prepare_ledger(client: &impl GenericClient) -> Result<()> {
    client.prepare_cached(PUT).await?;
    Ok(())
}

/// Gives the ledger up: nothing is known of any row.
pub async fn forget_ledger(transaction: &impl GenericClient) -> Result<()> {
    transaction.execute(FORGET, &[]).await?;
    Ok(())
}

/// The ledger has every row of every watched table from here on.
pub async fn mark_ledger_complete(transaction: &impl GenericClient) -> Result<()> {
    let relations: Vec<i16> = tables().filter_map(relation).collect();
    transaction.execute(MARK_COMPLETE, &[&relations]).await?;
    Ok(())
}

/// The tables of which the ledger has every row.
pub async fn complete_tables(transaction: &impl GenericClient) -> Result<HashSet<Table>> {
    let rows = transaction.query(COMPLETE, &[]).await?;
    let numbers: HashSet<i16> = rows.iter().map(|row| row.get(0)).collect();
    Ok(tables().filter(|table| relation(*table).is_some_and(|number| numbers.contains(&number))).collect())
}

/// The next `limit` rows of the ledger behind the row `after`, by id; with nothing, from the first on.
pub async fn ledger_page(
    transaction: &impl GenericClient,
    table: Table,
    after: Option<i64>,
    limit: i64,
) -> Result<Vec<Entry>> {
    // The lowest number there is belongs to no row of anybody's.
    let after = after.unwrap_or(i64::MIN);
    let statement = transaction.prepare_cached(PAGE).await?;
    let rows = transaction.query(&statement, &[&relation(table), &after, &limit]).await?;
    Ok(rows.iter().map(|row| Entry { id: row.get(0), state: State::stored(row.get(1)) }).collect())
}

impl Store {
    /// How far idle log may be acknowledged; zero where nothing was decided.
    pub async fn acknowledgement_limit(&self, slot: &str) -> Result<Lsn> {
        let row = self.connection().await?.query_opt(LIMIT, &[&slot]).await?;
        Ok(row.map_or(Lsn::ZERO, |row| Lsn(row.get::<_, PgLsn>(0).into())))
    }

    /// The reader that moves the limit now.
    pub async fn acknowledgement_reader(&self, slot: &str) -> Result<Option<Uuid>> {
        let row = self.connection().await?.query_opt(READER, &[&slot]).await?;
        Ok(row.and_then(|row| row.get(0)))
    }

    /// Makes `reader` the only one that moves the limit, and returns the limit; none when `found`, the reader before, has been
    /// replaced meanwhile.
    pub async fn claim_acknowledgement(&self, slot: &str, found: Option<Uuid>, reader: Uuid) -> Result<Option<Lsn>> {
        let row = self.connection().await?.query_opt(CLAIM, &[&slot, &found, &reader]).await?;
        Ok(row.map(|row| Lsn(row.get::<_, PgLsn>(0).into())))
    }

    /// Raises the limit; false when another reader has replaced this one.
    pub async fn raise_acknowledgement_limit(&self, slot: &str, reader: Uuid, limit: Lsn) -> Result<bool> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(RAISE).await?;
        Ok(connection.execute(&statement, &[&slot, &reader, &PgLsn::from(limit.0)]).await? == 1)
    }

    /// Takes the limit back to what was acknowledged; false when another reader has replaced this one.
    pub async fn lower_acknowledgement_limit(&self, slot: &str, reader: Uuid, acknowledged: Lsn) -> Result<bool> {
        let connection = self.connection().await?;
        Ok(connection.execute(LOWER, &[&slot, &reader, &PgLsn::from(acknowledged.0)]).await? == 1)
    }
}

/// Sets the limit in the transaction that stores where a slot begins.
pub async fn set_acknowledgement_limit(transaction: &impl GenericClient, slot: &str, limit: Lsn) -> Result<()> {
    transaction.execute(LIMIT_SET, &[&slot, &PgLsn::from(limit.0)]).await?;
    Ok(())
}
