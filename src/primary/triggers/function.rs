//! Generates the triggers' functions: one per table, with the platform's names and the mapping's
//! columns.

use sha2::{Digest, Sha256};

use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::{fill, quote_identifier};
use crate::primary::catalog::{Relation, contains};
use crate::primary::mapped;
use crate::sql::primary as sql;

/// The event that a trigger fires on.
///
/// Rows have a trigger call each. The transition tables of a statement's trigger would have every
/// row that the statement writes, whether or not a watched column changed, and where they spill to
/// disk, outside of the function's exception block, an error aborts the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TriggerEvent {
    Insert,
    Update,
    Delete,
    Truncate,
}

impl TriggerEvent {
    pub const ALL: [TriggerEvent; 4] = [
        TriggerEvent::Insert,
        TriggerEvent::Update,
        TriggerEvent::Delete,
        TriggerEvent::Truncate,
    ];

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

    /// Returns whether the trigger is called for each row: TRUNCATE has none.
    pub const fn is_for_each_row(self) -> bool {
        !matches!(self, TriggerEvent::Truncate)
    }

    /// Returns the statement that creates the trigger.
    pub fn create(self, table: &str, function: &str) -> String {
        let level = match self.is_for_each_row() {
            true => "row",
            false => "statement",
        };
        let condition = match self {
            TriggerEvent::Update => {
                format!(" when (walhook_capture.{function}_changed(old, new))")
            }
            _ => String::new(),
        };

        fill(
            sql::triggers::TRIGGER,
            &[
                ("event", self.as_str()),
                ("level", level),
                ("condition", &condition),
                ("function", function),
                ("table", table),
            ],
        )
    }

    /// Returns the statement that makes the trigger fire regardless of `session_replication_role`.
    /// Only the table's owner may run it.
    pub fn enable_always(self, table: &str) -> String {
        sql::triggers::TRIGGER_ALWAYS
            .replace("{event}", self.as_str())
            .replace("{table}", table)
    }
}

/// The function that the triggers of one table call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub table: Table,
    pub name: String,
    definition: String,
    /// Identifies the definition.
    pub comment: String,
}

impl Function {
    /// Generates the function for a table. None if the table lacks a column that the mapping names.
    pub fn new(source: &Source, table: Table, root: &Relation) -> Option<Function> {
        let mut columns = source.tables.platform_columns(table);
        if columns.any(|(_, name)| !contains(&root.columns, name)) {
            return None;
        }

        let name = function_name(table);
        let rows = RowSql {
            source,
            table,
            root,
        };

        let changed = rows.differ("before", "after");
        let before = rows.values("old");
        let after = rows.values("new");
        let planned = format!(
            "select $1 <> 'U' or {},
                case when $1 <> 'I' then {} end, case when $1 <> 'D' then {} end",
            rows.differ("($2)", "($3)"),
            rows.values("($2)"),
            rows.values("($3)")
        );
        let inner = quote_for(&planned);
        let quote = quote_for(&format!("{changed}{before}{after}{inner}{planned}"));

        let definition = fill(
            sql::triggers::FUNCTION,
            &[
                ("function", &name),
                ("table", table.name()),
                ("formats", rows.formats()),
                ("changed", &changed),
                ("before", &before),
                ("after", &after),
                ("rekeyed", &rekeyed(table)),
                ("inner", &inner),
                ("planned", &planned),
                ("quote", &quote),
            ],
        );

        let comment = format!("walhook {}", hex::encode(Sha256::digest(&definition)));
        Some(Function {
            table,
            name,
            definition,
            comment,
        })
    }

    /// Returns whether the function on the primary, given by its comment, is this one.
    pub fn is(&self, comment: Option<&str>) -> bool {
        comment == Some(&*self.comment)
    }

    /// Returns the statements that create or replace the function. They lock no table.
    pub fn create(&self) -> String {
        let comment = sql::triggers::COMMENT
            .replace("{function}", &self.name)
            .replace("walhook {hash}", &self.comment);
        format!("{}{comment}", self.definition)
    }
}

/// Writes SQL about the old and the new row of a table, which are named by expressions.
struct RowSql<'a> {
    source: &'a Source,
    table: Table,
    root: &'a Relation,
}

impl RowSql<'_> {
    fn is_stored(&self, reference: &str) -> bool {
        self.source.tables.computed(self.table, reference).is_none()
    }

    fn theirs(&self, reference: &'static str) -> &str {
        self.source.tables.column(self.table, reference)
    }

    /// Returns an array of the values of all columns. If the mapping has a condition or extra values,
    /// also whether the row is outside of it, and these values.
    fn values(&self, side: &str) -> String {
        let mappings = &self.source.tables;
        let value = |name: &str| value(self.root, side, name);
        let columns = self.table.columns().iter().copied();
        let mut values: Vec<String> = columns
            .map(|reference| match self.is_stored(reference) {
                true => value(self.theirs(reference)),
                false => "null".into(),
            })
            .collect();

        let column = |name: &str| format!("{side}.{}", quote_identifier(name));
        let condition = mapped::condition(mappings, self.table, column, value);
        let extra = mapped::extra(mappings, self.table, column);

        if condition.is_some() || extra.is_some() {
            let outside = condition.map(|condition| format!("(({condition}) is not true)::text"));
            values.extend([outside, extra].map(|value| value.unwrap_or_else(|| "null".into())));
        }

        format!("array[{}]::text[]", values.join(", "))
    }

    /// Returns a condition that one of the significant columns differs, by its bytes: the types may
    /// have no operator for it, or their own.
    fn differ(&self, before: &str, after: &str) -> String {
        let names = self.significant();
        let row = |side: &str| {
            let columns = names
                .iter()
                .map(|name| format!("{side}.{}", quote_identifier(name)));
            columns.collect::<Vec<_>>().join(", ")
        };

        format!(
            "pg_catalog.record_image_ne(row({}), row({}))",
            row(before),
            row(after)
        )
    }

    /// Returns the settings on which the text of the values depends. Each costs time at every call,
    /// so there are none if all columns have types whose text depends on no setting.
    fn formats(&self) -> &'static str {
        const FORMATS: &str = "
    set datestyle = 'ISO'
    set timezone = 'UTC'
    set intervalstyle = 'postgres'
    set extra_float_digits = 1
    set bytea_output = 'hex'";
        /// Besides those of strings, booleans and enumerations.
        const PLAIN_TYPES: [&str; 5] = ["bigint", "integer", "smallint", "numeric", "uuid"];

        let mut columns = self.source.tables.platform_columns(self.table);
        let has_plain_text = |name: &str| {
            let at = self.root.columns.iter().position(|have| have == name);
            at.is_some_and(|at| {
                let category = &*self.root.categories[at];
                matches!(category, "B" | "E" | "S") || PLAIN_TYPES.contains(&&*self.root.types[at])
            })
        };

        match columns.all(|(_, name)| has_plain_text(name)) {
            true => "",
            false => FORMATS,
        }
    }

    /// Returns the columns because of which an update is written to the outbox: the key, those that
    /// raise events, and those of the condition. Of tables that lookups read, all columns, because
    /// the outbox keeps cached lookups up to date.
    fn significant(&self) -> Vec<&str> {
        let mappings = &self.source.tables;
        let raises_only = self.table.is_captured() && self.table != Table::Release;
        let (columns, extra) = match raises_only {
            true => (self.table.watched(), None),
            false => (self.table.columns(), Some(mappings.extra(self.table))),
        };

        let key = own_key(self.table)
            .iter()
            .filter(|reference| !columns.contains(reference));
        let mapped = key
            .chain(columns)
            .filter(|reference| self.is_stored(reference))
            .map(|reference| self.theirs(reference));

        let only = mappings.only(self.table).keys();
        let extra = extra.into_iter().flat_map(|extra| extra.values());
        mapped
            .chain(only.chain(extra).map(String::as_str))
            .collect()
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

/// Returns a condition that the key in the arrays of values differs, or that one of them is null.
fn rekeyed(table: Table) -> String {
    let differs = own_key(table).iter().map(|reference| {
        let at = table
            .columns()
            .iter()
            .position(|column| column == reference);
        let at = at.map_or(0, |at| at + 1);
        format!("before[{at}] is distinct from after[{at}]")
    });

    format!("({})", differs.collect::<Vec<_>>().join(" or "))
}

/// Returns the columns that identify a row.
const fn own_key(table: Table) -> &'static [&'static str] {
    match table {
        Table::UserAddon => &["user_id", "addon"],
        _ => &["id"],
    }
}

/// Returns a dollar quote that does not occur in the text.
fn quote_for(text: &str) -> String {
    let mut candidates = (0..).map(|number: u32| format!("$walhook{number}$"));
    candidates
        .find(|quote| !text.contains(quote.as_str()))
        .expect("a text holds finitely many quotes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(table: Table) -> Relation {
        let columns: Vec<String> = table
            .columns()
            .iter()
            .map(|column| (*column).to_owned())
            .collect();
        Relation {
            schema: "public".into(),
            name: table.name().into(),
            formatted: vec![false; columns.len()],
            types: vec!["text".into(); columns.len()],
            categories: vec!["S".into(); columns.len()],
            columns,
            ..Relation::default()
        }
    }

    #[test]
    fn tables_that_only_raise_events_are_written_when_a_watched_column_changes() {
        let function = Function::new(
            &Source::default(),
            Table::DistroQueue,
            &relation(Table::DistroQueue),
        )
        .unwrap();

        assert!(
            function
                .definition
                .contains(r#"row(before."id", before."status")"#)
        );

        let release = Function::new(
            &Source::default(),
            Table::Release,
            &relation(Table::Release),
        )
        .unwrap();

        assert!(
            release.definition.contains(r#"before."title""#),
            "others are looked up in it"
        );
    }

    #[test]
    fn the_comment_changes_with_the_definition() {
        let source = Source::default();
        let first =
            Function::new(&source, Table::DistroQueue, &relation(Table::DistroQueue)).unwrap();
        let mut other = relation(Table::DistroQueue);

        assert_eq!(
            first.comment,
            Function::new(&source, Table::DistroQueue, &other)
                .unwrap()
                .comment
        );

        other.formatted[4] = true;
        assert_ne!(
            first.comment,
            Function::new(&source, Table::DistroQueue, &other)
                .unwrap()
                .comment
        );

        other.columns[3] = "state".into();
        assert!(
            Function::new(&source, Table::DistroQueue, &other).is_none(),
            "the table lacks a mapped column"
        );
    }

    #[test]
    fn the_quote_does_not_occur_in_the_text() {
        assert_eq!(quote_for("a $walhook0$ b"), "$walhook1$");
    }
}
