//! Writes a proposal as an annotated configuration file.

use std::fmt::Write;

use super::columns::own_statuses;
use super::values::{ValueMap, possible};
use super::{
    Candidate, Code, ColumnProposal, Form, Mapping, Origin, Proposal, TableProposal, display_name,
};
use crate::domain::survey::Survey;
use crate::domain::table::Table;

const INTO_MEMORY: &str = "a string can be written to";

/// The length at which notes are wrapped.
const WIDTH: usize = 100;

/// Returns the configuration file for a proposal.
pub fn toml(survey: &Survey, proposal: &Proposal) -> String {
    let mut text = format!(
        "# How database {} maps to Walhook's reference schema: a proposal of `walhook init`, by what role\n\
         # {} sees. Read it, correct what is wrong, then run `walhook init --explain` to see the events\n\
         # that the newest rows would have raised. The next steps are `walhook setup` and `walhook check`.\n\
         # The guide explains each part: docs/integrators.md.\n",
        survey.database, survey.role
    );

    if let Some(obstacle) = proposal.obstacle() {
        text.push('\n');
        note(
            &mut text,
            &format!("Nothing can be captured yet: {obstacle}"),
        );
    }

    if survey.wal_level != "logical" {
        text.push('\n');
        note(
            &mut text,
            &format!(
                "wal_level is {}. Set it to logical and restart the server, or capture with triggers:",
                survey.wal_level
            ),
        );
        text.push_str("# [source]\n# capture = \"trigger\"\n");
    }

    let statuses: Vec<String> = proposal
        .tables
        .iter()
        .filter(|proposed| proposed.table == Table::DistroQueue)
        .flat_map(mapped_columns)
        .filter(|column| column.column == "status")
        .flat_map(|column| own_statuses(&column.values))
        .collect();

    if !statuses.is_empty() {
        text.push_str("\n[source]\n");
        note(
            &mut text,
            "Distribution statuses of your own. Map them below if one means a documented status.",
        );
        let names: Vec<String> = statuses.iter().map(|name| string(name)).collect();
        writeln!(text, "distribution_statuses = [{}]", names.join(", ")).expect(INTO_MEMORY);
    }

    for proposed in &proposal.tables {
        text.push('\n');
        table(&mut text, survey, proposed);
    }

    lookups(&mut text, proposal);
    text
}

fn mapped_columns(proposed: &TableProposal) -> &[ColumnProposal] {
    match &proposed.form {
        Form::Mapped(mapping) => &mapping.columns,
        _ => &[],
    }
}

fn table(text: &mut String, survey: &Survey, proposed: &TableProposal) {
    let name = proposed.table.name();

    match &proposed.form {
        Form::Mapped(mapping) => note(
            text,
            &format!("{name}: {}", evidence(survey, &mapping.candidate)),
        ),
        Form::Lookup { reason, .. } => note(
            text,
            &format!("{name}: see [source.lookups] below; {reason}"),
        ),
        Form::Absent { reason } if proposed.table.is_indispensable() => {
            note(text, &format!("{name}: not mapped yet, because {reason}."));
        }
        Form::Absent { reason } => note(text, &format!("{name}: absent, because {reason}.")),
    }

    if !proposed.alternatives.is_empty() {
        let others: Vec<String> = proposed
            .alternatives
            .iter()
            .map(|other| {
                format!(
                    "{} ({})",
                    display_name(&survey.tables[other.index]),
                    other.confidence()
                )
            })
            .collect();
        note(text, &format!("It may also be {}.", others.join(", ")));
    }

    match &proposed.form {
        Form::Mapped(mapping) => mapped(text, survey, proposed.table, mapping),
        // Without them, no event has an owner, so they cannot be absent.
        Form::Absent { .. } if proposed.table.is_indispensable() => {
            writeln!(text, "# [source.tables.{name}]\n# table = \"\"").expect(INTO_MEMORY);
        }
        Form::Absent { .. } => {
            writeln!(text, "[source.tables.{name}]\nabsent = true").expect(INTO_MEMORY);
        }
        Form::Lookup { .. } => {}
    }
}

/// Describes why a table was chosen.
pub(super) fn evidence(survey: &Survey, candidate: &Candidate) -> String {
    let own = &survey.tables[candidate.index];
    let (found, all) = candidate.found;
    let rows = match own.rows {
        Some(rows) => format!("about {rows} rows"),
        None => "never analyzed".to_owned(),
    };

    format!(
        "{}, confidence {} ({:.0} %: its name, and {found} of {all} columns); {rows}.",
        display_name(own),
        candidate.confidence(),
        candidate.score * 100.0
    )
}

fn mapped(text: &mut String, survey: &Survey, table: Table, mapping: &Mapping) {
    let own = &survey.tables[mapping.candidate.index];
    let section = format!("source.tables.{}", table.name());

    let table_name = string(&display_name(own));
    writeln!(text, "[{section}]\ntable = {table_name}").expect(INTO_MEMORY);

    if let Some((column, condition)) = &mapping.only {
        note(
            text,
            "Deleted rows raise no events. A row that is restored counts as new.",
        );
        writeln!(text, "only = {{ {} = {condition} }}", key(column)).expect(INTO_MEMORY);
    }

    let unreadable: Vec<&str> = own
        .columns
        .iter()
        .filter(|column| !column.readable)
        .map(|column| column.name.as_str())
        .collect();

    if !unreadable.is_empty() {
        let names = unreadable.join(", ");
        note(
            text,
            &format!(
                "Role {} cannot read {names}, so their values are not known here: grant select, and run init again.",
                survey.role
            ),
        );
    }

    let stored = mapping
        .columns
        .iter()
        .filter_map(|column| match &column.origin {
            Origin::Column(name) => Some((column, name)),
            Origin::Computed(_) => None,
        });
    writeln!(text, "[{section}.columns]").expect(INTO_MEMORY);
    for (column, name) in stored {
        line(text, column, &string(name));
    }

    let mut computed = mapping
        .columns
        .iter()
        .filter_map(|column| match &column.origin {
            Origin::Computed(expression) => Some((column, expression)),
            Origin::Column(_) => None,
        })
        .peekable();
    if computed.peek().is_some() {
        writeln!(text, "[{section}.computed]").expect(INTO_MEMORY);
    }

    for (column, expression) in computed {
        line(text, column, &string(expression));
    }

    values(text, &section, table, mapping);
}

/// Writes one line of `columns` or `computed`.
fn line(text: &mut String, column: &ColumnProposal, value: &str) {
    let others = column.alternatives.join(" or ");
    let mut notes: Vec<String> = column.note.iter().cloned().collect();
    if !others.is_empty() {
        notes.push(format!("or {others}"));
    }

    let assignment = format!("{} = {value}", column.column);
    match notes.is_empty() {
        true => text.push_str(&assignment),
        false => {
            let _ = write!(text, "{assignment}  # {}", notes.join("; "));
        }
    }
    text.push('\n');
}

fn values(text: &mut String, section: &str, table: Table, mapping: &Mapping) {
    let is_noted = |column: &&ColumnProposal| column.values != ValueMap::default();
    let mut columns = mapping.columns.iter().filter(is_noted).peekable();

    if columns.peek().is_some() {
        writeln!(text, "[{section}.values]").expect(INTO_MEMORY);
    }

    for column in columns {
        let map = &column.values;
        if !map.passed_on.is_empty() {
            let effect = match table.closed_values(column.column) {
                Some(_) => "no event",
                None => "no meaning, so they are used as they are",
            };
            note(
                text,
                &format!("{}: {effect}: {}.", column.column, shares(&map.passed_on)),
            );
        }

        if let Some(meaning) = map.unseen {
            note(
                text,
                &format!(
                    "{}: no value was found that means {meaning}: name it, unless it is `{meaning}` itself.",
                    column.column
                ),
            );
        }

        let mapped = map
            .mapped
            .iter()
            .map(|(own, meaning)| (own.as_str(), meaning.as_str()));

        if map.unknown.is_empty() {
            if !map.mapped.is_empty() {
                writeln!(text, "{} = {}", column.column, inline(mapped)).expect(INTO_MEMORY);
            }
            continue;
        }

        let meanings = possible(table, column.column).join(", ");
        note(
            text,
            &format!(
                "{}: only you know what these codes mean: {}. Write one of {meanings} for each that means it, remove the \
                 others, and remove the `#`.",
                column.column,
                shares(&map.unknown)
            ),
        );
        let unknown = map.unknown.iter().map(|code| (code.text.as_str(), ""));
        writeln!(
            text,
            "# {} = {}",
            column.column,
            inline(mapped.chain(unknown))
        )
        .expect(INTO_MEMORY);
    }
}

fn inline<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<String> = pairs
        .map(|(own, meaning)| format!("{} = {}", key(own), string(meaning)))
        .collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// Lists values with their shares of the rows.
fn shares(codes: &[Code]) -> String {
    let share = |code: &Code| match code.share {
        share if share > 0.0 => format!("{} ({:.0} %)", code.text, (share * 100.0).max(1.0)),
        _ => format!("{} (in no row)", code.text),
    };
    codes.iter().map(share).collect::<Vec<_>>().join(", ")
}

fn lookups(text: &mut String, proposal: &Proposal) {
    let mut queries = proposal
        .tables
        .iter()
        .filter_map(|proposed| match &proposed.form {
            Form::Lookup { sql, reason } => Some((proposed.table, sql, reason)),
            _ => None,
        })
        .peekable();

    if queries.peek().is_some() {
        text.push_str("\n[source.lookups]\n");
    }

    for (table, sql, reason) in queries {
        note(text, &format!("{}: {reason}.", table.name()));
        writeln!(text, "{} = {}", table.name(), string(sql)).expect(INTO_MEMORY);
    }
}

/// Writes a comment, wrapped at [`WIDTH`].
fn note(text: &mut String, words: &str) {
    let mut line = String::from("#");

    for word in words.split_whitespace() {
        if line.len() + word.len() >= WIDTH && line.len() > 1 {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }

        line.push(' ');
        line.push_str(word);
    }

    text.push_str(&line);
    text.push('\n');
}

fn key(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.to_owned(),
        false => string(name),
    }
}

fn string(text: &str) -> String {
    // Without quotes to escape, if that is possible.
    match text.contains('"') && !text.contains(['\'', '\n', '\t']) {
        true => format!("'{text}'"),
        false => toml::Value::String(text.to_owned()).to_string(),
    }
}
