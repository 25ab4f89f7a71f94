//! Reads the primary's catalog.

use jiff::Timestamp;
use postgres_types::{PgLsn, ToSql, Type};
use tokio_postgres::Client;

use crate::capture::CaptureError;
use crate::config::Source;
use crate::domain::lsn::Lsn;
use crate::domain::table::Table;
use crate::postgres::quote_qualified;

const SERVER: &str = include_str!("../../sql/primary/server.sql");
const SYNCHRONOUS: &str = include_str!("../../sql/primary/synchronous.sql");
const SLOT: &str = include_str!("../../sql/primary/slot.sql");
const RELATIONS: &str = include_str!("../../sql/primary/relations.sql");
const PUBLICATION: &str = include_str!("../../sql/primary/publication.sql");
const PUBLICATION_TABLES: &str = include_str!("../../sql/primary/publication_tables.sql");
const LOCK_HOLDER: &str = include_str!("../../sql/primary/lock_holder.sql");
const OLDEST_TRANSACTION: &str = include_str!("../../sql/primary/oldest_transaction.sql");

pub(crate) const PLUGIN: &str = "pgoutput";
/// The first version whose slots tell all that is asked of them, and whose publications take partition roots.
pub(crate) const MINIMUM_VERSION: i32 = 140_000;
/// The first whose logical slots can be carried over to standbys.
pub(crate) const FAILOVER_VERSION: i32 = 170_000;

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub version: i32,
    pub wal_level: String,
    pub in_recovery: bool,
    pub may_replicate: bool,
    pub role: String,
    pub database: String,
    pub may_create: bool,
    pub max_slots: i32,
    pub slots: i32,
    /// How much log a slot may keep; `-1` is all of it.
    pub slot_keep: String,
    /// After how many milliseconds of silence the server ends a replication connection; 0 is never.
    pub sender_timeout: i64,
    /// After how many seconds without a reader a slot is invalidated; 0 is never, nothing where the server cannot.
    pub idle_slot_timeout: Option<i64>,
    pub system_identifier: i64,
    pub flushed: Option<Lsn>,
    pub now: Timestamp,
}

pub(crate) async fn server(client: &Client) -> Result<Server, CaptureError> {
    let row = client.query_typed_one(SERVER, &[]).await?;
    Ok(Server {
        version: row.get("version"),
        wal_level: row.get("wal_level"),
        in_recovery: row.get("in_recovery"),
        may_replicate: row.get("may_replicate"),
        role: row.get("role"),
        database: row.get("database"),
        may_create: row.get("may_create"),
        max_slots: row.get("max_slots"),
        slots: row.get("slots"),
        slot_keep: row.get("slot_keep"),
        sender_timeout: row.get("sender_timeout"),
        idle_slot_timeout: row.get("idle_slot_timeout"),
        system_identifier: row.get("system_identifier"),
        flushed: row.get::<_, Option<PgLsn>>("flushed").map(|lsn| Lsn(lsn.into())),
        now: row.get("now"),
    })
}

/// Whether commits wait for a standby.
pub(crate) async fn is_synchronous(client: &Client) -> Result<bool, CaptureError> {
    Ok(client.query_typed_one(SYNCHRONOUS, &[]).await?.get("synchronous"))
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub plugin: Option<String>,
    /// Whether it belongs to this database.
    pub here: bool,
    pub active_pid: Option<i32>,
    pub wal_status: Option<String>,
    pub confirmed: Option<Lsn>,
    /// Whether it is carried over to standbys; nothing where the server cannot.
    pub failover: Option<bool>,
}

impl Slot {
    pub fn is_lost(&self) -> bool {
        self.wal_status.as_deref() == Some("lost")
    }

    /// What makes it somebody else's, if anything does.
    pub fn foreign(&self) -> Option<String> {
        match self.plugin.as_deref() {
            None => Some("a physical slot".into()),
            Some(plugin) if plugin != PLUGIN => Some(format!("a slot of the plugin {plugin}")),
            Some(_) => (!self.here).then(|| "a slot of another database".into()),
        }
    }
}

pub(crate) async fn slot(client: &Client, name: &str) -> Result<Option<Slot>, CaptureError> {
    let row = client.query_typed_opt(SLOT, &[(&name, Type::TEXT)]).await?;
    Ok(row.map(|row| Slot {
        plugin: row.get("plugin"),
        here: row.get("here"),
        active_pid: row.get("active_pid"),
        wal_status: row.get("wal_status"),
        confirmed: row.get::<_, Option<PgLsn>>("confirmed_flush_lsn").map(|lsn| Lsn(lsn.into())),
        failover: row.get("failover"),
    }))
}

/// A table, or a part of a partitioned one.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    /// What it stands for.
    pub table: Table,
    pub oid: u32,
    pub schema: String,
    pub name: String,
    /// As in `pg_class`: `d`, `n`, `f` or `i`.
    pub identity: String,
    pub identity_index: Option<String>,
    pub identity_columns: Vec<String>,
    /// A partitioned table or a part of one.
    pub partitioned: bool,
    /// Whether the index that setup makes is there, and whole.
    pub own_index_valid: Option<bool>,
    pub owned: bool,
    pub row_security: bool,
    pub columns: Vec<String>,
    pub not_null: Vec<String>,
    pub readable: Vec<String>,
}

impl Relation {
    pub fn qualified(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    pub fn quoted(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }

    pub fn quoted_index(&self) -> String {
        quote_qualified(&self.schema, &index_name(self.table))
    }

    pub fn uses_own_index(&self) -> bool {
        self.identity == "i" && self.identity_index.as_deref() == Some(&index_name(self.table))
    }

    /// Whether old rows come with all of `columns`.
    pub fn identifies(&self, columns: &[&str]) -> bool {
        self.identity == "f" || columns.iter().all(|column| self.identity_columns.iter().any(|have| have == column))
    }
}

/// The name of the index that setup makes for `table`, in the table's schema.
pub(crate) fn index_name(table: Table) -> String {
    format!("walhook_identity_{}", table.name())
}

/// The platform's table that stands for `table`, then its partitions; none where it does not exist.
pub(crate) async fn relations(client: &Client, source: &Source, table: Table) -> Result<Vec<Relation>, CaptureError> {
    let (schema, name) = source.tables.qualified_name(table);
    let index = index_name(table);
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&schema, Type::TEXT), (&name, Type::TEXT), (&index, Type::TEXT)];
    let rows = client.query_typed(RELATIONS, &parameters).await?;
    let relations = rows.iter().map(|row| Relation {
        table,
        oid: row.get("oid"),
        schema: row.get("schema"),
        name: row.get("name"),
        identity: row.get("identity"),
        identity_index: row.get("identity_index"),
        identity_columns: row.get("identity_columns"),
        partitioned: row.get("partitioned"),
        own_index_valid: row.get("own_index_valid"),
        owned: row.get("owned"),
        row_security: row.get("row_security"),
        columns: row.get("columns"),
        not_null: row.get("not_null"),
        readable: row.get("readable"),
    });
    Ok(relations.collect())
}

#[derive(Clone, Debug)]
pub(crate) struct Publication {
    pub all_tables: bool,
    pub options_right: bool,
    pub owned: bool,
    /// Schema and name.
    pub tables: Vec<(String, String)>,
}

impl Publication {
    pub fn covers(&self, relation: &Relation) -> bool {
        self.all_tables || self.tables.iter().any(|(schema, name)| *schema == relation.schema && *name == relation.name)
    }
}

pub(crate) async fn publication(client: &Client, name: &str) -> Result<Option<Publication>, CaptureError> {
    let Some(row) = client.query_typed_opt(PUBLICATION, &[(&name, Type::TEXT)]).await? else { return Ok(None) };
    let tables = client.query_typed(PUBLICATION_TABLES, &[(&name, Type::TEXT)]).await?;
    Ok(Some(Publication {
        all_tables: row.get("all_tables"),
        options_right: row.get("options_right"),
        owned: row.get("owned"),
        tables: tables.iter().map(|row| (row.get("schema"), row.get("name"))).collect(),
    }))
}

/// Who has held a lock on one of `tables` for longest, as something to add to a complaint.
pub(crate) async fn lock_holder(client: &Client, tables: &[String]) -> String {
    let found = client.query_typed_opt(LOCK_HOLDER, &[(&tables, Type::TEXT_ARRAY)]).await.ok().flatten();
    found.map(|row| format!(" by {}", row.get::<_, &str>(0))).unwrap_or_default()
}

/// Who a new slot may be waiting for.
pub(crate) async fn oldest_transaction(client: &Client) -> Result<Option<String>, CaptureError> {
    Ok(client.query_typed_opt(OLDEST_TRANSACTION, &[]).await?.map(|row| row.get(0)))
}

/// Whether events or their routing need the table; the rest is for e-mail alone.
pub(crate) const fn is_required(table: Table) -> bool {
    !matches!(table, Table::AppUser)
}
