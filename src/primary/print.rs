//! The changes of the primary as SQL, for whoever may make them.

use std::collections::BTreeSet;

use super::install::PUBLICATION_CREATE;
use super::{catalog, identity};
use crate::config::{ReplicaIdentity, Source};
use crate::domain::table::Table;
use crate::postgres::{self, quote_identifier, quote_qualified};

/// All that setup would do on a primary where nothing has been done, without asking it.
pub fn statements(source: &Source, url: Option<&str>) -> String {
    let role = url
        .and_then(|url| postgres::Target::parse(url).ok())
        .and_then(|target| target.config.get_user().map(quote_identifier));
    let role = role.unwrap_or_else(|| quote_identifier("walhook"));
    let quoted = |table: &Table| {
        let (schema, name) = source.tables.qualified_name(*table);
        quote_qualified(&schema, &name)
    };
    let known: Vec<&Table> = Table::ALL.iter().filter(|table| source.follows(**table)).collect();
    let tables: Vec<String> = known.iter().map(|table| quoted(table)).collect();

    let mut text = String::from("-- The server must run with wal_level = logical.\n\n");
    text.push_str(&format!("alter role {role} replication;\n"));
    text.push_str(&format!("{}grant select on {} to {role};\n\n", usage_of_schemas(source, &role), tables.join(", ")));
    text.push_str(
        "-- Old values of the tables whose changes raise events. In place of full, an index will do that is unique and covers\n\
         -- the columns named, all of them not null.\n",
    );
    for table in known.iter().copied().filter(|table| table.is_captured()) {
        text.push_str(&identity_of(source, *table, &quoted(table)));
    }
    text.push_str("\n-- Only after the identities: a published table without one refuses updates.\n");
    let publication = PUBLICATION_CREATE
        .replace("{publication}", &quote_identifier(&source.publication))
        .replace("{tables}", &tables.join(", "));
    text.push_str(&publication);
    text.push_str(&format!(
        "\n-- Then `walhook setup`, as {role}: it creates the slot {} at the snapshot that its own store begins with.\n",
        source.slot
    ));
    text
}

/// What lets `role`, which is quoted, see the tables at all. What lookups and computed columns read beside them is granted by who
/// wrote them.
pub(crate) fn usage_of_schemas(source: &Source, role: &str) -> String {
    let followed = Table::ALL.iter().filter(|table| source.follows(**table));
    let schemas: BTreeSet<String> =
        followed.map(|table| quote_identifier(&source.tables.qualified_name(*table).0)).collect();
    let schemas: Vec<String> = schemas.into_iter().collect();
    format!("grant usage on schema {} to {role};\n", schemas.join(", "))
}

fn identity_of(source: &Source, table: Table, quoted: &str) -> String {
    let columns = identity::wanted(source, table);
    let full = identity::statement(quoted, "full");
    // In the reference schema this one's time may be null.
    if source.replica_identity == ReplicaIdentity::Full || table == Table::PreflightReport {
        return format!("-- {}\n{full}", columns.join(", "));
    }
    let index = quote_identifier(&catalog::index_name(table));
    let columns: Vec<String> = columns.iter().map(|column| quote_identifier(column)).collect();
    let create = identity::index_statement(&index, quoted, &columns);
    format!("{create}{}", identity::statement(quoted, &format!("using index {index}")))
}
