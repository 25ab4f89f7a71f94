//! Reads the primary's catalog into typed rows.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_types::{PgLsn, ToSql, Type};
use serde::Serialize;
use tokio_postgres::{Client, Statement};

use super::error::{PrimaryError, Result};
use super::finding::{Finding, Fix, FixKind, Remedy};
use super::lineage;
use super::mapped::table_name;
use crate::config::Source;
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::publication::PublicationMembers;
use crate::domain::table::Table;
use crate::postgres::row::row;
use crate::postgres::{quote_identifier, quote_qualified};
use crate::sql::primary as sql;

const PLUGIN: &str = "pgoutput";
/// How long a slot may still be in use after its reader has ended.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
const RELEASE_POLL: Duration = Duration::from_millis(50);
/// PostgreSQL 17: the first version whose logical slots can be synchronized to standbys.
pub(crate) const FAILOVER_VERSION: i32 = 170_000;

row! {
    #[derive(Clone, Debug)]
    pub(crate) struct Server {
        pub version: i32,
        pub wal_level: String,
        pub in_recovery: bool,
        pub may_replicate: bool,
        /// Whether the server is Amazon RDS or Aurora, which grants replication by a role.
        pub grants_replication: bool,
        pub role: String,
        pub encoding: String,
        pub database: String,
        pub database_owner: String,
        pub may_create: bool,
        pub max_slots: i32,
        pub slots: i32,
        pub physical_slots: Vec<String>,
        /// `max_slot_wal_keep_size`; `-1` is unlimited.
        pub slot_keep: String,
        /// Whether commits wait for a standby.
        pub synchronous: bool,
        /// The name of Walhook's connections, if it is among the standbys that commits wait for.
        pub own_standby: Option<String>,
        /// `synchronized_standby_slots`; empty if the version has no such setting.
        pub synchronized_slots: String,
        /// Milliseconds of silence after which the server ends a replication connection; 0 is
        /// never.
        pub sender_timeout: i64,
        /// Seconds without a reader after which a slot is invalidated; 0 is never; none if the
        /// version has no such setting.
        pub idle_slot_timeout: Option<i64>,
        pub system_identifier: i64,
        /// In hexadecimal digits; none on a standby.
        timeline: Option<String>,
        flushed: Option<PgLsn>,
        pub now: Timestamp,
    }
}

impl Server {
    /// Returns the cluster and the timeline. None on a standby.
    pub fn lineage(&self) -> Option<Lineage> {
        Lineage::of_server(self.system_identifier, self.timeline.as_deref())
    }

    /// Returns the end of the WAL that is flushed to disk.
    pub fn flushed(&self) -> Option<Lsn> {
        self.flushed.map(|lsn| Lsn(lsn.into()))
    }
}

row! {
    #[derive(Clone, Debug)]
    pub(crate) struct Slot {
        plugin: Option<String>,
        /// Whether it belongs to this database.
        in_this_database: bool,
        pub active_pid: Option<i32>,
        pub wal_status: Option<String>,
        confirmed: Option<PgLsn>,
        /// Whether it is synchronized to standbys; none if the version cannot do so.
        pub failover: Option<bool>,
    }
}

row! {
    /// A slot on a standby.
    #[derive(Clone, Debug)]
    pub(crate) struct StandbySlot {
        pub exists: bool,
        /// Whether PostgreSQL keeps it like that of the primary. False if it was created there, and
        /// on a former primary.
        pub synced: bool,
        /// Whether its synchronization has not succeeded yet.
        pub temporary: bool,
        pub invalidation_reason: Option<String>,
    }
}

/// Whether a slot can be read.
pub(crate) enum SlotState<'a> {
    Missing,
    /// It belongs to another program or database.
    Foreign(Finding),
    /// The server has removed WAL that it needs.
    Invalidated,
    Readable(&'a Slot),
}

impl SlotState<'_> {
    pub fn of<'a>(slot: Option<&'a Slot>, name: &str) -> SlotState<'a> {
        let Some(slot) = slot else {
            return SlotState::Missing;
        };

        match slot.foreign(name) {
            Some(foreign) => SlotState::Foreign(foreign),
            None if slot.wal_status.as_deref() == Some("lost") => SlotState::Invalidated,
            None => SlotState::Readable(slot),
        }
    }
}

impl Slot {
    /// Returns `confirmed_flush_lsn`: everything before it has been acknowledged.
    pub fn confirmed(&self) -> Option<Lsn> {
        self.confirmed.map(|lsn| Lsn(lsn.into()))
    }

    /// Returns a failure if the slot belongs to another program or database.
    pub fn foreign(&self, name: &str) -> Option<Finding> {
        let state = match self.plugin.as_deref() {
            None => "is a physical slot".to_owned(),
            Some(plugin) if plugin != PLUGIN => format!("is a slot of the plugin {plugin}"),
            Some(_) if !self.in_this_database => "is a slot of another database".to_owned(),
            Some(_) => return None,
        };

        let remedy = Remedy::Setup {
            first: Some("set source.slot to another name, or drop the slot".to_owned()),
        };
        Some(Finding::fail(format!("slot {name}"), state, remedy).blocking())
    }
}

row! {
    /// A table or a partition.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Relation {
        /// The index of its table in the query's arrays, counted from one.
        pub number: i64,
        pub oid: u32,
        pub schema: String,
        pub name: String,
        pub has_partitions: bool,
        /// Whether it has partitions or is one.
        pub partitioned: bool,
        /// Whether it is a partition of the table, not the table itself or one that inherits from
        /// it.
        pub is_partition: bool,
        pub owned: bool,
        pub owner: String,
        /// Whether the role may use the schema.
        pub usable: bool,
        pub schema_owner: String,
        pub may_trigger: bool,
        /// Whether rows may be hidden from the role.
        pub row_security: bool,
        /// As in `pg_class`: `d`, `n`, `f` or `i`.
        pub identity: String,
        pub identity_index: Option<String>,
        pub identity_columns: Vec<String>,
        /// The name of the index that setup creates for `source.replica_identity = "index"`.
        pub own_index: String,
        /// Whether that index is valid; none if it does not exist.
        pub own_index_valid: Option<bool>,
        pub columns: Vec<String>,
        /// The type of each column.
        pub types: Vec<String>,
        /// The category of each type, as in `pg_type`: `N` is numeric, `S` string, `D` date and
        /// time.
        pub categories: Vec<String>,
        /// For each column, whether a cast to text may differ from the type's output.
        pub formatted: Vec<bool>,
        /// Columns that logical replication does not send.
        pub generated: Vec<String>,
        /// Those that are computed when they are read. No publication can have them (PostgreSQL
        /// 18).
        pub virtual_columns: Vec<String>,
        pub not_null: Vec<String>,
        /// Other publications that have the table without its stored generated columns (PostgreSQL
        /// 18).
        pub published_without_generated: Vec<String>,
        /// Other publications that have only some columns of the table (PostgreSQL 15).
        pub partly_published_by: Vec<String>,
        /// The columns that one of these lacks.
        pub unpublished_columns: Vec<String>,
        pub readable: Vec<String>,
    }
}

impl Relation {
    pub fn qualified(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    pub fn quoted(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }

    /// Returns a statement that the table's owner can run.
    pub fn by_owner(&self, kind: FixKind, sql: String) -> Fix {
        Fix::new(&self.owner, kind, sql)
    }

    /// Returns the statements that give a privilege on the table to `role`, which is quoted.
    pub fn grants(&self, privilege: &str, role: &str) -> Vec<Fix> {
        let usage = (!self.usable).then(|| {
            let schema = quote_identifier(&self.schema);
            let grant = format!("grant usage on schema {schema} to {role};");
            Fix::new(&self.schema_owner, FixKind::Grants, grant)
        });
        let grant = format!("grant {privilege} on {} to {role};", self.quoted());

        usage
            .into_iter()
            .chain([self.by_owner(FixKind::Grants, grant)])
            .collect()
    }

    /// Returns why every UPDATE and DELETE of the platform would fail with replica identity full:
    /// it may not contain columns that one of the table's publications does not have.
    pub fn full_obstacle(&self) -> Option<String> {
        if !self.virtual_columns.is_empty() {
            return Some(format!(
                "has virtual generated columns ({})",
                self.virtual_columns.join(", ")
            ));
        }

        if let Some(other) = self.published_without_generated.first() {
            return Some(format!(
                "is in publication {other} without its generated columns ({})",
                self.generated.join(", ")
            ));
        }

        self.unpublished_columns
            .first()
            .map(|column| self.partly_published(column))
    }

    fn partly_published(&self, column: &str) -> String {
        format!(
            "is in publication {} without {column}",
            self.partly_published_by.join(", ")
        )
    }

    /// Returns why every UPDATE and DELETE of the platform would fail with an index over `columns`
    /// as replica identity.
    pub fn index_obstacle(&self, columns: &[&str]) -> Option<String> {
        let lacking = columns
            .iter()
            .find(|column| contains(&self.unpublished_columns, column))?;
        Some(self.partly_published(lacking))
    }

    /// Returns why every UPDATE and DELETE of the platform fails, because of the replica identity
    /// that setup has set.
    pub fn rejection(&self) -> Option<String> {
        let columns: Vec<&str> = self.identity_columns.iter().map(String::as_str).collect();

        match self.identity.as_str() {
            "f" => self.full_obstacle(),
            _ if self.uses_own_index() => self.index_obstacle(&columns),
            _ => None,
        }
    }

    /// Returns whether every UPDATE and DELETE of the platform fails while the table is published,
    /// because nothing identifies its rows: a partition without a key, or a table whose identity
    /// index was dropped.
    pub fn has_no_identity(&self) -> bool {
        self.identity != "f" && self.identity_columns.is_empty()
    }

    pub fn uses_own_index(&self) -> bool {
        self.identity == "i" && self.identity_index.as_ref() == Some(&self.own_index)
    }

    /// Returns whether the WAL has all of `columns` of old rows.
    pub fn identifies(&self, columns: &[&str]) -> bool {
        self.identity == "f"
            || columns
                .iter()
                .all(|column| contains(&self.identity_columns, column))
    }
}

pub(crate) fn contains(names: &[String], name: &str) -> bool {
    names.iter().any(|have| have == name)
}

/// One of Walhook's tables as the platform has it.
#[derive(Clone, Debug)]
pub(crate) struct MappedTable {
    pub table: Table,
    /// The table itself, then its partitions. Empty if it does not exist.
    pub relations: Vec<Relation>,
}

impl MappedTable {
    pub fn root(&self) -> Option<&Relation> {
        self.relations.first()
    }
}

row! {
    #[derive(Clone, Debug)]
    pub(crate) struct Publication {
        all_tables: bool,
        /// Whether it publishes inserts, updates, deletes and truncations.
        pub all_operations: bool,
        /// Whether it publishes the rows of partitions under the partitioned table's name.
        pub via_root: bool,
        pub owned: bool,
        pub owner: String,
        /// Schema and name of each table, in two arrays of the same length.
        schemas: Vec<String>,
        names: Vec<String>,
        /// Whether it has stored generated columns, without which replica identity full makes
        /// updates fail. True before PostgreSQL 18.
        pub stored_generated: bool,
        /// The tables of which it publishes only some rows.
        pub filtered: Vec<String>,
    }
}

impl Publication {
    /// Returns whether its options are those that setup sets.
    pub const fn has_options(&self) -> bool {
        self.all_operations && self.via_root && self.stored_generated
    }

    pub fn covers(&self, relation: &Relation) -> bool {
        let mut tables = self.schemas.iter().zip(&self.names);
        self.all_tables
            || tables.any(|(schema, name)| *schema == relation.schema && *name == relation.name)
    }
}

pub(crate) async fn server(client: &Client) -> Result<Server> {
    Ok(Server::from(
        &client.query_typed_one(sql::server::SETTINGS, &[]).await?,
    ))
}

/// Returns the lineage of the server. An error on a standby.
pub(crate) async fn lineage(client: &Client) -> Result<Lineage> {
    server(client).await?.lineage().ok_or(PrimaryError::Standby)
}

/// How a server commits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commits {
    pub lineage: Lineage,
    /// Whether commits wait for a standby.
    pub synchronous: bool,
}

/// Returns how the server commits. An error if it cannot continue `known`, or if the connection
/// that reads the slot would count as a synchronous standby.
pub(crate) async fn commits(client: &Client, known: Lineage) -> Result<Commits> {
    let row = client
        .query_typed_one(sql::server::SYNCHRONOUS, &[])
        .await?;
    let lineage = Lineage::of_server(row.get("system_identifier"), row.get("timeline"))
        .ok_or(PrimaryError::Standby)?;

    // First: the settings of a replaced primary mean nothing.
    lineage::verify(lineage, known)?;

    match row.get::<_, Option<String>>("own_standby") {
        Some(name) => Err(PrimaryError::OwnStandby(name)),
        None => Ok(Commits {
            lineage,
            synchronous: row.get("synchronous"),
        }),
    }
}

pub(crate) async fn slot(client: &Client, name: &str) -> Result<Option<Slot>> {
    Ok(client
        .query_typed_opt(sql::slot::FIND, &[(&name, Type::TEXT)])
        .await?
        .as_ref()
        .map(Slot::from))
}

row! {
    /// How much WAL a slot retains, in bytes.
    #[derive(Clone, Debug, Serialize)]
    pub struct SlotLag {
        pub wal_status: String,
        pub active: bool,
        #[serde(rename = "retained_bytes")]
        pub retained: Option<f64>,
        #[serde(rename = "unacknowledged_bytes")]
        pub unacknowledged: Option<f64>,
        #[serde(rename = "left_to_limit_bytes")]
        pub left_to_limit: Option<f64>,
        /// `max_slot_wal_keep_size`; `-1` is unlimited.
        pub keep_size: String,
    }
}

/// Measures a slot, if it exists.
pub(crate) async fn slot_lag(client: &Client, name: &str) -> Result<Option<SlotLag>> {
    let row = client
        .query_typed_opt(sql::slot::LAG, &[(&name, Type::TEXT)])
        .await?;

    Ok(row.as_ref().map(SlotLag::from))
}

row! {
    /// The rows that wait in the triggers' outbox.
    #[derive(Clone, Debug, Serialize)]
    pub struct OutboxBacklog {
        /// Up to 100,000.
        pub rows: i64,
        /// Seconds since the oldest was written.
        #[serde(rename = "age_seconds")]
        pub age: f64,
    }
}

/// Measures the outbox after a row, or from where it was last read.
pub(crate) async fn outbox_backlog(client: &Client, after: Option<i64>) -> Result<OutboxBacklog> {
    let row = client
        .query_typed_one(sql::outbox::BACKLOG, &[(&after, Type::INT8)])
        .await?;

    Ok(OutboxBacklog::from(&row))
}

/// Returns a slot that no connection reads, if it exists. The server notices a moment later that
/// its reader has ended, so an error if it stays in use.
pub(crate) async fn unused_slot(client: &Client, name: &str) -> Result<Option<Slot>> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;

    loop {
        let slot = slot(client, name).await?;
        match slot.as_ref().and_then(|slot| slot.active_pid) {
            None => return Ok(slot),
            Some(pid) if Instant::now() > deadline => {
                return Err(PrimaryError::SlotInUse {
                    slot: name.to_owned(),
                    pid,
                });
            }
            Some(_) => tokio::time::sleep(RELEASE_POLL).await,
        }
    }
}

/// Reads a slot on a standby. None if the server is a primary.
pub(crate) async fn standby_slot(client: &Client, name: &str) -> Result<Option<StandbySlot>> {
    Ok(client
        .query_typed_opt(sql::slot::ON_STANDBY, &[(&name, Type::TEXT)])
        .await?
        .as_ref()
        .map(StandbySlot::from))
}

/// Ends the connection of the server process `reader` if it reads the slot. A role may do that to
/// its own connections.
pub(crate) async fn end_reader(client: &Client, slot: &str, reader: i32) -> Result<()> {
    client
        .query_typed_opt(
            sql::slot::END_READER,
            &[(&slot, Type::TEXT), (&reader, Type::INT4)],
        )
        .await?;
    Ok(())
}

pub(crate) async fn publication(client: &Client, name: &str) -> Result<Option<Publication>> {
    Ok(client
        .query_typed_opt(sql::publication::FIND, &[(&name, Type::TEXT)])
        .await?
        .as_ref()
        .map(Publication::from))
}

row! {
    /// Identifies what the publication streams.
    pub(crate) struct PublicationVersion {
        pub version: String,
        /// Of the server that was queried, in hexadecimal digits.
        pub timeline: String,
    }
}

/// The query for the version of the publication. Prepared, because planning takes longer than
/// running it.
pub(crate) struct PublicationVersionQuery {
    statement: Statement,
    publication: String,
    tables: Vec<String>,
}

impl PublicationVersionQuery {
    pub async fn prepare(client: &Client, source: &Source) -> Result<PublicationVersionQuery> {
        let statement = client
            .prepare_typed(sql::publication::VERSION, &[Type::TEXT, Type::TEXT_ARRAY])
            .await?;
        let tables = required(source)
            .map(|table| table_name(&source.tables, table))
            .collect();
        Ok(PublicationVersionQuery {
            statement,
            publication: source.publication.clone(),
            tables,
        })
    }

    /// Returns none if the publication does not exist. `client` must be the one for which the query
    /// was prepared.
    pub async fn run(&self, client: &Client) -> Result<Option<PublicationVersion>> {
        let row = client
            .query_opt(&self.statement, &[&self.publication, &self.tables])
            .await?;
        Ok(row.as_ref().map(PublicationVersion::from))
    }
}

/// Reads what the publication streams of the tables that events need.
pub(crate) async fn publication_members(
    client: &Client,
    source: &Source,
) -> Result<PublicationMembers> {
    let (schemas, names): (Vec<String>, Vec<String>) = required(source)
        .map(|table| source.tables.qualified_name(table))
        .unzip();
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (&source.publication, Type::TEXT),
        (&schemas, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
    ];
    let rows = client
        .query_typed(sql::publication::MEMBERS, &parameters)
        .await?;

    Ok(rows
        .iter()
        .map(|row| (row.get("name"), row.get("number")))
        .collect())
}

/// Returns the tables that events need.
pub(crate) fn required(source: &Source) -> impl Iterator<Item = Table> {
    followed(source).filter(|table| is_required(*table))
}

/// Reads the platform's tables to which `tables` are mapped, in the same order.
pub(crate) async fn tables(
    client: &Client,
    source: &Source,
    tables: impl Iterator<Item = Table>,
) -> Result<Vec<MappedTable>> {
    let mut mapped: Vec<MappedTable> = tables
        .map(|table| MappedTable {
            table,
            relations: Vec::new(),
        })
        .collect();

    let (schemas, names): (Vec<String>, Vec<String>) = mapped
        .iter()
        .map(|mapped| source.tables.qualified_name(mapped.table))
        .unzip();
    let indexes: Vec<String> = mapped
        .iter()
        .map(|mapped| index_name(mapped.table))
        .collect();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&schemas, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&indexes, Type::TEXT_ARRAY),
        (&source.publication, Type::TEXT),
    ];

    for row in client.query_typed(sql::relation::FIND, &parameters).await? {
        let relation = Relation::from(&row);
        let index = usize::try_from(relation.number - 1).unwrap_or(usize::MAX);
        if let Some(mapped) = mapped.get_mut(index) {
            mapped.relations.push(relation);
        }
    }

    Ok(mapped)
}

/// Returns the tables whose changes capture reads.
pub(crate) fn followed(source: &Source) -> impl Iterator<Item = Table> {
    Table::ALL
        .iter()
        .copied()
        .filter(|table| source.follows(*table))
}

/// Returns whether events or their routing need the table. The only one that is not required has
/// the addresses for e-mail.
pub(crate) const fn is_required(table: Table) -> bool {
    !matches!(table, Table::AppUser)
}

/// Returns the name of the index that setup creates for `table`, in the table's schema.
pub(crate) fn index_name(table: Table) -> String {
    format!("walhook_identity_{}", table.name())
}

/// Describes the session that has held a lock on one of `tables` for longest, to append to an
/// error. `tables` are quoted.
pub(crate) async fn lock_holder(client: &Client, tables: &[String]) -> String {
    let found = client
        .query_typed_opt(sql::lock::HOLDER, &[(&tables, Type::TEXT_ARRAY)])
        .await
        .ok()
        .flatten();
    found
        .map(|row| format!(" by {}", row.get::<_, &str>(0)))
        .unwrap_or_default()
}

/// Describes the oldest open transaction: a new slot may be waiting for it to end.
pub(crate) async fn oldest_transaction(client: &Client) -> Result<Option<String>> {
    Ok(client
        .query_typed_opt(sql::server::OLDEST_TRANSACTION, &[])
        .await?
        .map(|row| row.get(0)))
}
