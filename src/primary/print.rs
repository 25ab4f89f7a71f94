//! Prints what a DBA has to change on the primary, as SQL: the statements of the findings, which
//! name the role whose rights they need.

use std::collections::HashSet;

use postgres_types::{ToSql, Type};
use tokio_postgres::Client;

use super::error::Result;
use super::finding::{Fix, FixKind};
use super::inspect::{Conditions, inspect};
use super::triggers::script::Script;
use super::uninstall::remains_of_wal_capture;
use crate::config::{CaptureMode, Source};
use crate::domain::table::Table;
use crate::postgres;
use crate::sql::primary as sql;

/// What `walhook setup --print` prints.
pub struct Printed {
    pub text: String,
    /// Whether no condition is left that SQL cannot fix.
    pub is_complete: bool,
}

/// Returns the difference between the primary and what setup needs there. `refused` are the tables
/// whose own SQL, for lookups or computed columns, the primary has not accepted, with its errors.
pub async fn setup_statements(
    source: &Source,
    url: &str,
    store_url: Option<&str>,
    refused: &[(Table, String)],
) -> Result<Printed> {
    let client = postgres::connect(url).await?;
    let found = inspect(&client, source, Conditions::All).await?;
    let mut text = String::new();

    let blocking = found
        .findings
        .iter()
        .filter(|finding| finding.blocks_setup && finding.fixes.is_empty());
    for finding in blocking {
        let message = finding.message().replace('\n', " ");
        text.push_str(&format!("-- No SQL printed here fixes this: {message}\n"));
    }

    let is_complete = text.is_empty();
    let statements = found
        .findings
        .iter()
        .flat_map(|finding| finding.fixes.clone());
    let mut statements: Vec<Fix> = statements.collect();

    statements.extend(grants_of_own_sql(&client, source, refused).await?);
    let role = found.server.map(|server| server.role).unwrap_or_default();
    let switches = found.slot.is_some();

    statements.extend(
        found
            .triggers
            .as_ref()
            .and_then(|triggers| Script::for_dba(triggers, switches, &role)),
    );

    if let (CaptureMode::Trigger, Some(store_url)) = (source.capture, store_url) {
        statements.extend(remains_of_wal_capture(&client, source, store_url).await?);
    }

    statements.sort_by_key(|fix| fix.kind != FixKind::Grants);
    text.push_str(&script(&statements));
    text.push_str(&format!(
        "-- Then, as {role}, `walhook setup`: it does the rest.\n"
    ));

    Ok(Printed { text, is_complete })
}

/// Returns the statements, each once, below comments that name the roles whose rights they need.
pub(super) fn script(statements: &[Fix]) -> String {
    let mut text = String::new();
    let mut role = None;
    let mut printed = HashSet::new();
    let mut is_limited = false;

    for Fix { by, sql, kind } in statements {
        if !printed.insert(sql) {
            continue;
        }

        if role != Some(by) {
            text.push_str(&format!("-- With the rights of {by}:\n"));
            role = Some(by);
        }

        let locks = *kind == FixKind::Locks;
        if locks != is_limited {
            is_limited = locks;
            text.push_str(match locks {
                true => {
                    "set lock_timeout = '1s'; -- if a table is busy, print and run the rest again\n"
                }
                false => "reset lock_timeout;\n",
            });
        }

        text.push_str(sql.trim_end());
        text.push('\n');
    }

    if statements.is_empty() {
        text.push_str("-- Nothing is missing that only another role can change.\n");
    }

    text
}

/// Returns grants on what the platform's own SQL for the refused tables reads.
///
/// The server cannot list them for a role that may not read them: it refuses to plan the query, and
/// even to parse it without usage of a schema. So they are found by their names.
async fn grants_of_own_sql(
    client: &Client,
    source: &Source,
    refused: &[(Table, String)],
) -> Result<Vec<Fix>> {
    let own_sql = refused.iter().flat_map(|(table, error)| {
        let computed = |column: &&'static str| source.tables.computed(*table, column);
        let columns = table.columns().iter().filter_map(computed);
        let lookup = source.lookups.get(table.name()).map(String::as_str);
        columns.chain(lookup).map(|text| (text, error.as_str()))
    });

    let (texts, errors): (Vec<&str>, Vec<&str>) = own_sql.unzip();
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&texts, Type::TEXT_ARRAY), (&errors, Type::TEXT_ARRAY)];
    let rows = client
        .query_typed(sql::lookup::UNREADABLE, &parameters)
        .await?;

    Ok(rows
        .iter()
        .map(|row| {
            Fix::new(
                row.get::<_, &str>("by"),
                FixKind::Grants,
                row.get::<_, &str>("sql"),
            )
        })
        .collect())
}
