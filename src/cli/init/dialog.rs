//! The questions of `walhook init` in a terminal.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};

use crate::domain::survey::Survey;
use crate::domain::table::Table;
use crate::propose::{
    Choice, Choices, Form, Proposal, TableProposal, display_name, possible, propose,
};

/// Asks about each table, then about each code whose meaning is not known.
pub fn decide(survey: &Survey, mut choices: Choices) -> anyhow::Result<Proposal> {
    for table in Table::ALL.iter().copied() {
        // A decision changes the proposals for the tables after it.
        let proposal = propose(survey, &choices);
        let proposed = proposal
            .tables
            .iter()
            .find(|proposed| proposed.table == table);

        if let Some(proposed) = proposed {
            ask_table(survey, proposed, &mut choices)?;
        }
    }

    let mut asked = BTreeSet::new();

    loop {
        let proposal = propose(survey, &choices);
        let next = proposal.unknown_codes().find_map(|(table, column, codes)| {
            let mut codes = codes.iter().map(|code| (table, column, code.text.clone()));
            codes.find(|code| !asked.contains(code))
        });

        let Some(code) = next else {
            return Ok(proposal);
        };

        ask_code(&code, &mut choices)?;
        asked.insert(code);
    }
}

fn ask_table(
    survey: &Survey,
    proposed: &TableProposal,
    choices: &mut Choices,
) -> anyhow::Result<()> {
    let table = proposed.table;
    let others: Vec<usize> = proposed
        .alternatives
        .iter()
        .map(|other| other.index)
        .collect();
    let found = match &proposed.form {
        Form::Mapped(mapping) => mapping.candidate.describe(survey),
        Form::Lookup { reason, .. } => format!("a query: {reason}"),
        Form::Absent { reason } => format!("absent: {reason}"),
    };

    println!("\n{}: {found}", table.name());
    for (number, other) in proposed.alternatives.iter().enumerate() {
        println!("  {}  {}", number + 1, other.describe(survey));
    }

    let may_be_absent = !table.is_indispensable();
    let absent = if may_be_absent { ", a: absent" } else { "" };

    loop {
        let answer = ask(&format!(
            "Enter: accept, a number: another table{absent}, or schema.table"
        ))?;
        let named = |table: &usize| display_name(&survey.tables[*table]) == answer;
        let by_number = answer
            .parse::<usize>()
            .ok()
            .and_then(|number| others.get(number.checked_sub(1)?).copied());

        let chosen = match answer.as_str() {
            "" => return Ok(()),
            "a" if may_be_absent => Some(Choice::Absent),
            _ => by_number
                .or_else(|| (0..survey.tables.len()).find(named))
                .map(Choice::Mapped),
        };

        if let Some(chosen) = chosen {
            choices.tables.insert(table, chosen);
            return Ok(());
        }

        println!("There is no such table.");
    }
}

fn ask_code(
    (table, column, code): &(Table, &'static str, String),
    choices: &mut Choices,
) -> anyhow::Result<()> {
    let possible = possible(*table, column);
    println!(
        "\n{}.{column}: what does {code} mean? One of {}",
        table.name(),
        possible.join(", ")
    );

    let is_closed = table.closed_values(column).is_some();
    loop {
        let answer = ask("Enter: none of these")?;
        if answer.is_empty() {
            return Ok(());
        }

        if possible.contains(&answer.as_str()) || !is_closed {
            choices.codes.insert((*table, column, code.clone()), answer);
            return Ok(());
        }

        println!("Choose one of {}.", possible.join(", "));
    }
}

fn ask(question: &str) -> anyhow::Result<String> {
    print!("{question}: ");
    std::io::stdout().flush()?;

    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer)?;
    anyhow::ensure!(read > 0, "the input has ended: nothing was written");
    Ok(answer.trim().to_owned())
}
