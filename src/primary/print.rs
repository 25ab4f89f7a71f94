//! Prints what setup would change on the primary as SQL, for a DBA to run.

use std::collections::BTreeSet;

use super::catalog::{self, Relation, Server, followed, index_name};
use super::error::Result;
use super::identity;
use super::inspect::accept_columns;
use super::mapped::table_name;
use super::triggers::catalog::Comparison;
use super::triggers::script::Script;
use crate::config::{ReplicaIdentity, Source};
use crate::domain::table::Table;
use crate::postgres::{self, quote_identifier};
use crate::sql::primary as sql;

/// Returns the SQL that setup would run on a primary without any of Walhook's objects. Does not
/// connect to it.
pub fn statements(source: &Source, url: Option<&str>) -> String {
    let role = url
        .and_then(|url| postgres::Target::parse(url).ok())
        .and_then(|target| target.config.get_user().map(quote_identifier));
    let role = role.unwrap_or_else(|| quote_identifier("walhook"));
    let quoted = |table| table_name(&source.tables, table);

    let tables: Vec<String> = followed(source).map(quoted).collect();

    let mut text = String::from("-- The server must run with wal_level = logical.\n\n");
    text.push_str(&format!("alter role {role} replication;\n"));
    text.push_str(&format!(
        "{}grant select on {} to {role};\n\n",
        usage_of_schemas(source, &role),
        tables.join(", ")
    ));
    text.push_str(
        "-- Old values of the tables whose changes raise events. Instead of full, a unique index over the columns named suffices,\n\
         -- if none of them may be null.\n",
    );

    for table in followed(source).filter(|table| table.is_captured()) {
        text.push_str(&identity_of(source, table, &quoted(table)));
    }

    text.push_str(
        "\n-- After the replica identities: a published table without one rejects updates.\n",
    );
    let publication = sql::publication::CREATE
        .replace("{publication}", &quote_identifier(&source.publication))
        .replace("{tables}", &tables.join(", "))
        .replace("{generated}", "");

    text.push_str(&publication);
    text.push_str(&format!(
        "-- On PostgreSQL 18, or updates of tables with generated columns fail:\n\
         -- alter publication {} set (publish_generated_columns = stored);\n",
        quote_identifier(&source.publication)
    ));
    text.push_str(&format!(
        "\n-- Then `walhook setup`, as {role}: it creates the slot {} and reads the existing rows at the slot's snapshot.\n",
        source.slot
    ));

    text
}

/// Returns the SQL that setup would run on a primary without triggers, for a role that may run it.
pub async fn trigger_statements(source: &Source, url: &str) -> Result<String> {
    let client = postgres::connect(url).await?;
    let mapped = catalog::tables(&client, source, catalog::required(source)).await?;

    accept_columns(source, &mapped)?;
    let Server { role, database, .. } = catalog::server(&client).await?;
    let role = quote_identifier(&role);
    let tables: Vec<String> = mapped
        .iter()
        .flat_map(|table| &table.relations)
        .map(Relation::quoted)
        .collect();
    let mail = match source.follows(Table::AppUser) {
        true => format!(
            "grant select on {} to {role}; -- for e-mail\n",
            table_name(&source.tables, Table::AppUser)
        ),
        false => String::new(),
    };

    let script = Script::new(
        &Comparison::with_nothing(source, &mapped),
        false,
        &[],
        false,
    );
    Ok(format!(
        "-- Walhook's role creates and owns everything below; it needs no more than this.\n\
         grant create on database {} to {role};\n\
         {}grant select, trigger on {} to {role};\n{mail}\n\
         set role {role};\n\n{}\n\
         -- Locks the tables against writing for a moment. If it waits, cancel it and try again.\n\
         begin;\nset local lock_timeout = '500ms';\n{}{}commit;\n\n\
         -- Then `walhook setup`, as {role}: it finds the triggers and prepares its own store.\n",
        quote_identifier(&database),
        usage_of_schemas(source, &role),
        tables.join(", "),
        script.prepare,
        script.lock,
        script.complete
    ))
}

/// Returns the grant on the schemas of the mapped tables. `role` is quoted. The tables that the
/// platform's own SQL for lookups and computed columns reads are not included.
fn usage_of_schemas(source: &Source, role: &str) -> String {
    let schemas: BTreeSet<String> = followed(source)
        .map(|table| quote_identifier(&source.tables.qualified_name(table).0))
        .collect();
    let schemas: Vec<String> = schemas.into_iter().collect();
    format!("grant usage on schema {} to {role};\n", schemas.join(", "))
}

fn identity_of(source: &Source, table: Table, quoted: &str) -> String {
    let columns = identity::wanted(source, table);
    let full = identity::statement(quoted, "full");

    // In the reference schema, its column generated_at may be null.
    if source.replica_identity == ReplicaIdentity::Full || table == Table::PreflightReport {
        return format!("-- {}\n{full}", columns.join(", "));
    }

    let index = quote_identifier(&index_name(table));
    let columns: Vec<String> = columns
        .iter()
        .map(|column| quote_identifier(column))
        .collect();
    let create = identity::index_statement(&index, quoted, &columns);

    format!(
        "{create}{}",
        identity::statement(quoted, &format!("using index {index}"))
    )
}
