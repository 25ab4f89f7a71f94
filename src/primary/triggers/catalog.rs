//! What of capture by triggers is on the primary, and what should be.

use std::collections::HashMap;

use postgres_types::Type;
use tokio_postgres::Client;

use super::function::{Function, TriggerEvent};
use crate::capture::CaptureError;
use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::quote_qualified;
use crate::primary::catalog::is_required;

const STATE: &str = include_str!("../../../sql/primary/outbox_state.sql");
const RELATIONS: &str = include_str!("../../../sql/primary/outbox_relations.sql");
const TRIGGERS: &str = include_str!("../../../sql/primary/outbox_triggers.sql");

/// What stands of the schema.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub installed: bool,
    pub missing: Vec<String>,
    /// We may read the outbox and clear it.
    pub usable: bool,
    /// Emptying the outbox by hand would be noticed.
    pub guarded: bool,
    /// Rows that are deleted and inserted in one transaction are paired.
    pub paired: bool,
}

pub(crate) async fn state(client: &Client) -> Result<State, CaptureError> {
    let row = client.query_typed_one(STATE, &[]).await?;
    Ok(State {
        installed: row.get("installed"),
        missing: row.get("missing"),
        usable: row.get("usable"),
        guarded: row.get("guarded"),
        paired: row.get("paired"),
    })
}

/// A table, or a part of a partitioned one.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    pub owned: bool,
    pub may_trigger: bool,
    pub row_security: bool,
    pub partitioned: bool,
    pub columns: Vec<String>,
    /// For each column, whether its type's output is not what a cast to text gives.
    pub printed: Vec<bool>,
    pub readable: Vec<String>,
    /// The primary key's columns.
    pub key: Vec<String>,
}

impl Relation {
    pub fn qualified(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    pub fn quoted(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }
}

async fn relations(client: &Client, source: &Source, table: Table) -> Result<Vec<Relation>, CaptureError> {
    let (schema, name) = source.tables.qualified_name(table);
    let rows = client.query_typed(RELATIONS, &[(&schema, Type::TEXT), (&name, Type::TEXT)]).await?;
    let relations = rows.iter().map(|row| Relation {
        oid: row.get("oid"),
        schema: row.get("schema"),
        name: row.get("name"),
        owned: row.get("owned"),
        may_trigger: row.get("may_trigger"),
        row_security: row.get("row_security"),
        partitioned: row.get("partitioned"),
        columns: row.get("columns"),
        printed: row.get("printed"),
        readable: row.get("readable"),
        key: row.get("key"),
    });
    Ok(relations.collect())
}

/// A table that is captured or looked up, as it is on the primary.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub table: Table,
    /// The table itself first, then its partitions: a statement fires only the triggers of the table it names.
    pub relations: Vec<Relation>,
    /// What its triggers call, or what stands against it.
    pub function: Result<Function, String>,
}

/// One trigger that should be there.
#[derive(Clone, Debug)]
pub(crate) struct Lacking {
    pub relation: Relation,
    pub event: TriggerEvent,
    pub function: String,
}

/// All tables that triggers are wanted on; one that nobody needs may be missing.
pub(crate) async fn watched(client: &Client, source: &Source) -> Result<Vec<Watched>, CaptureError> {
    let mut all = Vec::new();
    for table in Table::ALL.iter().copied().filter(|table| is_required(*table)) {
        if !source.follows(table) {
            continue;
        }
        let relations = relations(client, source, table).await?;
        let function = match relations.first() {
            Some(root) => Function::new(source, table, root),
            None => {
                let (schema, name) = source.tables.qualified_name(table);
                let key = table.name();
                Err(format!("table {schema}.{name} is missing: name the platform's own in source.tables.{key}.table"))
            }
        };
        all.push(Watched { table, relations, function });
    }
    Ok(all)
}

/// What the triggers on the primary are, against what they should be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    /// Functions to make or to make anew.
    pub outdated: Vec<Function>,
    pub lacking: Vec<Lacking>,
    /// Triggers that somebody has disabled.
    pub disabled: Vec<Lacking>,
    /// Triggers that fire in ordinary sessions only, on tables of others.
    pub ordinary: Vec<Lacking>,
    /// The same as sentences, without the last.
    pub faults: Vec<String>,
}

struct Found {
    function: String,
    enabled: bool,
    always: bool,
    comment: Option<String>,
    source: String,
}

impl Comparison {
    /// With a primary on which there is nothing yet.
    pub fn of_nothing(watched: &[Watched]) -> Comparison {
        let mut comparison = Comparison::default();
        watched.iter().for_each(|table| comparison.table(table, &HashMap::new()));
        comparison
    }
}

pub(crate) async fn compare(client: &Client, watched: &[Watched]) -> Result<Comparison, CaptureError> {
    let oids: Vec<u32> = watched.iter().flat_map(|table| &table.relations).map(|relation| relation.oid).collect();
    let rows = client.query_typed(TRIGGERS, &[(&oids, Type::OID_ARRAY)]).await?;
    let found: HashMap<(u32, String), Found> = rows
        .iter()
        .map(|row| {
            let found = Found {
                function: row.get("function"),
                enabled: row.get("enabled"),
                always: row.get("always"),
                comment: row.get("comment"),
                source: row.get("source"),
            };
            ((row.get("oid"), row.get("name")), found)
        })
        .collect();
    let mut comparison = Comparison::default();
    for table in watched {
        comparison.table(table, &found);
    }
    Ok(comparison)
}

impl Comparison {
    fn table(&mut self, table: &Watched, found: &HashMap<(u32, String), Found>) {
        let function = match &table.function {
            Ok(function) => function,
            Err(problem) => {
                if !table.relations.is_empty() || table.table.is_captured() {
                    self.faults.push(problem.clone());
                }
                return;
            }
        };
        let mut is_current = false;
        for relation in &table.relations {
            for event in TriggerEvent::ALL {
                let trigger = Lacking { relation: relation.clone(), event, function: function.name.clone() };
                match found.get(&(relation.oid, event.trigger_name())) {
                    Some(found) if found.function == function.name => {
                        is_current = function.is(found.comment.as_deref(), &found.source);
                        if !found.enabled {
                            self.faults.push(format!(
                                "trigger {} of {} is disabled",
                                event.trigger_name(),
                                relation.qualified()
                            ));
                            self.disabled.push(trigger);
                        } else if !found.always {
                            self.ordinary.push(trigger);
                        }
                    }
                    _ => {
                        self.faults.push(format!("{} lacks trigger {}", relation.qualified(), event.trigger_name()));
                        self.lacking.push(trigger);
                    }
                }
            }
        }
        if !is_current {
            let complete = !self.lacking.iter().any(|lacking| lacking.function == function.name);
            if complete {
                self.faults.push(format!(
                    "function walhook_capture.{} is not what the table and the mapping now want",
                    function.name
                ));
            }
            self.outdated.push(function.clone());
        }
    }
}
