//! Proposes how the platform's tables, columns and values map to the reference schema, from a
//! [`Survey`] of its schema. Names, types, foreign keys and values are the evidence. No I/O.

mod columns;
mod outlets;
mod paths;
mod render;
mod tables;
mod values;
mod words;

use std::collections::BTreeMap;

use crate::domain::survey::{Survey, SurveyedTable};
use crate::domain::table::Table;
use crate::sql::{quote_identifier, quote_qualified};

pub use outlets::Outlets;
pub use render::toml;
pub use values::{Code, ValueMap, meaning_of, possible};

/// What a person has decided.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    pub tables: BTreeMap<Table, Choice>,
    /// What a code means, by table, column of the reference schema, and code.
    pub codes: BTreeMap<(Table, &'static str, String), String>,
    /// The outlets of the present configuration.
    pub outlets: Outlets,
}

/// The decision about one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Absent,
    /// The table with this index in the survey.
    Mapped(usize),
}

/// A proposed mapping of every table.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub tables: Vec<TableProposal>,
}

/// The proposal for one table of the reference schema.
#[derive(Clone, Debug)]
pub struct TableProposal {
    pub table: Table,
    pub form: Form,
    /// The other tables of the platform that it may be, the most likely first.
    pub alternatives: Vec<Candidate>,
}

/// How a table of the reference schema is found.
#[derive(Clone, Debug)]
pub enum Form {
    Mapped(Mapping),
    /// By a query in `source.lookups`.
    Lookup {
        sql: String,
        reason: String,
    },
    Absent {
        reason: String,
    },
}

/// A table of the platform that may be a table of the reference schema.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The index in the survey.
    pub index: usize,
    /// How likely it is, between 0 and 1.
    pub score: f64,
    /// The columns of the reference schema for which it has one of its own, and their number.
    pub found: (usize, usize),
}

/// A mapped table.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub candidate: Candidate,
    pub columns: Vec<ColumnProposal>,
    /// The column and the condition by which deleted rows are left out.
    pub only: Option<(String, &'static str)>,
}

/// The proposal for one column of the reference schema.
#[derive(Clone, Debug)]
pub struct ColumnProposal {
    pub column: &'static str,
    pub origin: Origin,
    /// The evidence, or what a person should check.
    pub note: Option<String>,
    pub values: ValueMap,
    /// Other columns that it may be.
    pub alternatives: Vec<String>,
}

/// Where the values of a column come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Column(String),
    /// An SQL expression, in which `this` is the row.
    Computed(String),
}

impl Candidate {
    /// Returns the table's name and how likely it is.
    pub fn describe(&self, survey: &Survey) -> String {
        format!(
            "{} ({} confidence)",
            display_name(&survey.tables[self.index]),
            self.confidence()
        )
    }

    fn confidence(&self) -> &'static str {
        match self.score {
            score if score >= 0.8 => "high",
            score if score >= 0.65 => "medium",
            _ => "low",
        }
    }
}

impl Proposal {
    /// Returns the reason why nothing can be captured with this proposal, if there is one.
    pub fn obstacle(&self) -> Option<&str> {
        self.tables
            .iter()
            .find_map(|proposed| match &proposed.form {
                Form::Absent { reason } if proposed.table.is_indispensable() => {
                    Some(reason.as_str())
                }
                _ => None,
            })
    }

    /// Returns the codes whose meaning is not known, by table and column of the reference schema.
    pub fn unknown_codes(&self) -> impl Iterator<Item = (Table, &'static str, &[Code])> {
        self.tables.iter().flat_map(|proposed| {
            let columns = match &proposed.form {
                Form::Mapped(mapping) => mapping.columns.as_slice(),
                _ => &[],
            };
            let unknown = columns
                .iter()
                .filter(|column| !column.values.unknown.is_empty());
            unknown.map(|column| {
                (
                    proposed.table,
                    column.column,
                    column.values.unknown.as_slice(),
                )
            })
        })
    }
}

/// Proposes a mapping of every table.
pub fn propose(survey: &Survey, choices: &Choices) -> Proposal {
    let found = tables::assign(survey, choices);
    let tables = Table::ALL
        .iter()
        .map(|table| columns::map(survey, choices, &found, *table));
    let mut proposal = Proposal {
        tables: tables.collect(),
    };

    leave_out_dependents(&mut proposal);
    proposal
}

/// Marks tables as absent whose events need a table that is absent, and add-ons that no event needs.
fn leave_out_dependents(proposal: &mut Proposal) {
    let absent = |proposal: &Proposal, table: Table| {
        let mut tables = proposal.tables.iter();
        tables.any(|found| found.table == table && matches!(found.form, Form::Absent { .. }))
    };

    let has_tracks = !absent(proposal, Table::Track);
    let has_transcodes = has_tracks && !absent(proposal, Table::TranscoderQueue);
    let has_addon_events =
        !absent(proposal, Table::PreflightReport) || !absent(proposal, Table::StreamRadarFlag);

    for proposed in &mut proposal.tables {
        let reason = match proposed.table {
            Table::TranscoderQueue if !has_tracks => "its events need the tracks, which are absent",
            Table::TranscoderQueueFile if !has_transcodes => "there are no transcodes",
            Table::UserAddon if !has_addon_events => "no event needs an add-on",
            _ => continue,
        };

        if !matches!(proposed.form, Form::Absent { .. }) {
            proposed.form = Form::Absent {
                reason: reason.to_owned(),
            };
        }
    }
}

/// Returns a table's name as the configuration has it.
pub fn display_name(table: &SurveyedTable) -> String {
    let part = |name: &str| match name.contains(['.', '"']) {
        true => quote_identifier(name),
        false => name.to_owned(),
    };
    format!("{}.{}", part(&table.schema), part(&table.name))
}

/// Returns a table's name in SQL.
fn sql_name(table: &SurveyedTable) -> String {
    quote_qualified(&table.schema, &table.name)
}

/// Returns an expression for a column of the row of `table` whose `key` is what the row `this` has in
/// its column `through`.
fn found_by(column: &str, table: &SurveyedTable, key: &str, through: &str) -> String {
    format!(
        "(select found.{} from {} found where found.{} = this.{})",
        quote_identifier(column),
        sql_name(table),
        quote_identifier(key),
        quote_identifier(through)
    )
}
