//! Replica identities: which are sufficient, and how they are set and restored.

use std::collections::HashSet;

use postgres_types::Type;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{self, Relation, contains};
use super::error::{PrimaryError, Result};
use super::finding::{Fix, FixKind, PRINT};
use super::table_locks::{Attempts, busy, change_table};
use crate::config::{ReplicaIdentity, Source};
use crate::domain::table::Table;
use crate::postgres::row::row;
use crate::postgres::{
    fill, quote_identifier, quote_qualified, reset_transaction_timeout, without_transaction_timeout,
};
use crate::sql::primary as sql;
use crate::store::migrate::FoundIdentity;

/// For building an index concurrently: this waits for older transactions and blocks no writes.
const INDEX_BOUNDS: &str = "set lock_timeout = '60s'; set statement_timeout = 0";
const NO_INDEX_BOUNDS: &str = "reset lock_timeout; reset statement_timeout";

/// Returns the columns, by the platform's names, that the old rows of `table` must have in the WAL.
pub(crate) fn wanted(source: &Source, table: Table) -> Vec<&str> {
    let name = |column| source.tables.column(table, column);

    let mut wanted: Vec<&str> = match table {
        // A deletion must name the user and the add-on.
        Table::UserAddon => vec![name("user_id"), name("addon")],
        // For a table that is only looked up, the key identifies the cached row to discard.
        _ => std::iter::once("id")
            .chain(table.watched().iter().copied())
            .map(name)
            .collect(),
    };

    // Whether the old row met the condition must be known.
    let only = source.tables.only(table).keys().map(String::as_str);
    for column in only {
        if !wanted.contains(&column) {
            wanted.push(column);
        }
    }

    wanted
}

/// The replica identity to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Old rows are written whole.
    Full,
    /// Of old rows, only the id and the watched columns are written, and only when one of them
    /// changes.
    Index,
}

/// Returns the replica identity to set. If an index is wanted but impossible, also the reason.
pub(crate) fn goal(source: &Source, table: Table, relation: &Relation) -> (Goal, Option<String>) {
    let is_configured = source.replica_identity == ReplicaIdentity::Index && table.is_captured();
    if !is_configured && relation.full_obstacle().is_none() {
        return (Goal::Full, None);
    }

    match index_obstacle(source, table, relation) {
        Some(reason) => (Goal::Full, Some(reason)),
        None => (Goal::Index, None),
    }
}

/// Returns why no index can be the replica identity.
fn index_obstacle(source: &Source, table: Table, relation: &Relation) -> Option<String> {
    if relation.partitioned {
        return Some("an index cannot be built concurrently on a partitioned table".into());
    }

    let wanted = wanted(source, table);
    if let Some(nullable) = wanted
        .iter()
        .find(|column| !contains(&relation.not_null, column))
    {
        return Some(format!(
            "{nullable} may be null, and the columns of an identity index may not"
        ));
    }

    relation
        .index_obstacle(&wanted)
        .map(|obstacle| format!("the table {obstacle}"))
}

/// Returns why setup cannot give a table a replica identity with which the platform's updates
/// succeed.
pub(crate) fn refusal(source: &Source, table: Table, relation: &Relation) -> Option<String> {
    let obstacle = relation.full_obstacle()?;

    if is_met(source, table, relation) && relation.rejection().is_none() {
        return None;
    }

    let reason = index_obstacle(source, table, relation)?;
    Some(format!(
        "{obstacle}, with which replica identity full makes every UPDATE and DELETE fail; an index is impossible, since {reason}"
    ))
}

/// Returns whether the replica identity can stay. One that the platform has set is sufficient if it
/// covers the wanted columns.
pub(crate) fn is_met(source: &Source, table: Table, relation: &Relation) -> bool {
    relation.identifies(&wanted(source, table))
        && match goal(source, table, relation).0 {
            Goal::Full => !relation.uses_own_index(),
            Goal::Index => relation.identity != "f",
        }
}

/// Returns the statement that sets a replica identity. `table` is quoted.
pub(crate) fn statement(table: &str, identity: &str) -> String {
    sql::identity::SET
        .replace("{table}", table)
        .replace("{identity}", identity)
}

/// A statement for a table's replica identity. Each must run by itself.
pub(crate) enum Step {
    Set(String),
    DropIndex(String),
    CreateIndex(String),
}

impl Step {
    fn sql(self) -> String {
        match self {
            Step::Set(sql) | Step::DropIndex(sql) | Step::CreateIndex(sql) => sql,
        }
    }
}

/// Returns the statement that creates the index.
fn index_statement(relation: &Relation, columns: &[&str]) -> String {
    let columns: Vec<String> = columns
        .iter()
        .map(|column| quote_identifier(column))
        .collect();

    let names = [
        ("index", &*quote_identifier(&relation.own_index)),
        ("table", &relation.quoted()),
        ("columns", &columns.join(", ")),
    ];
    fill(sql::identity::CREATE_INDEX, &names)
}

/// Returns the statements that give a table the replica identity.
pub(crate) fn steps(source: &Source, table: Table, relation: &Relation, goal: Goal) -> Vec<Step> {
    let drop = || Step::DropIndex(drop_statement(relation));
    let identity = |name: &str| Step::Set(statement(&relation.quoted(), name));
    let index = relation.own_index_valid;

    let wanted = wanted(source, table);
    let is_outdated = has_outdated_index(relation, &wanted);
    let lacks_index = is_outdated || index != Some(true);

    let steps = match goal {
        Goal::Full => [Some(identity("full")), index.map(|_| drop()), None, None],
        Goal::Index => [
            is_outdated.then(|| identity("full")),
            (is_outdated || index == Some(false)).then(drop),
            lacks_index.then(|| Step::CreateIndex(index_statement(relation, &wanted))),
            Some(identity(&using_index(&relation.own_index))),
        ],
    };

    steps.into_iter().flatten().collect()
}

/// Returns whether the replica identity is an index of an earlier mapping.
fn has_outdated_index(relation: &Relation, wanted: &[&str]) -> bool {
    relation.uses_own_index() && !relation.identifies(wanted)
}

fn using_index(index: &str) -> String {
    format!("using index {}", quote_identifier(index))
}

/// Returns the replica identity `identity`, as in `pg_class`, in the form of [`statement`]. The
/// default if its index does not exist.
pub(crate) fn named(identity: &str, index: Option<&str>) -> String {
    match (identity, index) {
        ("n", _) => "nothing".to_owned(),
        ("f", _) => "full".to_owned(),
        ("i", Some(index)) => using_index(index),
        _ => "default".to_owned(),
    }
}

pub(crate) async fn set(
    client: &Client,
    source: &Source,
    table: Table,
    relation: &Relation,
    goal: Goal,
) -> Result<()> {
    let to_full = || {
        let steps = steps(source, table, relation, Goal::Full).into_iter();
        steps.map(Step::sql).collect::<String>()
    };

    let statements = match goal {
        Goal::Full => to_full(),
        Goal::Index => {
            let wanted = wanted(source, table);
            let mut is_valid = relation.own_index_valid;

            // Without it, updates would fail meanwhile.
            if has_outdated_index(relation, &wanted) {
                change_table(client, &relation.quoted(), Attempts::Many, &to_full()).await?;
                is_valid = None;
            }

            build_index(client, relation, &wanted, is_valid).await?;
            statement(&relation.quoted(), &using_index(&relation.own_index))
        }
    };

    change_table(client, &relation.quoted(), Attempts::Many, &statements).await
}

/// Builds the identity index without blocking writes. `is_valid` is whether there is one. Drops an
/// invalid one that an interrupted build has left.
async fn build_index(
    client: &Client,
    relation: &Relation,
    columns: &[&str],
    is_valid: Option<bool>,
) -> Result<()> {
    match is_valid {
        Some(true) => return Ok(()),
        Some(false) => drop_index(client, relation, Attempts::Many).await?,
        None => {}
    }

    let create = index_statement(relation, columns);
    let bounds = format!("{INDEX_BOUNDS}; {}", without_transaction_timeout(false));
    client.batch_execute(&bounds).await?;
    let built = client.batch_execute(&create).await;

    let no_bounds = format!("{NO_INDEX_BOUNDS}; {}", reset_transaction_timeout());
    client.batch_execute(&no_bounds).await?;
    let Err(error) = built else { return Ok(()) };
    let error = match error.code() {
        Some(&SqlState::UNIQUE_VIOLATION) => PrimaryError::NotUnique {
            table: relation.qualified(),
            columns: columns.join(", "),
        },
        Some(&SqlState::LOCK_NOT_AVAILABLE) => busy(client, &[relation.quoted()]).await,
        _ => error.into(),
    };

    drop_index(client, relation, Attempts::Many).await?;
    Err(error)
}

/// Drops the index under the lock that changing the identity needs anyway: `concurrently` would
/// wait for every transaction that has used the table, and leave an invalid index when that wait is
/// cancelled.
async fn drop_index(client: &Client, relation: &Relation, attempts: Attempts) -> Result<()> {
    change_table(
        client,
        &relation.quoted(),
        attempts,
        &drop_statement(relation),
    )
    .await
}

fn drop_statement(relation: &Relation) -> String {
    sql::identity::DROP_INDEX.replace(
        "{index}",
        &quote_qualified(&relation.schema, &relation.own_index),
    )
}

row! {
    struct Current {
        schema: String,
        name: String,
        identity: String,
        own_index: bool,
        has_index: bool,
        owned: bool,
        owner: String,
    }
}

/// What setup has left of a replica identity, and the statement that removes it.
pub(crate) struct Remainder {
    pub subject: String,
    pub state: String,
    pub statement: String,
    /// A line about the removal, for teardown's output.
    pub done: String,
    /// Whether the role may run the statement.
    pub owned: bool,
    /// The table's owner.
    pub owner: String,
    /// The quoted name of the table.
    table: String,
}

impl Remainder {
    pub async fn remove(&self, client: &Client, attempts: Attempts) -> Result<()> {
        change_table(client, &self.table, attempts, &self.statement).await
    }
}

/// Returns what is left of the replica identities that setup has set, `found` being those before;
/// none if there is no store, which has them. Identities of tables that are not among them may be
/// those of another installation. In the order of removal: an index can be dropped when it is no
/// longer the identity.
pub(crate) async fn remainders(
    client: &Client,
    source: &Source,
    found: Option<&[FoundIdentity]>,
) -> Result<Vec<Remainder>> {
    let mut remainders = Vec::new();
    let mut restored = HashSet::new();

    for found in found.into_iter().flatten() {
        if let Some(remainder) = changed_identity(client, found).await? {
            restored.insert(found.table_oid);
            remainders.push(remainder);
        }
    }

    let captured = Table::ALL
        .iter()
        .copied()
        .filter(|table| table.is_captured());
    for mapped in catalog::tables(client, source, captured).await? {
        let is_ours = |relation: &&Relation| {
            found.is_none_or(|found| found.iter().any(|found| found.table_oid == relation.oid))
        };

        for relation in mapped.relations.iter().filter(is_ours) {
            // The store has no record of the earlier identity.
            let is_unknown = relation.uses_own_index() && !restored.contains(&relation.oid);
            remainders.extend(is_unknown.then(|| identity_by_index(relation)));
            remainders.extend(relation.own_index_valid.map(|_| own_index(relation)));
        }
    }

    Ok(remainders)
}

/// Returns how the owners undo the replica identities and indexes of captured tables that are as
/// setup would set them, but that it has not recorded: maybe a DBA has run the printed statements.
pub(crate) async fn unrecorded(
    client: &Client,
    source: &Source,
    found: Option<&[FoundIdentity]>,
) -> Result<Vec<Fix>> {
    let captured = catalog::followed(source).filter(|table| table.is_captured());
    let tables = catalog::tables(client, source, captured).await?;
    let is_recorded = |relation: &Relation| {
        let mut found = found.into_iter().flatten();
        found.any(|found| found.table_oid == relation.oid)
    };

    let relations = tables.iter().flat_map(|mapped| &mapped.relations);
    let undo = |relation: &Relation| {
        let is_set = relation.identity == "f" || relation.uses_own_index();
        let restore = is_set.then(|| statement(&relation.quoted(), "default"));
        let drop = relation.own_index_valid.map(|_| drop_statement(relation));
        [restore, drop].map(|sql| sql.map(|sql| relation.by_owner(FixKind::Locks, sql)))
    };

    Ok(relations
        .filter(|relation| !is_recorded(relation))
        .flat_map(undo)
        .flatten()
        .collect())
}

/// Compares a replica identity with the one that setup found. None if it was restored, or changed
/// by somebody else.
async fn changed_identity(client: &Client, found: &FoundIdentity) -> Result<Option<Remainder>> {
    let row = client
        .query_typed_opt(
            sql::identity::CURRENT,
            &[(&found.table_oid, Type::OID), (&found.index, Type::TEXT)],
        )
        .await?;

    let Some(current) = row.as_ref().map(Current::from) else {
        return Ok(None);
    };

    let set_by_setup = current.identity == "f" || current.own_index;
    if !set_by_setup || found.identity == current.identity {
        return Ok(None);
    }

    let index = found.index.as_deref().filter(|_| current.has_index);
    let earlier = named(&found.identity, index);

    let Current {
        schema,
        name,
        owned,
        owner,
        ..
    } = current;

    let table = quote_qualified(&schema, &name);
    let subject = format!("replica identity of {schema}.{name}");

    Ok(Some(Remainder {
        state: format!("still the one that capture from the WAL needed; it was {earlier} before"),
        statement: statement(&table, &earlier),
        done: format!("{subject}: {earlier} again"),
        subject,
        owned,
        owner,
        table,
    }))
}

fn identity_by_index(relation: &Relation) -> Remainder {
    let table = relation.quoted();
    let subject = format!("replica identity of {}", relation.qualified());

    Remainder {
        state: format!("still the index {}", relation.own_index),
        statement: statement(&table, "default"),
        done: format!("{subject}: default"),
        subject,
        owned: relation.owned,
        owner: relation.owner.clone(),
        table,
    }
}

fn own_index(relation: &Relation) -> Remainder {
    let subject = format!("index {}", relation.own_index);
    Remainder {
        state: format!("still on {}", relation.qualified()),
        statement: drop_statement(relation),
        done: format!("{subject}: dropped"),
        subject,
        owned: relation.owned,
        owner: relation.owner.clone(),
        table: relation.quoted(),
    }
}

/// Returns how to remove what capture from the WAL has left.
pub(crate) const fn remedy_of_remaining(owned: bool) -> &'static str {
    match owned {
        true => "start `walhook run`: it completes the switch to triggers",
        false => PRINT,
    }
}
