//! Finds the table of the platform for each table of the reference schema.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::matches;
use super::paths::owner;
use super::words::{closeness, of_table, words};
use super::{Candidate, Choice, Choices};
use crate::domain::survey::{Reference, Survey, SurveyedTable};
use crate::domain::table::Table;

/// The lowest score of a table that is proposed, and of one that is named as an alternative.
const PROPOSED: f64 = 0.5;
const NAMED: f64 = 0.3;
/// The most alternatives that are named.
const MAX_ALTERNATIVES: usize = 3;
/// The parts of the name and of the columns in the score.
const NAME: f64 = 0.55;
const COLUMNS: f64 = 0.45;

/// The tables of the platform that were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub tables: BTreeMap<Table, Candidate>,
    pub alternatives: BTreeMap<Table, Vec<Candidate>>,
}

impl Found {
    pub fn index(&self, table: Table) -> Option<usize> {
        self.tables.get(&table).map(|candidate| candidate.index)
    }

    /// Returns how well a reference leads to `table`: 1 or 0.
    pub fn leads(&self, survey: &Survey, table: Table, to: &Reference) -> f64 {
        let target = self.index(table).map(|index| &survey.tables[index]);
        f64::from(target.is_some_and(|target| target.is(&to.schema, &to.table)))
    }
}

/// Finds the table for each table of the reference schema: the best pairs first, no table twice.
pub(super) fn assign(survey: &Survey, choices: &Choices) -> Found {
    let mut pairs: Vec<(Table, Candidate)> = Vec::new();

    for table in Table::ALL.iter().copied() {
        for index in 0..survey.tables.len() {
            pairs.push((table, rate(survey, table, index)));
        }
    }

    pairs.sort_by(|(_, one), (_, other)| other.score.total_cmp(&one.score));

    let mut found = Found::default();
    let mut taken: BTreeSet<usize> = BTreeSet::new();

    for (table, choice) in &choices.tables {
        if let Choice::Mapped(index) = choice {
            taken.insert(*index);
            found.tables.insert(*table, rate(survey, *table, *index));
        }
    }

    for (table, candidate) in &pairs {
        let is_free = !choices.tables.contains_key(table) && !found.tables.contains_key(table);
        if is_free && candidate.score >= PROPOSED && taken.insert(candidate.index) {
            found.tables.insert(*table, candidate.clone());
        }
    }

    if !choices.tables.contains_key(&Table::Label) {
        find_label(survey, &mut found, &taken);
    }

    for (table, candidate) in pairs {
        // Columns alone say little: many tables have a name or a status.
        let is_named = name_score(table, &survey.tables[candidate.index]) > 0.0;
        let is_free = !found
            .tables
            .values()
            .any(|proposed| proposed.index == candidate.index);
        let others = found.alternatives.entry(table).or_default();
        if is_named && is_free && candidate.score >= NAMED && others.len() < MAX_ALTERNATIVES {
            others.push(candidate);
        }
    }

    found
}

/// Without a table of labels, releases may belong to an account that belongs to a user.
fn find_label(survey: &Survey, found: &mut Found, taken: &BTreeSet<usize>) {
    let Some(release) = found
        .index(Table::Release)
        .filter(|_| found.index(Table::Label).is_none())
    else {
        return;
    };

    let references = survey.tables[release]
        .columns
        .iter()
        .filter_map(|column| column.references.as_ref());
    let owned = references
        .filter_map(|to| {
            survey
                .tables
                .iter()
                .position(|table| table.is(&to.schema, &to.table))
        })
        .find(|index| {
            !taken.contains(index) && owner(survey, found, &survey.tables[*index]).is_some()
        });

    if let Some(index) = owned {
        let candidate = rate(survey, Table::Label, index);
        found.tables.insert(Table::Label, candidate);
    }
}

/// Rates how likely it is that a table of the platform is `table`.
fn rate(survey: &Survey, table: Table, index: usize) -> Candidate {
    let own = &survey.tables[index];
    let name = name_score(table, own);
    let leads = |table: Table, to: &Reference| {
        let target = survey
            .tables
            .iter()
            .find(|found| found.is(&to.schema, &to.table));
        target.map_or(0.0, |target| name_score(table, target))
    };

    let mut weights = 0.0;
    let mut sum = 0.0;
    let mut matched = 0;
    let columns = table.columns().iter().filter(|column| **column != "id");

    for column in columns.clone() {
        let is_essential = table.watched().contains(column) || column.ends_with("_id");
        let weight = if is_essential { 2.0 } else { 1.0 };
        let best = matches(table, column, own, &leads)
            .first()
            .map_or(0.0, |best| best.score);

        weights += weight;
        sum += weight * best;
        matched += usize::from(best > 0.0);
    }

    Candidate {
        index,
        score: NAME * name + COLUMNS * sum / weights,
        found: (matched, columns.count()),
    }
}

fn name_score(table: Table, own: &SurveyedTable) -> f64 {
    closeness(&words(&own.name), of_table(table))
}
