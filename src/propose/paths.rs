//! SQL expressions that follow foreign keys to what a table does not have itself.

use super::columns::matches;
use super::tables::Found;
use super::words::value_key;
use super::{Origin, found_by, sql_name};
use crate::domain::survey::{Reference, Survey, SurveyedTable};
use crate::domain::table::Table;
use crate::sql::{quote_identifier, quote_literal};

/// The most tables that are passed on the way.
const MAX_STEPS: usize = 2;

/// Returns how the id of the row of `target` is found that a row of `from` refers to.
pub(super) fn reference(
    survey: &Survey,
    found: &Found,
    from: &SurveyedTable,
    target: Table,
) -> Option<Origin> {
    let path = Path {
        survey,
        found,
        target,
    };
    path.from(from, "this", 0)
        .map(|expression| origin(from, expression))
}

/// Returns how the user is found to whose account a row of `from` belongs.
pub(super) fn owner(survey: &Survey, found: &Found, from: &SurveyedTable) -> Option<Origin> {
    reference(survey, found, from, Table::AppUser)
}

/// Returns an expression for a column of the row of `target` that a row of `from` refers to.
pub(super) fn column_of(
    survey: &Survey,
    found: &Found,
    from: &SurveyedTable,
    target: Table,
    column: &str,
) -> Option<Origin> {
    let own = &survey.tables[found.index(target)?];
    let leads = |table: Table, to: &Reference| found.leads(survey, table, to);
    let value = matches(target, column, own, &leads).first()?.name.clone();
    let path = Path {
        survey,
        found,
        target,
    };
    let (through, key) = path.direct(from)?;

    Some(Origin::Computed(found_by(&value, own, &key, &through)))
}

/// An expression that is a column of the row itself is that column.
fn origin(from: &SurveyedTable, expression: String) -> Origin {
    let own = from
        .columns
        .iter()
        .find(|column| expression == format!("this.{}", quote_identifier(&column.name)));
    match own {
        Some(column) => Origin::Column(column.name.clone()),
        None => Origin::Computed(expression),
    }
}

/// The search for rows of one table.
struct Path<'a> {
    survey: &'a Survey,
    found: &'a Found,
    target: Table,
}

impl Path<'_> {
    /// Returns the column of `from` that refers to the target, and the target's column.
    fn direct(&self, from: &SurveyedTable) -> Option<(String, String)> {
        let leads = |table: Table, to: &Reference| self.found.leads(self.survey, table, to);
        let best = super::columns::references(from, self.target, &leads)
            .into_iter()
            .next()?;
        let key = best.references.as_ref().map(|to| to.column.clone());
        Some((best.name.clone(), key.unwrap_or_else(|| "id".to_owned())))
    }

    /// Returns the expression for a row of `from` that is named `alias`.
    fn from(&self, from: &SurveyedTable, alias: &str, steps: usize) -> Option<String> {
        if let Some((column, _)) = self.direct(from) {
            return Some(format!("{alias}.{}", quote_identifier(&column)));
        }

        if steps == MAX_STEPS {
            return None;
        }

        let next = format!("t{}", steps + 1);
        let references = from
            .columns
            .iter()
            .filter_map(|column| Some((column, column.references.as_ref()?)));

        for (column, to) in references.clone() {
            let Some(through) = self
                .survey
                .tables
                .iter()
                .find(|table| table.is(&to.schema, &to.table))
            else {
                continue;
            };

            // A table that refers to itself leads nowhere.
            if through.is(&from.schema, &from.name) {
                continue;
            }

            if let Some(inner) = self.from(through, &next, steps + 1) {
                return Some(format!(
                    "(select {inner} from {} {next} where {next}.{} = {alias}.{})",
                    sql_name(through),
                    quote_identifier(&to.column),
                    quote_identifier(&column.name)
                ));
            }
        }

        let mut references = references;
        references.find_map(|(column, to)| {
            self.member(to, &format!("{alias}.{}", quote_identifier(&column.name)))
        })
    }

    /// Returns the expression for the owner among the members of an account.
    fn member(&self, account: &Reference, value: &str) -> Option<String> {
        if self.target != Table::AppUser {
            return None;
        }

        self.survey.tables.iter().find_map(|members| {
            let of_account = members
                .columns
                .iter()
                .find(|column| column.references.as_ref() == Some(account))?;
            let (user, _) = self.direct(members)?;
            let owner = members.columns.iter().find_map(|column| {
                let owner = column
                    .values
                    .iter()
                    .find(|value| value_key(&value.text) == "owner")?;
                Some(format!(
                    " and m.{} = {}",
                    quote_identifier(&column.name),
                    quote_literal(&owner.text)
                ))
            });

            Some(format!(
                "(select m.{0} from {1} m where m.{2} = {value}{3} order by m.{0} limit 1)",
                quote_identifier(&user),
                sql_name(members),
                quote_identifier(&of_account.name),
                owner.unwrap_or_default()
            ))
        })
    }
}
