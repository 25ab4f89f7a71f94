//! Generates the triggers' functions: one per table, with the platform's names and the mapping's columns.

use sha2::{Digest, Sha256};

use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::quote_identifier;
use crate::primary::catalog::{Relation, contains};

const FUNCTION: &str = include_str!("../../../sql/primary/outbox_function.sql");
const COMMENT: &str = include_str!("../../../sql/primary/outbox_comment.sql");
const TRIGGER: &str = include_str!("../../../sql/primary/outbox_trigger.sql");
const ALWAYS: &str = include_str!("../../../sql/primary/outbox_trigger_always.sql");

/// A row that moves to another partition gets another primary key, as that contains the partition key. The join by primary key then
/// yields a deletion and an insertion. The outbox's trigger pairs them if the deletion is written first.
const ORDER: &str = "{order}";
const DELETED_FIRST: &str = "\n        order by n.walhook_row is not null";

/// The event that a trigger fires on. Transition tables are only available to triggers for a single event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TriggerEvent {
    Insert,
    Update,
    Delete,
    Truncate,
}

impl TriggerEvent {
    pub const ALL: [TriggerEvent; 4] =
        [TriggerEvent::Insert, TriggerEvent::Update, TriggerEvent::Delete, TriggerEvent::Truncate];

    const fn as_str(self) -> &'static str {
        match self {
            TriggerEvent::Insert => "insert",
            TriggerEvent::Update => "update",
            TriggerEvent::Delete => "delete",
            TriggerEvent::Truncate => "truncate",
        }
    }

    pub fn trigger_name(self) -> String {
        format!("walhook_{}", self.as_str())
    }

    const fn transition(self) -> &'static str {
        match self {
            TriggerEvent::Insert => "\n    referencing new table as new_rows",
            TriggerEvent::Update => "\n    referencing old table as old_rows new table as new_rows",
            TriggerEvent::Delete => "\n    referencing old table as old_rows",
            TriggerEvent::Truncate => "",
        }
    }

    /// Returns the statement that creates the trigger.
    pub fn create(self, table: &str, function: &str) -> String {
        TRIGGER
            .replace("{event}", self.as_str())
            .replace("{transition}", self.transition())
            .replace("{function}", function)
            .replace("{table}", table)
    }

    /// Returns the statement that makes the trigger fire regardless of `session_replication_role`. Only the table's owner may run it.
    pub fn enable_always(self, table: &str) -> String {
        ALWAYS.replace("{event}", self.as_str()).replace("{table}", table)
    }
}

/// The function that the triggers of one table call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub table: Table,
    pub name: String,
    definition: String,
    /// Identifies the definition. Leaves out the order, so that earlier builds recognize the function as theirs.
    pub comment: String,
    deleted_first: bool,
}

impl Function {
    /// Generates the function for a table. None if the table lacks a mapped column.
    pub fn new(source: &Source, table: Table, root: &Relation) -> Option<Function> {
        let theirs = |reference: &'static str| source.tables.column(table, reference);
        if source.tables.stored(table).any(|reference| !contains(&root.columns, theirs(reference))) {
            return None;
        }
        let is_stored = |reference: &str| source.tables.computed(table, reference).is_none();
        let row = |side: &str| {
            let values: Vec<String> = table
                .columns()
                .iter()
                .map(
                    |reference| if is_stored(reference) { value(root, side, theirs(reference)) } else { "null".into() },
                )
                .collect();
            format!("array[{}]::text[]", values.join(", "))
        };
        let both = |column: &str, operator: &str| {
            let name = quote_identifier(column);
            format!("o.{name}::text {operator} n.{name}::text")
        };
        let keys: Vec<&str> = match root.primary_key.is_empty() {
            false => root.primary_key.iter().map(String::as_str).collect(),
            true => own_key(table).iter().map(|reference| theirs(reference)).collect(),
        };
        let paired: Vec<String> = keys.iter().map(|column| both(column, "=")).collect();
        let significant: Vec<String> = significant(table)
            .iter()
            .filter(|reference| is_stored(reference))
            .map(|reference| both(theirs(reference), "is distinct from"))
            .collect();
        let name = function_name(table);
        let definition = FUNCTION
            .replace("{function}", &name)
            .replace("{table}", table.name())
            .replace("{paired}", &paired.join(" and "))
            .replace("{changed}", &significant.join(" or "))
            .replace("{old}", &row("o"))
            .replace("{new}", &row("n"));
        let definition = definition.replace("{quote}", &quote_for(&definition));
        let deleted_first = root.has_partitions;
        let comment = format!("walhook {}", hex::encode(Sha256::digest(definition.replace(ORDER, ""))));
        let definition = definition.replace(ORDER, if deleted_first { DELETED_FIRST } else { "" });
        Some(Function { table, name, definition, comment, deleted_first })
    }

    /// Returns whether the function on the primary, given by its comment and source, is this one.
    pub fn is(&self, comment: Option<&str>, source: &str) -> bool {
        comment == Some(&*self.comment) && (!self.deleted_first || source.contains(DELETED_FIRST))
    }

    /// Returns the statements that create or replace the function. They lock no table.
    pub fn create(&self) -> String {
        let comment = COMMENT.replace("{function}", &self.name).replace("walhook {hash}", &self.comment);
        format!("{}{comment}", self.definition)
    }
}

/// Returns the name of the function that the triggers of a table call.
pub(crate) fn function_name(table: Table) -> String {
    format!("capture_{}", table.name())
}

/// Returns an expression for a column as text in the form that the WAL has: the output of its type.
fn value(root: &Relation, side: &str, column: &str) -> String {
    let name = format!("{side}.{}", quote_identifier(column));
    let at = root.columns.iter().position(|have| have == column);
    match at.is_some_and(|at| root.formatted[at]) {
        true => format!("case when {name} is not null then format('%s', {name}) end"),
        false => format!("{name}::text"),
    }
}

/// Returns the columns whose changes are written to the outbox: those that raise events, but all columns of tables that lookups read,
/// because the outbox keeps cached lookups up to date.
fn significant(table: Table) -> &'static [&'static str] {
    let raises_only = table.is_captured() && table != Table::Release;
    if raises_only { table.watched() } else { table.columns() }
}

/// Returns the columns that identify a row if the table has no primary key.
const fn own_key(table: Table) -> &'static [&'static str] {
    match table {
        Table::UserAddon => &["user_id", "addon"],
        _ => &["id"],
    }
}

/// Returns a dollar quote that does not occur in the text.
fn quote_for(text: &str) -> String {
    let mut candidates = (0..).map(|number: u32| format!("$walhook{number}$"));
    candidates.find(|quote| !text.contains(quote.as_str())).expect("a text holds finitely many quotes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(table: Table) -> Relation {
        let columns: Vec<String> = table.columns().iter().map(|column| (*column).to_owned()).collect();
        Relation {
            schema: "public".into(),
            name: table.name().into(),
            formatted: vec![false; columns.len()],
            columns,
            primary_key: vec!["id".into()],
            ..Relation::default()
        }
    }

    #[test]
    fn tables_that_only_raise_events_are_written_when_a_watched_column_changes() {
        let function = Function::new(&Source::default(), Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        assert!(function.definition.contains(r#"or o."status"::text is distinct from n."status"::text;"#));
        let release = Function::new(&Source::default(), Table::Release, &relation(Table::Release)).unwrap();
        assert!(release.definition.contains(r#"o."title"::text is distinct from"#), "others are looked up in it");
    }

    #[test]
    fn the_comment_changes_with_the_definition() {
        let source = Source::default();
        let first = Function::new(&source, Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        let mut other = relation(Table::DistroQueue);
        assert_eq!(first.comment, Function::new(&source, Table::DistroQueue, &other).unwrap().comment);
        other.formatted[4] = true;
        assert_ne!(first.comment, Function::new(&source, Table::DistroQueue, &other).unwrap().comment);
        other.columns[3] = "state".into();
        assert!(Function::new(&source, Table::DistroQueue, &other).is_none(), "the table lacks a mapped column");
    }

    #[test]
    fn deletions_come_first_for_a_partitioned_table() {
        let source = Source::default();
        let plain = Function::new(&source, Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        let partitioned = Relation { has_partitions: true, ..relation(Table::DistroQueue) };
        let ordered = Function::new(&source, Table::DistroQueue, &partitioned).unwrap();
        assert!(!plain.definition.contains(DELETED_FIRST) && ordered.definition.contains(DELETED_FIRST));
        // Earlier builds accept this definition as their own; this build replaces definitions of earlier builds.
        assert_eq!(plain.comment, ordered.comment);
        assert!(ordered.is(Some(&ordered.comment), &ordered.definition) && plain.is(Some(&plain.comment), ""));
        assert!(!ordered.is(Some(&ordered.comment), &plain.definition) && !plain.is(None, &plain.definition));
    }

    #[test]
    fn the_quote_does_not_occur_in_the_text() {
        assert_eq!(quote_for("a $walhook0$ b"), "$walhook1$");
    }
}
