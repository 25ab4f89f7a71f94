//! How the platform names its tables and columns, and what its status codes mean.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Source;
use crate::domain::table::Table;

/// One entry a table of the reference schema; what is not mentioned has the reference schema's name.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TableMappings(BTreeMap<String, TableMapping>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TableMapping {
    /// `schema.table`, or a table in `public`. A name with a dot in it is quoted as in SQL: `"my.schema"."my.table"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Reference column → the platform's column.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Reference column → names that the platform's column had in a log that is not read yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub formerly: BTreeMap<String, Vec<String>>,
    /// Reference column → the platform's value → ours, such as `status = { 5 = "complete" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, BTreeMap<String, String>>,
    /// Reference column → an SQL expression that gives its value, with `this` for the row: for what the table does not have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub computed: BTreeMap<String, String>,
    /// The platform has no such table.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
}

impl TableMappings {
    /// The platform's schema and table for `table`.
    pub fn qualified_name(&self, table: Table) -> (String, String) {
        let configured = self.0.get(table.name()).and_then(|mapping| mapping.table.as_deref());
        // What cannot be read was refused when the configuration was loaded.
        let named = configured.and_then(split_name);
        let (schema, name) = named.unwrap_or_else(|| (None, configured.unwrap_or(table.name()).to_owned()));
        (schema.unwrap_or_else(|| "public".to_owned()), name)
    }

    /// Earlier names of a column of the reference schema, to be tried in turn.
    pub fn formerly<'a>(&'a self, table: Table, column: &str) -> impl Iterator<Item = &'a str> {
        let names = self.0.get(table.name()).and_then(|mapping| mapping.formerly.get(column));
        names.into_iter().flatten().map(String::as_str)
    }

    /// Table names that cannot be read.
    pub(super) fn malformed_names(&self) -> impl Iterator<Item = String> {
        let named = self.0.iter().filter_map(|(key, mapping)| Some((key, mapping.table.as_deref()?)));
        named.filter(|(_, name)| split_name(name).is_none()).map(|(key, name)| {
            format!(
                "source.tables.{key}.table: `{name}` is neither `table` nor `schema.table`; a name with a dot is quoted"
            )
        })
    }

    /// The platform's name for a column of the reference schema.
    pub fn column<'a>(&'a self, table: Table, column: &'a str) -> &'a str {
        self.0.get(table.name()).and_then(|mapping| mapping.columns.get(column)).map_or(column, String::as_str)
    }

    /// Whether the platform has no such table.
    pub fn is_absent(&self, table: Table) -> bool {
        self.0.get(table.name()).is_some_and(|mapping| mapping.absent)
    }

    /// The expression that `column` is computed by, where the platform's table does not have it.
    pub fn computed(&self, table: Table, column: &str) -> Option<&str> {
        self.0.get(table.name())?.computed.get(column).map(String::as_str)
    }

    /// Whether rows of `table` are more than what stands in it.
    pub fn is_computed(&self, table: Table) -> bool {
        self.0.get(table.name()).is_some_and(|mapping| !mapping.computed.is_empty())
    }

    /// The columns of the reference schema that the platform's table has itself.
    pub fn stored(&self, table: Table) -> impl Iterator<Item = &'static str> {
        table.columns().iter().copied().filter(move |column| self.computed(table, column).is_none())
    }

    /// What the platform's `value` in `column` means, where the mapping says so.
    pub fn value(&self, table: Table, column: &str, value: &str) -> Option<&str> {
        let values = self.0.get(table.name())?.values.get(column)?;
        values.get(value).map(String::as_str)
    }

    /// The platform's values that mean `meaning` in `column`.
    pub fn values_meaning<'a>(&'a self, table: Table, column: &str, meaning: &'a str) -> Vec<&'a str> {
        let values = self.0.get(table.name()).and_then(|mapping| mapping.values.get(column));
        let mapped =
            values.into_iter().flatten().filter(|(_, ours)| *ours == meaning).map(|(theirs, _)| theirs.as_str());
        // A value that is not mapped means itself.
        let itself = values.is_none_or(|values| !values.contains_key(meaning)).then_some(meaning);
        mapped.chain(itself).collect()
    }

    /// All that `column` can mean by its value map.
    pub fn meanings(&self, table: Table, column: &str) -> impl Iterator<Item = &str> {
        let values = self.0.get(table.name()).and_then(|mapping| mapping.values.get(column));
        values.into_iter().flat_map(|values| values.values().map(String::as_str))
    }

    /// What is computed or absent and cannot be, in words.
    pub(super) fn impossible(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(name, mapping)| {
            let table = Table::by_name(name)?;
            if mapping.absent && table.is_indispensable() {
                return Some(format!("source.tables.{name}.absent: no event has an owner without it"));
            }
            let named = |column: &String| mapping.columns.contains_key(column) || mapping.formerly.contains_key(column);
            mapping.computed.keys().find_map(|column| {
                let reason = if !table.may_compute(column) {
                    "must come from the table itself: give it a column"
                } else if named(column) {
                    "is named in columns or formerly as well: choose one"
                } else {
                    return None;
                };
                Some(format!("source.tables.{name}.computed.{column}: {reason}"))
            })
        })
    }

    /// Names that no table or column of the reference schema has.
    pub(super) fn unknown_names(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(name, mapping)| {
            let Some(table) = Table::by_name(name) else { return vec![format!("source.tables.{name}")] };
            let columns = mapping.columns.keys().map(|column| ("columns", column));
            let formerly = mapping.formerly.keys().map(|column| ("formerly", column));
            let values = mapping.values.keys().map(|column| ("values", column));
            let computed = mapping.computed.keys().map(|column| ("computed", column));
            columns
                .chain(formerly)
                .chain(values)
                .chain(computed)
                .filter(|(_, column)| table.column(column).is_none())
                .map(|(part, column)| format!("source.tables.{name}.{part}.{column}"))
                .collect()
        })
    }
}

impl Source {
    /// Whether capture follows the changes of `table`: the platform has it, and no SQL of its own stands for it.
    pub fn follows(&self, table: Table) -> bool {
        !self.tables.is_absent(table) && !self.lookups.contains_key(table.name())
    }

    /// What cannot be as it is configured, in words.
    pub(super) fn impossible(&self) -> impl Iterator<Item = String> {
        let captured = |name: &&String| Table::by_name(name).is_some_and(Table::is_captured);
        let lookups = self.lookups.keys().filter(captured).map(|name| {
            format!(
                "source.lookups.{name}: its rows come with their changes; what they lack, source.tables.{name}.computed adds"
            )
        });
        self.tables.impossible().chain(lookups)
    }
}

/// Schema, where one is named, and table.
fn split_name(text: &str) -> Option<(Option<String>, String)> {
    let (first, rest) = take_part(text)?;
    let Some(rest) = rest else { return Some((None, first)) };
    match take_part(rest)? {
        (second, None) => Some((Some(first), second)),
        _ => None,
    }
}

/// The first part of a dotted name, and what follows its dot.
fn take_part(text: &str) -> Option<(String, Option<&str>)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (part, rest) = text.split_once('.').map_or((text, None), |(part, rest)| (part, Some(rest)));
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
        let next = if rest.is_empty() { None } else { Some(rest.strip_prefix('.')?) };
        return (!part.is_empty()).then_some((part, next));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_name_may_name_its_schema_and_may_be_quoted() {
        let both = |schema: &str, table: &str| Some((Some(schema.to_owned()), table.to_owned()));
        assert_eq!(split_name("jobs"), Some((None, "jobs".to_owned())));
        assert_eq!(split_name("dist.Jobs"), both("dist", "Jobs"));
        assert_eq!(split_name(r#""my.schema"."my ""table"".""#), both("my.schema", r#"my "table"."#));
        assert_eq!(split_name(r#"plain."dotted.table""#), both("plain", "dotted.table"));
        assert_eq!(split_name(r#""dotted.table""#), Some((None, "dotted.table".to_owned())));
        for bad in ["", ".", "a.", ".a", "a.b.c", r#""open"#, r#""a"b"#, r#""a".b.c"#, r#""""#] {
            assert_eq!(split_name(bad), None, "{bad}");
        }
    }
}
