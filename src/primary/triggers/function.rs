//! The triggers' functions: one a table, with the platform's names and the mapping's columns written into it.

use sha2::{Digest, Sha256};

use super::catalog::Relation;
use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::quote_identifier;

const FUNCTION: &str = include_str!("../../../sql/primary/outbox_function.sql");
const COMMENT: &str = include_str!("../../../sql/primary/outbox_comment.sql");
const TRIGGER: &str = include_str!("../../../sql/primary/outbox_trigger.sql");
const ALWAYS: &str = include_str!("../../../sql/primary/outbox_trigger_always.sql");

/// A row that moves to another partition gets another primary key, as that contains the partition key. The join by primary key then
/// shows a deletion and an insertion. The outbox's trigger pairs them if the deletion is written first.
const ORDER: &str = "{order}";
const DELETED_FIRST: &str = "\n        order by n.walhook_row is not null";

/// What a trigger fires on: one each, since only a trigger for a single event is shown the rows.
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

    /// The statement that makes the trigger.
    pub fn create(self, table: &str, function: &str) -> String {
        TRIGGER
            .replace("{event}", self.as_str())
            .replace("{transition}", self.transition())
            .replace("{function}", function)
            .replace("{table}", table)
    }

    /// The statement that lets it fire in every kind of session; for the table's owner.
    pub fn enable_always(self, table: &str) -> String {
        ALWAYS.replace("{event}", self.as_str()).replace("{table}", table)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub name: String,
    definition: String,
    /// Identifies the definition. Leaves out the order, so that earlier builds recognize the function as theirs.
    pub comment: String,
    deleted_first: bool,
}

impl Function {
    /// The function for a table, or in words what stands against it.
    pub fn new(source: &Source, table: Table, root: &Relation) -> Result<Function, String> {
        let theirs = |reference: &'static str| source.tables.column(table, reference);
        let missing =
            source.tables.stored(table).find(|reference| !root.columns.iter().any(|have| have == theirs(reference)));
        if let Some(reference) = missing {
            return Err(format!(
                "column {} of {} is gone: bring it back, or name another in source.tables.{}.columns.{reference}",
                theirs(reference),
                root.qualified(),
                table.name()
            ));
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
        let keys: Vec<&str> = match root.key.is_empty() {
            false => root.key.iter().map(String::as_str).collect(),
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
        let deleted_first = root.partitioned;
        let comment = format!("walhook {}", hex::encode(Sha256::digest(definition.replace(ORDER, ""))));
        let definition = definition.replace(ORDER, if deleted_first { DELETED_FIRST } else { "" });
        Ok(Function { name, definition, comment, deleted_first })
    }

    /// Whether the function on the primary, by its comment and source, is this one.
    pub fn is(&self, comment: Option<&str>, source: &str) -> bool {
        comment == Some(&*self.comment) && (!self.deleted_first || source.contains(DELETED_FIRST))
    }

    /// The statements that make it, or make it anew: no table is locked.
    pub fn create(&self) -> String {
        let comment = COMMENT.replace("{function}", &self.name).replace("walhook {hash}", &self.comment);
        format!("{}{comment}", self.definition)
    }
}

/// What the triggers of a table call.
pub(crate) fn function_name(table: Table) -> String {
    format!("capture_{}", table.name())
}

/// A column as text in the words of the log: the output of its type.
fn value(root: &Relation, side: &str, column: &str) -> String {
    let name = format!("{side}.{}", quote_identifier(column));
    let at = root.columns.iter().position(|have| have == column);
    match at.is_some_and(|at| root.printed[at]) {
        true => format!("case when {name} is not null then format('%s', {name}) end"),
        false => format!("{name}::text"),
    }
}

/// The columns whose change is written: those that raise events, and all of a table that others are looked up in, since what is
/// kept of it follows the outbox.
fn significant(table: Table) -> &'static [&'static str] {
    let raises_only = table.is_captured() && table != Table::Release;
    if raises_only { table.watched() } else { table.columns() }
}

/// What identifies a row where the table has no primary key.
const fn own_key(table: Table) -> &'static [&'static str] {
    match table {
        Table::UserAddon => &["user_id", "addon"],
        _ => &["id"],
    }
}

/// A dollar quote that does not occur in the text.
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
            oid: 1,
            schema: "public".into(),
            name: table.name().into(),
            owned: true,
            may_trigger: true,
            row_security: false,
            partitioned: false,
            printed: vec![false; columns.len()],
            readable: columns.clone(),
            columns,
            key: vec!["id".into()],
        }
    }

    #[test]
    fn a_table_that_only_raises_events_is_written_when_a_watched_column_changes() {
        let function = Function::new(&Source::default(), Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        assert!(function.definition.contains(r#"or o."status"::text is distinct from n."status"::text;"#));
        let release = Function::new(&Source::default(), Table::Release, &relation(Table::Release)).unwrap();
        assert!(release.definition.contains(r#"o."title"::text is distinct from"#), "others are looked up in it");
    }

    #[test]
    fn a_definition_is_known_again_and_another_is_not() {
        let source = Source::default();
        let first = Function::new(&source, Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        let mut other = relation(Table::DistroQueue);
        assert_eq!(first.comment, Function::new(&source, Table::DistroQueue, &other).unwrap().comment);
        other.printed[4] = true;
        assert_ne!(first.comment, Function::new(&source, Table::DistroQueue, &other).unwrap().comment);
        other.columns[3] = "state".into();
        let error = Function::new(&source, Table::DistroQueue, &other).unwrap_err();
        assert!(error.starts_with("column status of public.distro_queue is gone: "), "{error}");
    }

    #[test]
    fn of_a_partitioned_table_what_went_is_written_before_what_came() {
        let source = Source::default();
        let plain = Function::new(&source, Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        let partitioned = Relation { partitioned: true, ..relation(Table::DistroQueue) };
        let ordered = Function::new(&source, Table::DistroQueue, &partitioned).unwrap();
        assert!(!plain.definition.contains(DELETED_FIRST) && ordered.definition.contains(DELETED_FIRST));
        // Earlier builds accept this definition as their own; this build replaces definitions of earlier builds.
        assert_eq!(plain.comment, ordered.comment);
        assert!(ordered.is(Some(&ordered.comment), &ordered.definition) && plain.is(Some(&plain.comment), ""));
        assert!(!ordered.is(Some(&ordered.comment), &plain.definition) && !plain.is(None, &plain.definition));
    }

    #[test]
    fn no_name_ends_the_quote() {
        assert_eq!(quote_for("a $walhook0$ b"), "$walhook1$");
    }
}
