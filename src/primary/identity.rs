//! Replica identities: which are good enough, and how they are changed and put back.

use std::collections::HashMap;

use postgres_types::Type;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{self, Relation, is_required};
use crate::capture::CaptureError;
use crate::config::{ReplicaIdentity, Source};
use crate::domain::table::Table;
use crate::postgres::{quote_identifier, quote_qualified};
use crate::store::capture::FoundIdentity;

const SET: &str = include_str!("../../sql/primary/replica_identity_set.sql");
const INDEX_CREATE: &str = include_str!("../../sql/primary/identity_index_create.sql");
const INDEX_DROP: &str = include_str!("../../sql/primary/identity_index_drop.sql");
const CURRENT: &str = include_str!("../../sql/primary/replica_identity_current.sql");

/// Who waits for a lock makes everybody wait who comes after.
const BOUNDS: &str = "set lock_timeout = '5s'; set statement_timeout = '60s'";

const UNBOUND: &str = "set lock_timeout = '60s'; set statement_timeout = 0";

/// The columns, by the platform's names, that old rows of the table must come with.
pub(crate) fn wanted(source: &Source, table: Table) -> Vec<&str> {
    let name = |column| source.tables.column(table, column);
    match table {
        // Without both columns, a deletion does not name the user and the add-on.
        Table::UserAddon => vec![name("user_id"), name("addon")],
        // A table that is only looked up: its key says which row is no longer what it was.
        _ => std::iter::once("id").chain(table.watched().iter().copied()).map(name).collect(),
    }
}

/// How the old rows of a table are to get into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Whole.
    Full,
    /// The id and the watched columns, when one of them changes.
    Index,
}

/// What is to be for `relation`, and why not an index where one was asked for.
pub(crate) fn goal(source: &Source, relation: &Relation) -> (Goal, Option<String>) {
    if source.replica_identity == ReplicaIdentity::Full || !relation.table.is_captured() {
        return (Goal::Full, None);
    }
    if relation.partitioned {
        return (Goal::Full, Some("a partitioned table takes no index that is built concurrently".into()));
    }
    let wanted = wanted(source, relation.table);
    let nullable = wanted.into_iter().find(|column| !relation.not_null.iter().any(|have| have == column));
    match nullable {
        Some(column) => (Goal::Full, Some(format!("{column} may be null, which an index identity does not take"))),
        None => (Goal::Index, None),
    }
}

/// Whether nothing has to be done: somebody else's identity that covers what is wanted is good enough.
pub(crate) fn is_met(source: &Source, relation: &Relation) -> bool {
    let covers = relation.identifies(&wanted(source, relation.table));
    covers
        && match goal(source, relation).0 {
            Goal::Full => !relation.uses_own_index(),
            Goal::Index => relation.identity != "f",
        }
}

/// Whether the captured tables are there and tell their transitions: without the old status in the log, one could not be told
/// from a row that stayed as it was. And whether all that events and their routing need is published: a label that changes hands
/// unseen would go on sending to its former owner. Gives the tables' numbers.
pub(crate) async fn verify(client: &Client, source: &Source) -> Result<HashMap<u32, Table>, CaptureError> {
    let publication = catalog::publication(client, &source.publication).await?;
    let publication = publication.ok_or_else(|| CaptureError::NoPublication(source.publication.clone()))?;
    let mut numbers = HashMap::new();
    for table in Table::ALL.iter().copied().filter(|table| source.follows(*table)) {
        let relations = catalog::relations(client, source, table).await?;
        let Some(root) = relations.first() else {
            if !table.is_captured() {
                continue;
            }
            let (schema, name) = source.tables.qualified_name(table);
            return Err(CaptureError::TableGone { table: format!("{schema}.{name}"), key: table.name() });
        };
        // Partitions too: without publish_via_partition_root, their rows come under their own numbers.
        numbers.extend(relations.iter().map(|relation| (relation.oid, table)));
        if !is_required(table) {
            continue;
        }
        if !publication.covers(root) {
            let publication = source.publication.clone();
            return Err(CaptureError::NotPublished { table: root.qualified(), publication });
        }
        if !table.is_captured() && table != Table::UserAddon {
            continue;
        }
        let wanted = wanted(source, table);
        if let Some(lacking) = relations.iter().find(|relation| !relation.identifies(&wanted)) {
            return Err(CaptureError::IdentityLacking { table: lacking.qualified(), columns: wanted.join(", ") });
        }
    }
    Ok(numbers)
}

pub(crate) fn statement(table: &str, identity: &str) -> String {
    SET.replace("{table}", table).replace("{identity}", identity)
}

/// All names quoted.
pub(crate) fn index_statement(index: &str, table: &str, columns: &[String]) -> String {
    INDEX_CREATE.replace("{index}", index).replace("{table}", table).replace("{columns}", &columns.join(", "))
}

/// No change of the primary waits long: who waits for a lock makes others wait.
pub(crate) async fn bound(client: &Client) -> Result<(), CaptureError> {
    Ok(client.batch_execute(BOUNDS).await?)
}

pub(crate) async fn set(client: &Client, source: &Source, relation: &Relation, goal: Goal) -> Result<(), CaptureError> {
    let identity = match goal {
        Goal::Full => "full".to_owned(),
        Goal::Index => {
            build_index(client, source, relation).await?;
            format!("using index {}", quote_identifier(&catalog::index_name(relation.table)))
        }
    };
    alter(client, &relation.quoted(), &identity).await?;
    match goal {
        Goal::Full if relation.own_index_valid.is_some() => drop_index(client, relation).await,
        _ => Ok(()),
    }
}

async fn alter(client: &Client, table: &str, identity: &str) -> Result<(), CaptureError> {
    match client.batch_execute(&statement(table, identity)).await {
        Ok(()) => Ok(()),
        Err(error) => Err(busy(client, error, &[table.to_owned()]).await),
    }
}

/// Builds our index without keeping anybody from writing. What an attempt that was broken off has left is cleared first.
async fn build_index(client: &Client, source: &Source, relation: &Relation) -> Result<(), CaptureError> {
    match relation.own_index_valid {
        Some(true) => return Ok(()),
        Some(false) => drop_index(client, relation).await?,
        None => {}
    }
    let columns = wanted(source, relation.table);
    let quoted: Vec<String> = columns.iter().map(|column| quote_identifier(column)).collect();
    let create = index_statement(&quote_identifier(&catalog::index_name(relation.table)), &relation.quoted(), &quoted);
    // It waits for transactions that are older, and nobody waits for it.
    client.batch_execute(UNBOUND).await?;
    let built = client.batch_execute(&create).await;
    bound(client).await?;
    let Err(error) = built else { return Ok(()) };
    let error = match error.code() {
        Some(&SqlState::UNIQUE_VIOLATION) => {
            CaptureError::NotUnique { table: relation.qualified(), columns: columns.join(", ") }
        }
        _ => busy(client, error, &[relation.quoted()]).await,
    };
    drop_index(client, relation).await?;
    Err(error)
}

async fn drop_index(client: &Client, relation: &Relation) -> Result<(), CaptureError> {
    match client.batch_execute(&INDEX_DROP.replace("{index}", &relation.quoted_index())).await {
        Ok(()) => Ok(()),
        Err(error) => Err(busy(client, error, &[relation.quoted()]).await),
    }
}

/// An error about tables of ours, with who is in the way.
pub(crate) async fn busy(client: &Client, error: tokio_postgres::Error, tables: &[String]) -> CaptureError {
    if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return error.into();
    }
    let holder = catalog::lock_holder(client, tables).await;
    let table = if tables.len() == 1 { format!("table {}", tables[0]) } else { "one of the tables".to_owned() };
    CaptureError::TableBusy { table, holder }
}

/// Puts back what setup found, unless somebody has changed it since. Says what was done.
pub(crate) async fn restore(client: &Client, found: &FoundIdentity) -> Result<Option<String>, CaptureError> {
    let Some(row) =
        client.query_typed_opt(CURRENT, &[(&found.table_oid, Type::OID), (&found.index, Type::TEXT)]).await?
    else {
        return Ok(None);
    };
    let (schema, name): (String, String) = (row.get("schema"), row.get("name"));
    let (now, has_index): (String, bool) = (row.get("identity"), row.get("has_index"));
    let is_ours = now == "f" || row.get("own_index");
    if !is_ours || found.identity == now {
        return Ok(None);
    }
    let identity = match (found.identity.as_str(), &found.index) {
        ("n", _) => "nothing".to_owned(),
        ("f", _) => "full".to_owned(),
        ("i", Some(index)) if has_index => format!("using index {}", quote_identifier(index)),
        _ => "default".to_owned(),
    };
    alter(client, &quote_qualified(&schema, &name), &identity).await?;
    Ok(Some(format!("replica identity of {schema}.{name}: {identity} again")))
}

/// Drops the indexes that setup made. Where one is still the identity, because nobody remembers what was before, the primary
/// key takes its place.
pub(crate) async fn drop_indexes(client: &Client, source: &Source) -> Result<Vec<String>, CaptureError> {
    let mut done = Vec::new();
    for table in Table::ALL.iter().copied().filter(|table| table.is_captured()) {
        for relation in catalog::relations(client, source, table).await? {
            if relation.uses_own_index() {
                alter(client, &relation.quoted(), "default").await?;
                done.push(format!("replica identity of {}: default", relation.qualified()));
            }
            if relation.own_index_valid.is_some() {
                drop_index(client, &relation).await?;
                done.push(format!("index {}: dropped", catalog::index_name(table)));
            }
        }
    }
    Ok(done)
}
