//! What setup and teardown store and ask: replica identities, the schema, and the store's own
//! identity.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::statement::{FromRow, column, from_row};
use super::{Result, Store};
use crate::sql::store as sql;

/// A table's replica identity before setup changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundIdentity {
    pub table_oid: u32,
    /// For messages. The oid identifies the table.
    pub table_name: String,
    /// As in `pg_class`: `d`, `n`, `f` or `i`.
    pub identity: String,
    pub index: Option<String>,
}

impl FromRow for FoundIdentity {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(FoundIdentity {
            // An oid, which is read as `u32` itself.
            table_oid: row.try_get("table_oid")?,
            table_name: column(row, "table_name")?,
            identity: column(row, "identity")?,
            index: column(row, "index_name")?,
        })
    }
}

/// The server, database and role of the store.
#[derive(Clone, Debug)]
pub struct Identity {
    pub system_identifier: i64,
    pub database: String,
    pub role: String,
    pub encoding: String,
    pub synchronous_commit: String,
    /// Whether commits can wait for a standby.
    pub synchronous: bool,
    pub now: Timestamp,
}

from_row!(Identity {
    system_identifier,
    database,
    role,
    encoding,
    synchronous_commit,
    synchronous,
    now
});

impl Store {
    pub async fn remember_identity(&self, found: &FoundIdentity) -> Result<()> {
        let FoundIdentity {
            table_oid,
            table_name,
            identity,
            index,
        } = found;

        self.run(
            sql::replica_identity::REMEMBER,
            &[table_oid, table_name, identity, index],
        )
        .await?;
        Ok(())
    }

    pub async fn found_identities(&self) -> Result<Vec<FoundIdentity>> {
        self.fetch_all(sql::replica_identity::LIST, &[]).await
    }

    pub async fn forget_identities(&self) -> Result<()> {
        self.run(sql::replica_identity::FORGET, &[]).await?;
        Ok(())
    }

    pub async fn has_schema(&self) -> Result<bool> {
        self.fetch_one(sql::server::SCHEMA_EXISTS, &[]).await
    }

    /// Drops the schema, also one without tables. Returns false if there is none.
    pub async fn drop_schema(&self) -> Result<bool> {
        let was_created = self.fetch_one(sql::server::SCHEMA_CREATED, &[]).await?;
        self.run(sql::server::DROP_SCHEMA, &[]).await?;

        Ok(was_created)
    }

    pub async fn identity(&self) -> Result<Identity> {
        self.fetch_one(sql::server::IDENTIFY, &[]).await
    }
}
