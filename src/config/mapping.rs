//! How the platform names its tables and columns, and what its status codes mean.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::table::Table;

/// One entry a table of the reference schema; what is not mentioned has the reference schema's name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableMappings(BTreeMap<String, TableMapping>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableMapping {
    /// `schema.table`, or a table in `public`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Reference column → the platform's column.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Reference column → the platform's value → ours, such as `status = { 5 = "complete" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, BTreeMap<String, String>>,
}

impl TableMappings {
    /// The platform's schema and table for `table`.
    pub fn qualified_name(&self, table: Table) -> (String, String) {
        let configured = self.0.get(table.name()).and_then(|mapping| mapping.table.as_deref());
        match configured.unwrap_or(table.name()).split_once('.') {
            Some((schema, name)) => (schema.to_owned(), name.to_owned()),
            None => ("public".to_owned(), configured.unwrap_or(table.name()).to_owned()),
        }
    }

    /// The platform's name for a column of the reference schema.
    pub fn column<'a>(&'a self, table: Table, column: &'a str) -> &'a str {
        self.0.get(table.name()).and_then(|mapping| mapping.columns.get(column)).map_or(column, String::as_str)
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

    /// Names that no table or column of the reference schema has.
    pub(super) fn unknown_names(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(name, mapping)| {
            let Some(table) = Table::by_name(name) else { return vec![format!("source.tables.{name}")] };
            let columns = mapping.columns.keys().map(|column| ("columns", column));
            let values = mapping.values.keys().map(|column| ("values", column));
            columns
                .chain(values)
                .filter(|(_, column)| table.column(column).is_none())
                .map(|(part, column)| format!("source.tables.{name}.{part}.{column}"))
                .collect()
        })
    }
}
