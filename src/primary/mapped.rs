//! The platform's tables in SQL, by the names that the configuration maps them to.

use crate::config::{Condition, TableMappings};
use crate::domain::change::Tuple;
use crate::domain::extra::{Extra, MAX_CHARACTERS};
use crate::domain::table::Table;
use crate::postgres::{fill, limited, logged, quote_identifier, quote_literal, quote_qualified};
use crate::sql::primary as sql;

/// Returns the quoted name of the platform's table.
pub(crate) fn table_name(mappings: &TableMappings, table: Table) -> String {
    let (schema, name) = mappings.qualified_name(table);
    quote_qualified(&schema, &name)
}

/// Returns the quoted name of a column.
pub(crate) fn column_name(mappings: &TableMappings, table: Table, column: &str) -> String {
    quote_identifier(mappings.column(table, column))
}

/// Returns whether Walhook reads a column of the platform's table: it is mapped, or an expression
/// for a computed column names it.
pub(crate) fn reads(mappings: &TableMappings, table: Table, column: &str) -> bool {
    let mut mapped = mappings.platform_columns(table).map(|(_, name)| name);
    let computed = table.columns().iter();
    let mut computed = computed.filter_map(|name| mappings.computed(table, name));

    mapped.any(|name| name == column) || computed.any(|sql| names_column(sql, column))
}

/// Returns whether an SQL expression over a row named `this` names one of its columns, or the whole
/// row.
fn names_column(sql: &str, column: &str) -> bool {
    let tokens = tokens(sql);
    let at = |index: Option<usize>| {
        index
            .and_then(|index| tokens.get(index))
            .map(String::as_str)
    };

    tokens.iter().enumerate().any(|(index, token)| {
        let is_qualified = at(index.checked_sub(1)) == Some(".");
        let is_of_this = !is_qualified || at(index.checked_sub(2)) == Some("this");
        let is_row = token == "this" && at(index.checked_add(1)) != Some(".");

        is_row || (is_of_this && token.eq_ignore_ascii_case(column))
    })
}

/// Returns the names and symbols in SQL, without the contents of strings.
fn tokens(sql: &str) -> Vec<String> {
    let is_word = |letter: &char| letter.is_alphanumeric() || matches!(letter, '_' | '$');
    let code: Vec<&str> = sql.split('\'').step_by(2).collect();
    let mut tokens = Vec::new();

    for (index, part) in code.join(" ").split('"').enumerate() {
        if index % 2 == 1 {
            tokens.push(part.to_owned());
            continue;
        }

        let mut letters = part.chars().peekable();
        while let Some(letter) = letters.next() {
            let mut token = letter.to_string();
            while is_word(&letter) && letters.peek().is_some_and(is_word) {
                token.extend(letters.next());
            }

            if !letter.is_whitespace() {
                tokens.push(token);
            }
        }
    }

    tokens
}

/// Returns the expression for a column of the platform of a row named `this`.
fn on_this(name: &str) -> String {
    format!("this.{}", quote_identifier(name))
}

/// Returns SQL expressions for the columns of a row named `this`, as text in the form that the WAL
/// has, and at most as long as events need.
pub(crate) fn as_text(mappings: &TableMappings, table: Table, columns: &[&str]) -> String {
    let as_text = |column: &&str| {
        let text = match mappings.computed(table, column) {
            Some(expression) => format!("({expression})::text"),
            None => logged(&on_this(mappings.column(table, column))),
        };
        limited(text, table.most_characters(column))
    };

    columns.iter().map(as_text).collect::<Vec<_>>().join(", ")
}

/// Returns SQL expressions as [`as_text`] does, and one for the row's extra values if there are any.
/// [`tuple()`] reads the result.
pub(crate) fn with_extra(mappings: &TableMappings, table: Table, columns: &[&str]) -> String {
    let columns = as_text(mappings, table, columns);

    match extra(mappings, table, on_this) {
        Some(extra) => format!("{columns}, {extra}"),
        None => columns,
    }
}

/// Returns an SQL expression for a row's extra values as a JSON object, if there are any. `value`
/// returns the expression for a column.
pub(crate) fn extra(
    mappings: &TableMappings,
    table: Table,
    value: impl Fn(&str) -> String,
) -> Option<String> {
    let members: Vec<String> = mappings
        .extra(table)
        .iter()
        .map(|(key, column)| {
            let names = [
                ("key", &*quote_literal(key)),
                ("value", &*value(column)),
                ("characters", &MAX_CHARACTERS.to_string()),
            ];
            fill(sql::lookup::EXTRA.trim_end(), &names)
        })
        .collect();

    let object = || format!("json_build_object({})::text", members.join(", "));
    (!members.is_empty()).then(object)
}

/// Returns the SQL condition that the table's rows must meet, if there is one. `column` returns the
/// expression for a column, and `text` the one for its text form.
pub(crate) fn condition(
    mappings: &TableMappings,
    table: Table,
    column: impl Fn(&str) -> String,
    text: impl Fn(&str) -> String,
) -> Option<String> {
    let conditions: Vec<String> = mappings
        .only(table)
        .iter()
        .map(|(name, condition)| match condition {
            Condition::Null => format!("{} is null", column(name)),
            Condition::NotNull => format!("{} is not null", column(name)),
            Condition::AnyOf(values) => {
                let values: Vec<String> = values.iter().map(|text| quote_literal(text)).collect();
                format!("{} in ({})", text(name), values.join(", "))
            }
        })
        .collect();

    (!conditions.is_empty()).then(|| conditions.join(" and "))
}

/// Returns the condition on a row named `this`; `true` if there is none.
pub(crate) fn condition_on_this(mappings: &TableMappings, table: Table) -> String {
    let condition = condition(mappings, table, on_this, |name| logged(&on_this(name)));
    condition.unwrap_or_else(|| "true".to_owned())
}

/// Returns the condition on rows that events of other rows need. Captured rows, releases among
/// them, are found whether or not they meet their table's condition.
pub(crate) fn looked_up_condition(mappings: &TableMappings, table: Table) -> String {
    match table.is_captured() {
        true => "true".to_owned(),
        false => condition_on_this(mappings, table),
    }
}

/// Builds a row from the values of `columns` and its extra values, with the configured value maps
/// applied. Other columns are absent.
pub(crate) fn tuple<'a>(
    mappings: &TableMappings,
    table: Table,
    columns: &[&'static str],
    value: impl Fn(usize) -> Option<&'a str>,
) -> Tuple {
    let mut tuple = Tuple::absent(table);

    for (index, name) in columns.iter().enumerate() {
        if let Some(column) = table.column(name) {
            mappings.set(&mut tuple, table, column, value(index));
        }
    }

    if !mappings.extra(table).is_empty() {
        let extra = value(columns.len());
        tuple.extra = extra.map(Extra::from_json).unwrap_or_default();
    }

    tuple
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_name_columns_of_their_own_row() {
        let sql = "case when this.\"Kind\" = 'secret' then amount_cents / 100 end || (select c.code from c)";
        let named = ["Kind", "amount_cents"];
        let others = ["secret", "code", "amount"];

        assert!(named.iter().all(|column| names_column(sql, column)));
        assert!(!others.iter().any(|column| names_column(sql, column)));
        assert!(names_column("to_jsonb(this)::text", "any"));
        assert!(names_column("this.\"Two Words\"", "Two Words"));
    }
}
