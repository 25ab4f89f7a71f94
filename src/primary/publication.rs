//! What has to be changed for the publication to stream every change of the mapped tables.

use std::collections::BTreeSet;

use super::catalog::{MappedTable, Publication, Relation, contains, is_required};
use super::finding::{Fix, FixKind};
use super::inspect::Inspection;
use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::{fill, quote_identifier};
use crate::sql::primary as sql;

/// Since PostgreSQL 18, UPDATE and DELETE of a published table with replica identity full fail if
/// the publication lacks a generated column.
const GENERATED_VERSION: i32 = 180_000;
const STORED_GENERATED: &str = ", publish_generated_columns = stored";

/// A statement that creates or completes the publication.
pub(crate) struct Change {
    pub sql: String,
    /// The quoted names of the tables that it adds.
    pub tables: Vec<String>,
    /// A line about the change, for setup's output.
    pub done: String,
}

/// Returns the tables that the publication does not cover.
pub(crate) fn unpublished<'a>(
    tables: &'a [MappedTable],
    publication: Option<&Publication>,
) -> Vec<(Table, &'a Relation)> {
    // Partitions are published with their root. A table that inherits is published by itself.
    let existing = tables.iter().flat_map(|mapped| {
        let published = mapped
            .relations
            .iter()
            .filter(|relation| !relation.is_partition);
        published.map(|relation| (mapped.table, relation))
    });

    existing
        .filter(|(_, root)| !publication.is_some_and(|publication| publication.covers(root)))
        .collect()
}

/// Returns the tables of which the publication streams only some rows.
pub(crate) fn filtered<'a>(
    tables: &'a [MappedTable],
    publication: &Publication,
) -> Vec<&'a Relation> {
    let roots = tables
        .iter()
        .filter(|mapped| is_required(mapped.table))
        .filter_map(MappedTable::root);
    roots
        .filter(|root| contains(&publication.filtered, &root.qualified()))
        .collect()
}

/// Returns the statements that the publication needs.
pub(crate) fn changes(source: &Source, found: &Inspection) -> Vec<Change> {
    let name = &source.publication;
    let missing = unpublished(&found.tables, found.publication.as_ref());
    let tables: Vec<String> = missing.iter().map(|(_, root)| root.quoted()).collect();

    let is_since_18 = found
        .server
        .as_ref()
        .is_some_and(|server| server.version >= GENERATED_VERSION);
    let generated = if is_since_18 { STORED_GENERATED } else { "" };

    let change = |template: &str, tables: &[String], done: String| Change {
        // On one line, for a DBA to paste.
        sql: fill(
            &template.replace("\n    ", " "),
            &[
                ("publication", &*quote_identifier(name)),
                ("generated", generated),
                ("tables", &tables.join(", ")),
            ],
        ),
        tables: tables.to_vec(),
        done: format!("publication {name}: {done}"),
    };

    let Some(publication) = &found.publication else {
        // The findings say that no mapped table exists.
        if tables.is_empty() {
            return Vec::new();
        }

        let done = format!("created for {} tables", tables.len());
        return vec![change(sql::publication::CREATE, &tables, done)];
    };

    let options = (!publication.has_options())
        .then(|| change(sql::publication::SET_OPTIONS, &[], "options set".into()));
    let added = (!tables.is_empty()).then(|| {
        let done = format!("added {}", tables.join(", "));
        change(sql::publication::ADD, &tables, done)
    });

    options.into_iter().chain(added).collect()
}

/// Returns whether the role may make the changes.
pub(crate) fn may_change(found: &Inspection) -> bool {
    let missing = unpublished(&found.tables, found.publication.as_ref());
    let owns_all = missing.iter().all(|(_, root)| root.owned);

    match (&found.publication, &found.server) {
        (Some(publication), _) => {
            (missing.is_empty() && publication.has_options()) || (publication.owned && owns_all)
        }
        (None, Some(server)) => owns_all && server.may_create,
        (None, None) => owns_all,
    }
}

/// Returns the changes for a DBA. Only a role that owns the publication and every added table may
/// run them.
pub(crate) fn statements(source: &Source, found: &Inspection) -> Vec<Fix> {
    let publication = found.publication.as_ref();
    let name = quote_identifier(&source.publication);
    let missing = unpublished(&found.tables, publication);
    let filtered = publication.map_or(Vec::new(), |publication| {
        filtered(&found.tables, publication)
    });

    let tables = missing.iter().map(|(_, root)| *root);
    let tables = tables.chain(filtered.iter().copied());
    let owners: BTreeSet<&str> = tables
        .map(|relation| &*relation.owner)
        .chain(publication.map(|publication| &*publication.owner))
        .collect();

    let owners: Vec<&str> = owners.into_iter().collect();
    let by = match publication {
        Some(_) => owners.join(" and "),
        None => format!("{} and create on the database", owners.join(" and ")),
    };

    // Without its row filter, a table is added again.
    let unfiltered = filtered.iter().flat_map(|relation| {
        let table = relation.quoted();
        ["drop", "add"].map(|verb| format!("alter publication {name} {verb} table {table};"))
    });
    let changes = changes(source, found).into_iter();

    unfiltered
        .chain(changes.map(|change| change.sql))
        .map(|sql| Fix::new(&by, FixKind::Other, sql))
        .collect()
}
