//! Maps the platform's tables, columns and status values to the reference schema.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Source;
use crate::domain::table::Table;

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
    /// "complete" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, BTreeMap<String, String>>,
    /// Reference column → an SQL expression for its value, in which `this` is the row. For columns
    /// that the table does not have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub computed: BTreeMap<String, String>,
    /// The platform has no such table.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
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
    pub fn computed(&self, table: Table, column: &str) -> Option<&str> {
        self.of(table).computed.get(column).map(String::as_str)
    }

    /// Whether columns of `table` are computed by SQL expressions.
    pub fn is_computed(&self, table: Table) -> bool {
        !self.of(table).computed.is_empty()
    }

    /// Returns the columns of the reference schema that are stored in the platform's table.
    pub fn stored(&self, table: Table) -> impl Iterator<Item = &'static str> {
        table
            .columns()
            .iter()
            .copied()
            .filter(move |column| self.computed(table, column).is_none())
    }

    /// Returns the reference value that the platform's `value` in `column` is mapped to.
    pub fn value(&self, table: Table, column: &str, value: &str) -> Option<&str> {
        let values = self.of(table).values.get(column)?;
        values.get(value).map(String::as_str)
    }

    /// Returns the platform's values that are mapped to `meaning` in `column`.
    pub fn values_meaning<'a>(
        &'a self,
        table: Table,
        column: &str,
        meaning: &'a str,
    ) -> Vec<&'a str> {
        let values = self.of(table).values.get(column);
        let mapped = values
            .into_iter()
            .flatten()
            .filter(|(_, reference)| *reference == meaning)
            .map(|(own, _)| own.as_str());

        // A value that is not mapped stands for itself.
        let itself = values
            .is_none_or(|values| !values.contains_key(meaning))
            .then_some(meaning);
        mapped.chain(itself).collect()
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
            .map(|name| (self.column(table, name), values.get(*name)));

        format!(
            "{:?} {:?}",
            self.qualified_name(table),
            columns.collect::<Vec<_>>()
        )
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
        let unknown = |name| format!("{name}: the reference schema has no such table or column");
        self.0.iter().flat_map(move |(name, mapping)| {
            let Some(table) = Table::by_name(name) else {
                return vec![unknown(format!("source.tables.{name}"))];
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
                .map(|(part, column)| unknown(format!("source.tables.{name}.{part}.{column}")))
                .collect()
        })
    }
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
            None => Some(format!(
                "source.lookups.{name}: the reference schema has no such table"
            )),
            Some(table) if table.is_captured() => Some(format!(
                "source.lookups.{name}: rows of this table are captured, not looked up: add missing columns with source.tables.{name}.computed"
            )),
            Some(_) => None,
        });

        self.tables
            .unknown_names()
            .chain(self.tables.malformed_names())
            .chain(self.tables.contradictions())
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
