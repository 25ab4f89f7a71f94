//! Reads the primary's rows at one snapshot: the current one, or one that another session has
//! exported.

use jiff::Timestamp;
use postgres_types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::error::Result;
use super::mapped::{
    column_name, condition_on_this, looked_up_condition, table_name, tuple, with_extra,
};
use crate::config::Source;
use crate::domain::change::{Tuple, canonical_int};
use crate::domain::ledger::{LedgerRow, State};
use crate::domain::table::Table;
use crate::postgres::{self, fill, quote_identifier, quote_literal, without_transaction_timeout};
use crate::sql::primary as sql;

const WATCHED_ROWS_CLOSE: &str = "close watched_rows";

/// A regular expression for what may be an id.
const INTEGER: &str = "^-?[0-9]{1,19}$";

/// The same settings as in the replication session, because values from both are compared. The
/// session waits while its rows are stored.
const BEGIN: &str = "begin isolation level repeatable read read only; \
                     set local datestyle = 'ISO'; set local timezone = 'UTC'; set local intervalstyle = 'postgres'; \
                     set local extra_float_digits = 1; set local bytea_output = 'hex'; set local statement_timeout = 0; \
                     set local idle_in_transaction_session_timeout = 0";

/// A session in one repeatable-read transaction, which reads at one snapshot.
pub(crate) struct SnapshotSession {
    client: Client,
    /// The server's time when it began.
    pub at: Timestamp,
}

impl SnapshotSession {
    /// Takes a new snapshot.
    pub async fn now(url: &str) -> Result<SnapshotSession> {
        SnapshotSession::begin(url, None).await
    }

    /// Imports a snapshot, which the session that exported it must still hold.
    pub async fn import(url: &str, name: &str) -> Result<SnapshotSession> {
        SnapshotSession::begin(url, Some(name)).await
    }

    async fn begin(url: &str, imported: Option<&str>) -> Result<SnapshotSession> {
        let client = postgres::connect(url).await?;
        client.batch_execute(BEGIN).await?;

        if let Some(name) = imported {
            // Names that the server gives consist of hexadecimal digits and dashes.
            client
                .batch_execute(&format!("set transaction snapshot {}", quote_literal(name)))
                .await?;
        }

        client
            .batch_execute(&without_transaction_timeout(true))
            .await?;
        let at = client
            .query_typed_one("select clock_timestamp()", &[])
            .await?
            .get(0);
        Ok(SnapshotSession { client, at })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Opens a cursor over the watched columns of the rows that raise events, ordered by id.
    pub async fn watched_rows<'a>(&'a self, source: &'a Source, table: Table) -> Result<Rows<'a>> {
        let condition = condition_on_this(&source.tables, table);
        self.open(source, table, table.watched(), State::of, &condition)
            .await
    }

    /// Opens a cursor over the columns of a table that events of other rows need, ordered by id.
    pub async fn looked_up_rows<'a>(
        &'a self,
        source: &'a Source,
        table: Table,
    ) -> Result<Rows<'a>> {
        let condition = looked_up_condition(&source.tables, table);
        let names = table.looked_up();
        self.open(source, table, names, State::of_looked_up, &condition)
            .await
    }

    async fn open<'a>(
        &'a self,
        source: &'a Source,
        table: Table,
        names: &'static [&'static str],
        state: fn(Table, &Tuple) -> Option<State>,
        condition: &str,
    ) -> Result<Rows<'a>> {
        let id = column_name(&source.tables, table, "id");
        let id_type = self.id_type(source, table).await?;

        // Qualified, since a plain name would be that of the query's first column, which is a text.
        let order = match id_type.as_str() {
            "int2" | "int4" | "int8" => format!("this.{id}"),
            // Ids of another type are sorted as numbers, for which there is no index, and what is
            // no integer comes last.
            _ => {
                format!("case when this.{id}::text ~ '{INTEGER}' then this.{id}::text::numeric end")
            }
        };

        let placeholders = [
            ("id", &*id),
            ("columns", &with_extra(&source.tables, table, names)),
            ("table", &table_name(&source.tables, table)),
            ("condition", condition),
            ("order", &order),
        ];

        let statement = fill(sql::snapshot::WATCHED_ROWS, &placeholders);
        self.client.batch_execute(&statement).await?;

        Ok(Rows {
            snapshot: self,
            source,
            table,
            names,
            state,
            skipped: 0,
            example: None,
        })
    }

    /// Reads the rows of these ids with all their columns, in no particular order.
    pub async fn rows(&self, source: &Source, table: Table, ids: &[i64]) -> Result<Vec<Tuple>> {
        let id_type = quote_identifier(&self.id_type(source, table).await?);
        let names = [
            ("key", &*column_name(&source.tables, table, "id")),
            (
                "columns",
                &with_extra(&source.tables, table, table.columns()),
            ),
            ("table", &table_name(&source.tables, table)),
            ("key_type", &id_type),
            ("condition", "true"),
        ];

        let statement = fill(sql::lookup::ROWS, &names);
        let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
        let rows = self
            .client
            .query_typed(&statement, &[(&ids, Type::TEXT_ARRAY)])
            .await?;

        Ok(rows
            .iter()
            .map(|row| {
                tuple(&source.tables, table, table.columns(), |index| {
                    row.get(index)
                })
            })
            .collect())
    }

    async fn id_type(&self, source: &Source, table: Table) -> Result<String> {
        let id = column_name(&source.tables, table, "id");
        let table = table_name(&source.tables, table);
        let statement = self
            .client
            .prepare(&format!("select {id} from {table}"))
            .await?;
        Ok(statement.columns()[0].type_().name().to_owned())
    }
}

/// A cursor over one table's rows.
pub(crate) struct Rows<'a> {
    snapshot: &'a SnapshotSession,
    source: &'a Source,
    table: Table,
    names: &'static [&'static str],
    state: fn(Table, &Tuple) -> Option<State>,
    /// How many rows have an id that is no integer, and the first such id.
    skipped: usize,
    example: Option<String>,
}

impl Rows<'_> {
    /// Reads the next rows. Empty at the end.
    pub async fn next(&mut self) -> Result<Vec<LedgerRow>> {
        let mut entries = Vec::new();
        let mut has_more = true;
        while entries.is_empty() && has_more {
            has_more = false;

            for message in &self
                .snapshot
                .client
                .simple_query(sql::snapshot::FETCH_WATCHED_ROWS)
                .await?
            {
                let SimpleQueryMessage::Row(row) = message else {
                    continue;
                };

                has_more = true;

                let Some(id) = row.get(0).and_then(canonical_int) else {
                    self.skipped += 1;
                    self.example.get_or_insert_with(|| {
                        row.get(0).unwrap_or("null").chars().take(40).collect()
                    });
                    continue;
                };

                let values = tuple(&self.source.tables, self.table, self.names, |index| {
                    row.get(index + 1)
                });

                entries
                    .extend((self.state)(self.table, &values).map(|state| LedgerRow { id, state }));
            }
        }

        Ok(entries)
    }

    /// Closes the cursor, so that another table can be read.
    pub async fn close(self) -> Result<()> {
        if let Some(example) = &self.example {
            let (schema, table) = self.source.tables.qualified_name(self.table);
            let skipped = self.skipped;
            let column = self.source.tables.column(self.table, "id");
            tracing::warn!(%schema, %table, column, skipped, example, "rows are skipped: their ids are no integers");
        }

        Ok(self
            .snapshot
            .client
            .batch_execute(WATCHED_ROWS_CLOSE)
            .await?)
    }
}
