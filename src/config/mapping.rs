//! Maps the platform's tables, columns and status values to the reference schema.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Source;
use crate::domain::change::{Datum, Tuple};
use crate::domain::extra::MAX_VALUES;
use crate::domain::table::{Column, Table};

/// The keys of a map of values that stand for null, and for every other value that is not mapped.
const NULL: &str = "null";
const NOT_NULL: &str = "not null";
/// The longest key of an extra value.
const MAX_KEY: usize = 64;

/// One mapping per table of the reference schema. What is not mapped has the same name on the
/// platform.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TableMappings(BTreeMap<String, TableMapping>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TableMapping {
    /// `schema.table`, or a table in `public`. A name with a dot in it is quoted as in SQL:
    /// `"my.schema"."my.table"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Reference column → the platform's column.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Reference column → earlier names of the platform's column, for WAL that was written before
    /// it was renamed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub formerly: BTreeMap<String, Vec<String>>,
    /// Reference column → the platform's value → the reference value, such as `status = { 5 =
    /// "complete" }`. `null` stands for null, and `not null` for every other value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, BTreeMap<String, String>>,
    /// Reference column → an SQL expression for its value, in which `this` is the row. For columns
    /// that the table does not have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub computed: BTreeMap<String, String>,
    /// The platform's column → the values of the rows that raise events: `"null"`, `"not null"`, one
    /// value, or a list of values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub only: BTreeMap<String, Condition>,
    /// A key of `data.extra` → the platform's column that events show there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
    /// The platform has no such table.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
}

impl TableMapping {
    /// Whether the mapping says how the table or its columns are named.
    fn gives_names(&self) -> bool {
        self.table.is_some() || !self.columns.is_empty() || !self.computed.is_empty()
    }
}

/// A condition on a column of the platform. Values are compared as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "ConditionForm", into = "ConditionForm")]
#[schemars(with = "ConditionForm")]
pub enum Condition {
    Null,
    NotNull,
    AnyOf(Vec<String>),
}

/// A condition as the configuration has it.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a condition is \"null\", \"not null\", a value or a list of values"
)]
enum ConditionForm {
    One(Value),
    AnyOf(Vec<Value>),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Value {
    Boolean(bool),
    Integer(i64),
    Text(String),
}

impl From<Value> for String {
    fn from(value: Value) -> String {
        match value {
            Value::Boolean(true) => "t".to_owned(),
            Value::Boolean(false) => "f".to_owned(),
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text,
        }
    }
}

impl From<ConditionForm> for Condition {
    fn from(form: ConditionForm) -> Condition {
        match form {
            ConditionForm::One(Value::Text(text)) if text == NULL => Condition::Null,
            ConditionForm::One(Value::Text(text)) if text == NOT_NULL => Condition::NotNull,
            ConditionForm::One(value) => Condition::AnyOf(vec![value.into()]),
            ConditionForm::AnyOf(values) => {
                Condition::AnyOf(values.into_iter().map(String::from).collect())
            }
        }
    }
}

impl From<Condition> for ConditionForm {
    fn from(condition: Condition) -> ConditionForm {
        match condition {
            Condition::Null => ConditionForm::One(Value::Text(NULL.to_owned())),
            Condition::NotNull => ConditionForm::One(Value::Text(NOT_NULL.to_owned())),
            Condition::AnyOf(values) => {
                ConditionForm::AnyOf(values.into_iter().map(Value::Text).collect())
            }
        }
    }
}

impl Condition {
    /// Returns whether a value meets the condition.
    pub fn is_met_by(&self, value: Option<&str>) -> bool {
        match self {
            Condition::Null => value.is_none(),
            Condition::NotNull => value.is_some(),
            Condition::AnyOf(values) => {
                value.is_some_and(|value| values.iter().any(|allowed| allowed == value))
            }
        }
    }
}

impl TableMappings {
    fn of(&self, table: Table) -> &TableMapping {
        static UNMAPPED: LazyLock<TableMapping> = LazyLock::new(TableMapping::default);
        self.0.get(table.name()).unwrap_or(&UNMAPPED)
    }

    /// Returns the schema and the name of the platform's table for `table`.
    pub fn qualified_name(&self, table: Table) -> (String, String) {
        let configured = self.of(table).table.as_deref();

        // Malformed names are rejected when the configuration is loaded.
        let named = configured.and_then(split_name);
        let (schema, name) =
            named.unwrap_or_else(|| (None, configured.unwrap_or(table.name()).to_owned()));
        (schema.unwrap_or_else(|| "public".to_owned()), name)
    }

    /// Returns earlier names of the platform's column, to be tried in this order.
    pub fn formerly<'a>(&'a self, table: Table, column: &str) -> impl Iterator<Item = &'a str> {
        let names = self.of(table).formerly.get(column);
        names.into_iter().flatten().map(String::as_str)
    }

    /// Describes malformed table names.
    fn malformed_names(&self) -> impl Iterator<Item = String> {
        let named = self
            .0
            .iter()
            .filter_map(|(key, mapping)| Some((key, mapping.table.as_deref()?)));
        named.filter(|(_, name)| split_name(name).is_none()).map(|(key, name)| {
            format!(
                "source.tables.{key}.table: `{name}` is neither `table` nor `schema.table`; a name with a dot is quoted"
            )
        })
    }

    /// Returns the platform's name for a column of the reference schema.
    pub fn column<'a>(&'a self, table: Table, column: &'a str) -> &'a str {
        let names = &self.of(table).columns;
        names.get(column).map_or(column, String::as_str)
    }

    /// Whether the platform has no such table.
    pub fn is_absent(&self, table: Table) -> bool {
        self.of(table).absent
    }

    /// Returns the SQL expression that computes `column`, if the platform's table does not have it.
    /// A mapped table has its optional column only if the mapping names it.
    pub fn computed(&self, table: Table, column: &str) -> Option<&str> {
        let mapping = self.of(table);
        let is_named = mapping.columns.contains_key(column) || !mapping.gives_names();
        let is_lacking = table.optional() == Some(column) && !is_named;

        let expression = mapping.computed.get(column).map(String::as_str);
        expression.or(is_lacking.then_some(NULL))
    }

    /// Whether columns of `table` are computed by SQL expressions.
    pub fn is_computed(&self, table: Table) -> bool {
        let mut computed = self.of(table).computed.keys();
        computed.any(|column| !self.lacks(table, column))
    }

    /// Whether the platform does not have an optional column, which is then null.
    pub fn lacks(&self, table: Table, column: &str) -> bool {
        table.optional() == Some(column) && self.computed(table, column) == Some(NULL)
    }

    /// Returns the mappings of a platform that has no optional columns.
    pub fn without_optional(mut self) -> TableMappings {
        for table in Table::ALL {
            if let Some(column) = table.optional() {
                let mapping = self.0.entry(table.name().to_owned()).or_default();
                mapping.computed.insert(column.to_owned(), NULL.to_owned());
            }
        }

        self
    }

    /// Returns the columns of the reference schema that are stored in the platform's table.
    pub fn stored(&self, table: Table) -> impl Iterator<Item = &'static str> {
        table
            .columns()
            .iter()
            .copied()
            .filter(move |column| self.computed(table, column).is_none())
    }

    /// Returns the condition that the table's rows must meet, column by column.
    pub fn only(&self, table: Table) -> &BTreeMap<String, Condition> {
        &self.of(table).only
    }

    /// Returns the extra values that events show of the table's rows: keys and the platform's
    /// columns.
    pub fn extra(&self, table: Table) -> &BTreeMap<String, String> {
        &self.of(table).extra
    }

    /// Returns the columns of the platform's table that are read, each with the setting that names
    /// it.
    pub fn platform_columns(&self, table: Table) -> impl Iterator<Item = (String, &str)> {
        let mapped = self
            .stored(table)
            .map(move |column| (format!("columns.{column}"), self.column(table, column)));
        let only = self.only(table).keys();
        let only = only.map(|name| (format!("only.{name}"), name.as_str()));
        let extra = self.extra(table).iter();
        let extra = extra.map(|(key, name)| (format!("extra.{key}"), name.as_str()));

        mapped.chain(only).chain(extra)
    }

    /// Returns the value of `column` in the reference schema for the platform's.
    pub fn datum(&self, table: Table, column: &str, value: Option<&str>) -> Datum {
        let values = self.of(table).values.get(column);
        let mapped = |key: &str| {
            values
                .and_then(|values| values.get(key))
                .map(String::as_str)
        };

        let meaning = match value {
            None => mapped(NULL),
            // A text that reads `null` is not null.
            Some(text) => Some(text)
                .filter(|text| *text != NULL)
                .and_then(mapped)
                .or_else(|| mapped(NOT_NULL))
                .or(value),
        };

        Datum::of(meaning)
    }

    /// Sets a column of a row to the value in the reference schema for the platform's.
    pub fn set(&self, row: &mut Tuple, table: Table, column: Column, value: Option<&str>) {
        let name = table.columns()[usize::from(column.0)];
        let original = Datum::of(value);

        match self.maps_values(table, name) {
            true => row.set_mapped(column, self.datum(table, name, value), original),
            false => row.set(column, original),
        }
    }

    /// Returns whether values of `column` are mapped.
    pub fn maps_values(&self, table: Table, column: &str) -> bool {
        self.of(table).values.contains_key(column)
    }

    /// Returns the reference values that the platform's values of `column` are mapped to.
    pub fn meanings(&self, table: Table, column: &str) -> impl Iterator<Item = &str> {
        let values = self.of(table).values.get(column);
        values
            .into_iter()
            .flat_map(|values| values.values().map(String::as_str))
    }

    /// Describes by which names and values rows of `table` are read for the events of other rows.
    /// Equal for equal mappings.
    pub fn lookup_mapping(&self, table: Table) -> String {
        let names = if table == Table::UserAddon {
            table.columns()
        } else {
            table.looked_up()
        };

        let values = &self.of(table).values;
        let columns = ["id"]
            .iter()
            .chain(names)
            .filter(|name| !self.lacks(table, name))
            .map(|name| (self.column(table, name), values.get(*name)));

        let mut description = format!(
            "{:?} {:?}",
            self.qualified_name(table),
            columns.collect::<Vec<_>>()
        );

        // All rows of a release are kept: see `Table::may_be_limited`.
        let mapping = self.of(table);
        if !mapping.only.is_empty() && !table.is_captured() {
            description += &format!(" {:?}", mapping.only);
        }

        if !mapping.extra.is_empty() {
            description += &format!(" {:?}", mapping.extra);
        }

        description
    }

    /// Describes tables and columns that cannot be absent or computed.
    fn contradictions(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(name, mapping)| {
            let table = Table::by_name(name)?;
            if mapping.absent && table.is_indispensable() {
                return Some(format!(
                    "source.tables.{name}.absent: events need it to find their owner"
                ));
            }

            let named = |column: &String| {
                mapping.columns.contains_key(column) || mapping.formerly.contains_key(column)
            };

            mapping.computed.keys().find_map(|column| {
                let reason = if !table.may_compute(column) {
                    "cannot be computed: it must be a column of the table"
                } else if named(column) {
                    "is also named in columns or formerly: choose one"
                } else {
                    return None;
                };
                Some(format!("source.tables.{name}.computed.{column}: {reason}"))
            })
        })
    }

    /// Describes mapped names that the reference schema does not have.
    fn unknown_names(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(name, mapping)| {
            let Some(table) = Table::by_name(name) else {
                return vec![unknown_table(&format!("source.tables.{name}"))];
            };

            let columns = mapping.columns.keys().map(|column| ("columns", column));
            let formerly = mapping.formerly.keys().map(|column| ("formerly", column));
            let values = mapping.values.keys().map(|column| ("values", column));
            let computed = mapping.computed.keys().map(|column| ("computed", column));

            columns
                .chain(formerly)
                .chain(values)
                .chain(computed)
                .filter(|(_, column)| table.column(column).is_none())
                .map(|(part, column)| {
                    format!(
                        "source.tables.{name}.{part}.{column}: the reference schema has no such table or column; {name} has {}",
                        table.columns().join(", ")
                    )
                })
                .collect()
        })
    }

    /// Describes values that a column never has.
    fn unknown_values(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(name, mapping)| {
            let table = Table::by_name(name);

            mapping.values.iter().filter_map(move |(column, values)| {
                let valid = table?.closed_values(column)?;
                let (own, other) = values
                    .iter()
                    .find(|(_, value)| !valid.contains(&value.as_str()))?;
                Some(format!(
                    "source.tables.{name}.values.{column}: `{own}` is mapped to `{other}`, which is not one of {}",
                    valid.join(", ")
                ))
            })
        })
    }

    /// Describes columns of the platform that are mapped twice and cannot mean both: two references
    /// lead to rows of different tables, and a key is not a status.
    fn shared_columns(&self) -> impl Iterator<Item = String> {
        self.0.keys().filter_map(|name| {
            let table = Table::by_name(name)?;
            let is_reference = |column: &str| column != "id" && column.ends_with("_id");
            let exclude_each_other = |one: &str, other: &str| {
                let is_status = table.watched().contains(&other);
                match one {
                    "id" => is_status,
                    _ => is_reference(one) && (is_reference(other) || is_status),
                }
            };

            let pairs = self
                .stored(table)
                .flat_map(|one| self.stored(table).map(move |other| (one, other)));
            let (one, other) = pairs
                .filter(|(one, other)| one != other && exclude_each_other(one, other))
                .find(|(one, other)| self.column(table, one) == self.column(table, other))?;

            Some(format!(
                "source.tables.{name}.columns: {one} and {other} are both `{}`; name the column of each",
                self.column(table, one)
            ))
        })
    }

    /// Describes conditions and extra values that are not possible.
    fn impossible_rows(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(name, mapping)| {
            let table = Table::by_name(name)?;
            let key = |part: &str| format!("source.tables.{name}.{part}");

            if !mapping.only.is_empty() && !table.may_be_limited() {
                return Some(format!(
                    "{}: events find all rows of this table; limit the tables whose changes raise events",
                    key("only")
                ));
            }

            let empty = Condition::AnyOf(Vec::new());
            if let Some((column, _)) = mapping.only.iter().find(|(_, only)| **only == empty) {
                return Some(format!("{}.{column}: the list is empty", key("only")));
            }

            if !mapping.extra.is_empty() && !raising(table).any(|_| true) {
                return Some(format!("{}: no event shows rows of this table", key("extra")));
            }

            if mapping.extra.len() > MAX_VALUES {
                return Some(format!("{}: at most {MAX_VALUES} keys", key("extra")));
            }

            mapping.extra.keys().find_map(|extra| {
                let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
                if extra.is_empty() || extra.len() > MAX_KEY || !extra.chars().all(is_valid) {
                    return Some(format!(
                        "{}.{extra}: a key has up to {MAX_KEY} letters, digits, _ and -",
                        key("extra")
                    ));
                }

                let mut shown = raising(table).flat_map(Table::shown);
                let other = shown
                    .find(|other| **other != table && self.extra(**other).contains_key(extra))?;
                Some(format!(
                    "{}.{extra}: source.tables.{}.extra has the same key, and events show both; choose another",
                    key("extra"),
                    other.name()
                ))
            })
        })
    }
}

/// Returns the tables whose events show extra values of `table`.
fn raising(table: Table) -> impl Iterator<Item = Table> {
    Table::ALL
        .iter()
        .copied()
        .filter(move |raising| raising.shown().contains(&table))
}

fn unknown_table(setting: &str) -> String {
    let names: Vec<&str> = Table::ALL.iter().map(|table| table.name()).collect();
    format!(
        "{setting}: the reference schema has no such table or column; its tables are {}",
        names.join(", ")
    )
}

impl Source {
    /// Whether changes of `table` are captured: the platform has it, and no `source.lookups` query
    /// replaces it.
    pub fn follows(&self, table: Table) -> bool {
        !self.tables.is_absent(table) && !self.lookups.contains_key(table.name())
    }

    /// Whether the store keeps rows of `table` for the events of other rows. If rows or values come
    /// from the platform's own SQL, the stream does not show their changes.
    pub fn copies_lookups_of(&self, table: Table) -> bool {
        let is_looked_up = table == Table::UserAddon || !table.looked_up().is_empty();
        is_looked_up && self.follows(table) && !self.tables.is_computed(table)
    }

    /// Describes names that the reference schema does not have or that are malformed, and settings
    /// that contradict each other.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let lookups = self.lookups.keys().filter_map(|name| match Table::by_name(name) {
            None => Some(unknown_table(&format!("source.lookups.{name}"))),
            Some(table) if table.is_captured() => Some(format!(
                "source.lookups.{name}: rows of this table are captured, not looked up: add missing columns with source.tables.{name}.computed"
            )),
            Some(table) if !self.tables.only(table).is_empty() => Some(format!(
                "source.tables.{name}.only: source.lookups.{name} finds the rows: put the condition into its SQL"
            )),
            Some(_) => None,
        });

        self.tables
            .unknown_names()
            .chain(self.tables.malformed_names())
            .chain(self.tables.contradictions())
            .chain(self.tables.unknown_values())
            .chain(self.tables.shared_columns())
            .chain(self.tables.impossible_rows())
            .chain(lookups)
    }
}

/// Splits a table's name into its schema, if it names one, and the table.
fn split_name(text: &str) -> Option<(Option<String>, String)> {
    let (first, rest) = take_part(text)?;
    let Some(rest) = rest else {
        return Some((None, first));
    };

    match take_part(rest)? {
        (second, None) => Some((Some(first), second)),
        _ => None,
    }
}

/// Takes the first part of a dotted name. Returns it with the text after the dot, if there is one.
fn take_part(text: &str) -> Option<(String, Option<&str>)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (part, rest) = text
            .split_once('.')
            .map_or((text, None), |(part, rest)| (part, Some(rest)));
        return (!part.is_empty()).then(|| (part.to_owned(), rest));
    };

    let mut part = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        if letter != '"' {
            part.push(letter);
            continue;
        }

        let rest = &quoted[at + 1..];
        if rest.starts_with('"') {
            part.push('"');
            letters.next();
            continue;
        }

        let next = if rest.is_empty() {
            None
        } else {
            Some(rest.strip_prefix('.')?)
        };

        return (!part.is_empty()).then_some((part, next));
    }

    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_may_include_a_schema_and_may_be_quoted() {
        let both = |schema: &str, table: &str| Some((Some(schema.to_owned()), table.to_owned()));
        assert_eq!(split_name("jobs"), Some((None, "jobs".to_owned())));
        assert_eq!(split_name("dist.Jobs"), both("dist", "Jobs"));
        assert_eq!(
            split_name(r#""my.schema"."my ""table"".""#),
            both("my.schema", r#"my "table"."#)
        );
        assert_eq!(
            split_name(r#"plain."dotted.table""#),
            both("plain", "dotted.table")
        );
        assert_eq!(
            split_name(r#""dotted.table""#),
            Some((None, "dotted.table".to_owned()))
        );

        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            r#""open"#,
            r#""a"b"#,
            r#""a".b.c"#,
            r#""""#,
        ] {
            assert_eq!(split_name(bad), None, "{bad}");
        }
    }
}
