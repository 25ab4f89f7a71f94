//! Compares the triggers on the primary with those that capture needs.

use std::collections::HashMap;
use std::fmt;

use postgres_types::Type;
use tokio_postgres::Client;

use super::function::{Function, TriggerEvent};
use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::quote_qualified;
use crate::postgres::row::row;
use crate::primary::catalog::{MappedTable, Relation, is_required};
use crate::primary::error::Result;
use crate::sql::primary as sql;

row! {
    /// The state of the schema `walhook_capture`.
    #[derive(Clone, Debug)]
    pub(crate) struct TriggerState {
        /// The oid of the schema, if it exists.
        pub schema: Option<u32>,
        /// Whether the role owns the schema.
        pub owned: bool,
        pub owner: Option<String>,
        pub missing: Vec<String>,
        /// Whether the role may read the outbox and clear it.
        pub usable: bool,
        /// Whether emptying the outbox by hand would be recorded as a failure.
        pub guarded: bool,
    }
}

impl TriggerState {
    pub const fn is_installed(&self) -> bool {
        self.schema.is_some()
    }

    pub fn is_complete(&self) -> bool {
        self.is_installed() && self.missing.is_empty()
    }
}

pub(crate) async fn trigger_state(client: &Client) -> Result<TriggerState> {
    Ok(TriggerState::from(
        &client.query_typed_one(sql::outbox::STATE, &[]).await?,
    ))
}

row! {
    /// A table with triggers.
    pub(crate) struct TableWithTriggers {
        schema: String,
        name: String,
        pub owned: bool,
    }
}

impl TableWithTriggers {
    pub fn quoted(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }
}

/// Returns the tables with triggers that call this function, or any.
pub(crate) async fn tables_with_triggers(
    client: &Client,
    function: Option<&str>,
) -> Result<Vec<TableWithTriggers>> {
    let rows = client
        .query_typed(sql::triggers::TABLES, &[(&function, Type::TEXT)])
        .await?;
    Ok(rows.iter().map(TableWithTriggers::from).collect())
}

/// Returns the triggers that were disabled or enabled since setup noted them, or dropped from a
/// table that still exists: what was written meanwhile may not be captured.
pub(crate) async fn altered_triggers(client: &Client) -> Result<Vec<String>> {
    let rows = client.query_typed(sql::triggers::ALTERED, &[]).await?;
    Ok(rows.iter().map(|row| row.get("trigger")).collect())
}

/// Returns how often triggers have failed since the failures were last acknowledged, and the last
/// recorded reason.
pub(crate) async fn failures(client: &Client) -> Result<Option<(i64, Option<String>)>> {
    let row = client.query_typed_opt(sql::outbox::FAILURES, &[]).await?;
    Ok(row.map(|row| (row.get("count"), row.get("last"))))
}

/// One trigger of a table or partition.
#[derive(Clone, Debug)]
pub(crate) struct TableTrigger {
    pub table: Table,
    pub relation: Relation,
    pub event: TriggerEvent,
}

impl fmt::Display for TableTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {}",
            self.event.trigger_name(),
            self.relation.qualified()
        )
    }
}

/// How the triggers on the primary differ from those that capture needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    /// Functions to create or replace.
    pub outdated: Vec<Function>,
    pub missing: Vec<TableTrigger>,
    pub disabled: Vec<TableTrigger>,
    /// Triggers that do not fire if `session_replication_role` is `replica`.
    pub ordinary: Vec<TableTrigger>,
}

row! {
    struct FoundTrigger {
        oid: u32,
        name: String,
        function: String,
        enabled: bool,
        always: bool,
        comment: Option<String>,
    }
}

type FoundTriggers = HashMap<(u32, String), FoundTrigger>;

pub(crate) async fn compare(
    client: &Client,
    source: &Source,
    tables: &[MappedTable],
) -> Result<Comparison> {
    let oids: Vec<u32> = tables
        .iter()
        .flat_map(|table| &table.relations)
        .map(|relation| relation.oid)
        .collect();
    let rows = client
        .query_typed(sql::triggers::TRIGGERS, &[(&oids, Type::OID_ARRAY)])
        .await?;
    let found = rows
        .iter()
        .map(FoundTrigger::from)
        .map(|found| ((found.oid, found.name.clone()), found))
        .collect();

    Ok(Comparison::with(source, tables, &found))
}

impl Comparison {
    /// Returns the triggers to create. Those of partitions are created with their table's.
    pub fn to_create(&self) -> impl Iterator<Item = &TableTrigger> {
        self.missing
            .iter()
            .filter(|trigger| !trigger.relation.is_partition)
    }

    /// Returns the tables that lack triggers and have rows, which the triggers may not have
    /// captured.
    pub async fn unguarded(&self, client: &Client) -> Result<Vec<u32>> {
        if self.missing.is_empty() {
            return Ok(Vec::new());
        }

        let oids: Vec<u32> = self
            .missing
            .iter()
            .map(|trigger| trigger.relation.oid)
            .collect();
        let rows = client
            .query_typed(sql::triggers::WITH_ROWS, &[(&oids, Type::OID_ARRAY)])
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn with(source: &Source, tables: &[MappedTable], found: &FoundTriggers) -> Comparison {
        let mut comparison = Comparison::default();

        for mapped in tables.iter().filter(|mapped| is_required(mapped.table)) {
            let function = mapped
                .root()
                .and_then(|root| Function::new(source, mapped.table, root));
            if let Some(function) = function {
                comparison.add(mapped, function, found);
            }
        }

        comparison
    }

    fn add(&mut self, mapped: &MappedTable, function: Function, found: &FoundTriggers) {
        let mut is_current = false;

        for relation in &mapped.relations {
            // As in the WAL, truncating a single partition is not a change of the table.
            let events = TriggerEvent::ALL
                .into_iter()
                .filter(|event| event.is_for_each_row() || !relation.is_partition);
            for event in events {
                let trigger = TableTrigger {
                    table: mapped.table,
                    relation: relation.clone(),
                    event,
                };

                let found = found.get(&(relation.oid, event.trigger_name()));
                let Some(found) = found.filter(|found| found.function == function.name) else {
                    self.missing.push(trigger);
                    continue;
                };

                is_current = function.is(found.comment.as_deref());

                if !found.enabled {
                    self.disabled.push(trigger);
                } else if !found.always {
                    self.ordinary.push(trigger);
                }
            }
        }

        if !is_current {
            self.outdated.push(function);
        }
    }
}
