//! Reads rows from the primary, by the configured names or by the platform's own SQL.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use postgres_types::{ToSql, Type};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, SimpleQueryMessage};

use crate::config::{self, TableMappings};
use crate::domain::change::Tuple;
use crate::domain::table::Table;
use crate::domain::window::Snapshot;
use crate::postgres::{
    self, ANSWER_TIMEOUT, ConnectError, DiskFault, fill, limited, quote_identifier,
};
use crate::primary::mapped::{
    condition_on_this, extra, looked_up_condition, table_name, tuple, with_extra,
};
use crate::retry::Backoff;
use crate::sql::primary as sql;
use crate::store::StoreError;
use crate::telemetry::count_disk_fault;

/// A commit becomes visible to other sessions shortly after it is streamed, or later if the server
/// waits for a synchronous standby.
const VISIBLE_POLLS: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
/// Longer than a working standby takes. After this time, the batch is reported as waiting, and
/// retried.
const VISIBLE_WITHIN: Duration = Duration::from_secs(5);

pub type Result<T, E = LookupError> = std::result::Result<T, E>;

/// Why nothing could be looked up. A retry can succeed after each of these: what is missing must be
/// restored, but no restart is needed afterwards.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("the primary: {0}")]
    Connect(#[from] ConnectError),
    #[error("the primary: looking up {0}: no answer within {1:?}")]
    Silent(&'static str, Duration),
    #[error("the primary: looking up {table}: {}", postgres::describe(.source))]
    Query {
        table: &'static str,
        source: tokio_postgres::Error,
    },
    #[error(
        "column {column} of {table} is gone: restore it, or name another column in {setting} and restart"
    )]
    ColumnGone {
        table: String,
        column: String,
        setting: String,
    },
    #[error(
        "table {table} is gone: restore it, or name another table in source.tables.{key}.table and restart"
    )]
    TableGone { table: String, key: &'static str },
    #[error(
        "the primary does not show a committed transaction within {0:?}: does a synchronous standby keep up?"
    )]
    Invisible(Duration),
    #[error(
        "source.url leads to a server on timeline {found}, but changes are read on the later timeline {known}: remove the server that was \
         replaced by a failover from source.url, or stop it"
    )]
    Replaced { found: u32, known: u32 },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a lookup returned no result for {0}")]
    Unanswered(String),
}

pub struct Primary {
    url: String,
    mappings: TableMappings,
    custom: BTreeMap<String, String>,
    /// The timeline of the changes for which rows are looked up. A server on an earlier one may
    /// have rows that are older.
    timeline: u32,
    /// The most keys of one query. Smaller after a query that took too long; grows with those that
    /// are answered.
    chunk: usize,
    session: Option<LookupSession>,
}

/// The result of looking up keys.
#[derive(Debug, Default)]
pub struct Fetched {
    pub rows: Vec<Tuple>,
    /// Keys whose rows the server cannot return, with its error.
    pub failed: Vec<(String, String)>,
}

/// The most keys of one query: as many as the changes of a batch.
const MAX_CHUNK: usize = 1_000;

/// The limit of a query, which [`BEGIN`] sets. That of the wait for a lock is shorter, so that a
/// lock never looks like a slow row.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a query of some keys failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryFault {
    /// A value of a row (a data exception, an exceeded limit, too many rows of a subselect), or an
    /// exception of the platform's function.
    Row,
    /// The query needed longer than it may.
    Slow,
    /// Anything else, for example an operator who cancelled the query.
    Other,
}

impl QueryFault {
    fn of(error: &tokio_postgres::Error, after: Duration) -> QueryFault {
        const CLASSES: [&str; 5] = ["21", "22", "23", "54", "P0"];

        match error.code() {
            Some(code) if CLASSES.iter().any(|class| code.code().starts_with(class)) => {
                QueryFault::Row
            }
            Some(&SqlState::QUERY_CANCELED) if after >= STATEMENT_TIMEOUT => QueryFault::Slow,
            _ => QueryFault::Other,
        }
    }
}

/// A connection, and the queries built over it.
struct LookupSession {
    client: Client,
    /// The server's timeline. None on a standby.
    timeline: Option<u32>,
    queries: HashMap<Table, String>,
    /// A query has not been answered, or not in time: the connection may be dead.
    is_silent: bool,
}

/// The settings are local to the transaction: afterwards, a pooler may assign the server's session
/// to another client.
const BEGIN: &str = "begin read only; set local datestyle = 'ISO'; set local timezone = 'UTC';
    set local extra_float_digits = 1; set local bytea_output = 'hex'; set local statement_timeout = '30s'; set local lock_timeout = '10s';";

impl LookupSession {
    /// Runs a query in its own transaction, in one round trip and without a prepared statement,
    /// which poolers may not support.
    async fn read(
        &mut self,
        table: &'static str,
        query: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>> {
        let (_, rows) = self.read_in(BEGIN, table, query, parameters).await?;
        Ok(rows)
    }

    /// Reads rows that are not older than the commit of `transaction`: repeats [`read`](Self::read)
    /// until a snapshot taken before the rows shows the commit.
    async fn read_after(
        &mut self,
        transaction: u32,
        table: &'static str,
        query: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>> {
        let started_at = Instant::now();
        let mut polls = VISIBLE_POLLS;
        let begin = format!("{BEGIN} {}", sql::server::CURRENT_SNAPSHOT);

        loop {
            let (began, rows) = self.read_in(&begin, table, query, parameters).await?;
            let shows = |message: &SimpleQueryMessage| match message {
                SimpleQueryMessage::Row(row) => row
                    .get("snapshot")
                    .is_some_and(|snapshot| Snapshot::from(snapshot).has_ended(transaction)),
                _ => false,
            };

            if began.iter().any(shows) {
                return Ok(rows);
            }

            if started_at.elapsed() > VISIBLE_WITHIN {
                return Err(LookupError::Invisible(VISIBLE_WITHIN));
            }

            polls.wait().await;
        }
    }

    /// Runs `begin`, the query and a commit. Returns the answers to the first two.
    async fn read_in(
        &mut self,
        begin: &str,
        table: &'static str,
        query: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<(Vec<SimpleQueryMessage>, Vec<Row>)> {
        let failed = |source| {
            if let Some(fault) = DiskFault::of(&source) {
                count_disk_fault("primary", fault.as_str());
            }

            LookupError::Query { table, source }
        };

        let answers = async {
            // Sent in this order.
            tokio::join!(
                biased;
                self.client.simple_query(begin),
                self.client.query_typed(query, parameters),
                self.client.batch_execute("commit")
            )
        };

        // Also if the caller stops waiting: its limit may be shorter.
        self.is_silent = true;
        let answers = tokio::time::timeout(ANSWER_TIMEOUT, answers).await;
        let (began, rows, committed) =
            answers.map_err(|_| LookupError::Silent(table, ANSWER_TIMEOUT))?;

        self.is_silent = false;
        let began = began.map_err(failed)?;
        let rows = rows.map_err(failed)?;
        committed.map_err(failed)?;

        Ok((began, rows))
    }
}

impl Primary {
    pub fn new(url: &str, source: &config::Source) -> Primary {
        // No event needs optional columns.
        let mappings = source.tables.clone().without_optional();
        let custom = source.lookups.clone();

        Primary {
            url: url.to_owned(),
            mappings,
            custom,
            timeline: 0,
            chunk: MAX_CHUNK,
            session: None,
        }
    }

    /// Refuses servers on timelines before this one: a failover has replaced them.
    pub fn set_timeline(&mut self, timeline: u32) {
        self.timeline = timeline;
    }

    /// Reads the rows of `table` with these keys. They are not older than the commit of `after`, a
    /// transaction in the stream.
    ///
    /// Keys are asked for in chunks. A chunk that the server refuses because of its data, or does
    /// not answer in time, is halved, so that one row or one slow expression holds up nothing else.
    pub async fn rows(
        &mut self,
        table: Table,
        keys: &[String],
        after: Option<u32>,
    ) -> Result<Fetched> {
        let mut fetched = Fetched::default();
        let mut pending: Vec<&[String]> = vec![keys];
        while let Some(keys) = pending.pop() {
            if keys.len() > self.chunk {
                let (first, rest) = keys.split_at(self.chunk);
                pending.extend([rest, first]);
                continue;
            }

            let asked_at = Instant::now();
            let error = match self.chunk_of_rows(table, keys, after).await {
                Ok(rows) => {
                    self.chunk = (self.chunk + keys.len()).min(MAX_CHUNK);
                    fetched.rows.extend(rows);
                    continue;
                }
                Err(error) => error,
            };

            let fault = match &error {
                LookupError::Query { source, .. } => QueryFault::of(source, asked_at.elapsed()),
                _ => QueryFault::Other,
            };

            if fault == QueryFault::Slow {
                self.chunk = (keys.len() / 2).max(1);
            }

            match (fault, keys) {
                (QueryFault::Other, _) | (_, []) => return Err(error),
                (_, [key]) => fetched.failed.push((key.clone(), error.to_string())),
                _ => {
                    let (first, rest) = keys.split_at(keys.len() / 2);
                    pending.extend([rest, first]);
                }
            }
        }

        Ok(fetched)
    }

    async fn chunk_of_rows(
        &mut self,
        table: Table,
        keys: &[String],
        after: Option<u32>,
    ) -> Result<Vec<Tuple>> {
        if self.mappings.is_absent(table) {
            return Ok(Vec::new());
        }

        let query = self.query(table).await?;
        let session = self.session().await?;
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&keys, Type::TEXT_ARRAY)];

        let rows = match after {
            Some(transaction) => {
                session
                    .read_after(transaction, table.name(), &query, &parameters)
                    .await
            }
            None => session.read(table.name(), &query, &parameters).await,
        };

        // The table may have changed: the query is built again, which finds out.
        let rows = rows.inspect_err(|_| session.queries.clear())?;
        let tuple = |row: &Row| tuple(&self.mappings, table, table.columns(), |at| row.get(at));

        Ok(rows.iter().map(tuple).collect())
    }

    async fn session(&mut self) -> Result<&mut LookupSession> {
        if self
            .session
            .as_ref()
            .is_none_or(|session| session.is_silent || session.client.is_closed())
        {
            let client = postgres::connect(&self.url).await?;
            let mut session = LookupSession {
                client,
                timeline: None,
                queries: HashMap::new(),
                is_silent: false,
            };

            let rows = session
                .read("the timeline", sql::server::TIMELINE, &[])
                .await?;
            let timeline = rows
                .first()
                .and_then(|row| row.get::<_, Option<&str>>("timeline"));
            session.timeline = timeline.and_then(|hex| u32::from_str_radix(hex, 16).ok());
            self.session = Some(session);
        }

        let found = self.session.as_ref().and_then(|session| session.timeline);
        if let Some(found) = found.filter(|found| *found < self.timeline) {
            // The next connection may lead to another host.
            self.session = None;
            return Err(LookupError::Replaced {
                found,
                known: self.timeline,
            });
        }

        Ok(self
            .session
            .as_mut()
            .expect("created above if it was missing"))
    }

    async fn query(&mut self, table: Table) -> Result<String> {
        let known = self.session().await?.queries.get(&table).cloned();
        if let Some(query) = known {
            return Ok(query);
        }

        let query = match self.custom.get(table.name()) {
            // Rows are read as text, whatever types their columns have.
            Some(sql) => {
                let found = |name: &str| format!("found.{}", quote_identifier(name));
                let columns = table.columns().iter().map(|name| {
                    let text = if self.mappings.lacks(table, name) {
                        "null".to_owned()
                    } else {
                        format!("{}::text", found(name))
                    };
                    limited(text, table.most_characters(name))
                });
                let columns: Vec<String> =
                    columns.chain(extra(&self.mappings, table, found)).collect();
                format!(
                    "select {} from ({}) as found",
                    columns.join(", "),
                    sql.trim().trim_end_matches(';')
                )
            }
            None => {
                let condition = looked_up_condition(&self.mappings, table);
                self.mapped_query(table, sql::lookup::ROWS, &condition)
                    .await?
            }
        };

        self.session().await?.queries.insert(table, query.clone());
        Ok(query)
    }

    /// Reads the newest rows of a captured table: those with the highest ids that meet the table's
    /// condition.
    pub async fn newest(&mut self, table: Table, count: u32) -> Result<Vec<Tuple>> {
        let condition = condition_on_this(&self.mappings, table);
        let query = self
            .mapped_query(table, sql::lookup::NEWEST, &condition)
            .await?;

        let session = self.session().await?;
        let count = i64::from(count);
        let rows = session
            .read(table.name(), &query, &[(&count, Type::INT8)])
            .await?;

        let tuple = |row: &Row| tuple(&self.mappings, table, table.columns(), |at| row.get(at));
        Ok(rows.iter().map(tuple).collect())
    }

    /// Fills a statement that reads the mapped columns of a table.
    async fn mapped_query(
        &mut self,
        table: Table,
        template: &str,
        condition: &str,
    ) -> Result<String> {
        let (schema, name) = self.mappings.qualified_name(table);
        let session = self.session().await?;

        let rows = session
            .read(
                table.name(),
                sql::lookup::COLUMN_TYPES,
                &[(&schema, Type::TEXT), (&name, Type::TEXT)],
            )
            .await?;

        let types: HashMap<&str, &str> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let full_name = || format!("{schema}.{name}");

        if types.is_empty() {
            return Err(LookupError::TableGone {
                table: full_name(),
                key: table.name(),
            });
        }

        for (setting, column) in self.mappings.platform_columns(table) {
            if !types.contains_key(column) {
                return Err(LookupError::ColumnGone {
                    table: full_name(),
                    column: column.to_owned(),
                    setting: format!("source.tables.{}.{setting}", table.name()),
                });
            }
        }

        let key = self.mappings.column(table, key_column(table));

        // References may be wider than the ids to which they lead: a number that is too large is
        // the id of no row.
        let key_type = match types[key] {
            "int2" | "int4" | "smallint" | "integer" => "int8",
            key_type => key_type,
        };

        let names = [
            (
                "columns",
                &*with_extra(&self.mappings, table, table.columns()),
            ),
            ("table", &table_name(&self.mappings, table)),
            ("key", &quote_identifier(key)),
            ("key_type", key_type),
            ("condition", condition),
        ];

        Ok(fill(template, &names))
    }
}

/// Runs each query that uses the platform's own SQL, without keys, to find errors before anything
/// depends on it.
pub async fn try_queries(url: &str, source: &config::Source) -> Vec<(Table, Result<()>)> {
    let mut primary = Primary::new(url, source);
    let mut tried = Vec::new();

    for table in Table::ALL
        .iter()
        .copied()
        .filter(|table| uses_own_sql(source, *table))
    {
        tried.push((table, primary.rows(table, &[], None).await.map(drop)));
    }

    tried
}

/// Returns whether rows of the table, or values in them, come from the platform's own SQL.
fn uses_own_sql(source: &config::Source, table: Table) -> bool {
    source.lookups.contains_key(table.name()) || source.tables.is_computed(table)
}

/// Returns the column by which rows of a table are looked up.
pub const fn key_column(table: Table) -> &'static str {
    match table {
        Table::TranscoderQueueFile => "transcoder_queue_id",
        Table::UserAddon => "user_id",
        _ => "id",
    }
}
