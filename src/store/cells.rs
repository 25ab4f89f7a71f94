//! The map of cells.

use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::handoffs::{Handoffs, Locked, unpack};
use super::statement::{FromRow, Params, Statements, column};
use super::{Result, Store, StoreError};
use crate::domain::cell::{self, Cell, CellFault, Shard, Shards};
use crate::sql::store as sql;

impl FromRow for Cell {
    fn from_row(row: &Row) -> Result<Self> {
        let shard = |name| Ok::<_, StoreError>(Shard(column::<u32>(row, name)? as u16));

        Ok(Cell {
            name: column(row, "name")?,
            shards: Shards {
                first: shard("first_shard")?,
                last: shard("last_shard")?,
            },
            store: column(row, "store")?,
            epoch: column(row, "epoch")?,
        })
    }
}

impl Store {
    /// Lists the cells: all in the log's store, and its own in a cell's.
    pub async fn cells(&self) -> Result<Vec<Cell>> {
        self.fetch_all(sql::cell::LIST, &[]).await
    }

    /// Returns the id by which readers of a log, and cells, know this store.
    pub async fn store_id(&self) -> Result<Uuid> {
        self.fetch_one(sql::cell::STORE_ID, &[]).await
    }

    /// Returns the cell that this store is. The inner error is that it is not the cell of this name.
    pub async fn own_cell(&self, name: Option<&str>) -> Result<Result<Option<Cell>, CellFault>> {
        let rows = self.cells().await?;
        Ok(cell::own(name, self.store_id().await?, &rows))
    }

    /// Stores a cell in the log's map, in place of what others had of its shards in earlier epochs.
    pub async fn put_cell(&self, cell: &Cell) -> Result<()> {
        self.transaction(async |transaction| {
            let (first, last) = cell.shards.bounds();
            let params: &Params<'_> = &[&cell.name, &first, &last, &cell.epoch];
            transaction.run(sql::cell::REMOVE_OLDER, params).await?;

            put(transaction, cell).await.map(drop)
        })
        .await
    }

    /// Stores the halves of a cell, in the log's store or in that of the cell, where it ends all
    /// claims on the checkpoint. Returns false if the first half is of another store.
    pub async fn put_halves(&self, keeps: &Cell, moves: &Cell) -> Result<bool> {
        self.transaction(async |transaction| {
            // No other cell may have a shard meanwhile: the first half ends before the second one
            // begins.
            if put(transaction, keeps).await? == 0 {
                return Ok(false);
            }

            transaction.run(sql::cell::END_CLAIMS, &[]).await?;
            Ok(put(transaction, moves).await? == 1)
        })
        .await
    }

    /// Makes this the store of a cell, and removes what could act for users of other shards. Returns
    /// how many webhooks it has removed.
    pub async fn become_cell(&self, cell: &Cell) -> Result<u64> {
        self.transaction(async |transaction| {
            transaction
                .run(sql::cell::DELETE_OTHERS, &[&cell.name])
                .await?;
            put(transaction, cell).await?;
            transaction.run(sql::cell::END_CLAIMS, &[]).await?;
            transaction
                .run(sql::cell::SET_STORE_ID, &[&cell.store])
                .await?;

            unpack(transaction, Handoffs::All, Locked::Wait).await?;
            let (first, last) = cell.shards.bounds();
            transaction
                .run(sql::cell::REMOVE_MOVED, &[&first, &last])
                .await
        })
        .await
    }
}

async fn put(on: &impl Statements, cell: &Cell) -> Result<u64> {
    let (first, last) = cell.shards.bounds();
    let params: &Params<'_> = &[&cell.name, &first, &last, &cell.store, &cell.epoch];
    on.run(sql::cell::PUT, params).await
}

/// Makes a connection to the log's store the only one that reads for this cell, until it ends.
/// Returns false if another one does.
pub async fn claim_cell(client: &Client, name: &str) -> Result<bool> {
    let row = client.query_one(sql::cell::CLAIM, &[&name]).await?;
    Ok(row.get(0))
}
