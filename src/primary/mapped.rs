//! The platform's tables in SQL, by the names that the configuration maps them to.

use crate::config::TableMappings;
use crate::domain::change::{Datum, Tuple};
use crate::domain::table::Table;
use crate::postgres::{limited, logged, quote_identifier, quote_qualified};

/// Returns the quoted name of the platform's table.
pub(crate) fn table_name(mappings: &TableMappings, table: Table) -> String {
    let (schema, name) = mappings.qualified_name(table);
    quote_qualified(&schema, &name)
}

/// Returns the quoted name of a column.
pub(crate) fn column_name(mappings: &TableMappings, table: Table, column: &str) -> String {
    quote_identifier(mappings.column(table, column))
}

/// Returns SQL expressions for the columns of a row named `this`, as text in the form that the WAL
/// has, and at most as long as events need.
pub(crate) fn as_text(mappings: &TableMappings, table: Table, columns: &[&str]) -> String {
    let as_text = |column: &&str| {
        let text = match mappings.computed(table, column) {
            Some(expression) => format!("({expression})::text"),
            None => logged(&format!("this.{}", column_name(mappings, table, column))),
        };
        limited(text, table.most_characters(column))
    };

    columns.iter().map(as_text).collect::<Vec<_>>().join(", ")
}

/// Builds a row from the values of `columns`, with the configured value maps applied. Other columns
/// are absent.
pub(crate) fn tuple<'a>(
    mappings: &TableMappings,
    table: Table,
    columns: &[&'static str],
    value: impl Fn(usize) -> Option<&'a str>,
) -> Tuple {
    let mut tuple = Tuple::absent(table);

    for (index, name) in columns.iter().enumerate() {
        let datum = value(index).map_or(Datum::Null, |text| {
            Datum::text(mappings.value(table, name, text).unwrap_or(text))
        });

        if let Some(column) = table.column(name) {
            tuple.set(column, datum);
        }
    }

    tuple
}
