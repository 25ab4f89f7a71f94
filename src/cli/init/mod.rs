//! `walhook init`: proposes a configuration for the platform's schema, or explains the present one.

mod dialog;
mod explain;

use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{CommandResult, print_text};
use crate::config::{Config, validate_text};
use crate::domain::survey::Survey;
use crate::primary::survey::survey;
use crate::propose::{Choices, Form, Outlets, Proposal, propose, toml};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "walhook.toml")]
    output: PathBuf,
    /// Replace the file if it exists. The ids and names of outlets are kept
    #[arg(long)]
    force: bool,
    /// Take the proposals without asking
    #[arg(long)]
    yes: bool,
    /// Print the proposals, and write nothing
    #[arg(long)]
    print: bool,
    /// Show the events that the newest N rows of each table would have raised with the present
    /// configuration; 3 rows by default, at most 100
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "3",
        value_parser = clap::value_parser!(u32).range(1..=100),
        conflicts_with_all = ["yes", "print", "force"]
    )]
    explain: Option<u32>,
}

impl Arguments {
    /// Returns whether the configuration file may be missing, because this command writes it.
    pub fn may_create(&self, path: &Path) -> bool {
        self.explain.is_none() && !path.exists()
    }
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    if let Some(rows) = arguments.explain {
        return explain::execute(rows, config).await;
    }

    let writes = !arguments.print;
    if writes && !arguments.force && arguments.output.exists() {
        anyhow::bail!(
            "{} exists: add --force to replace it, or name another file with --output",
            arguments.output.display()
        );
    }

    let asks = writes && !arguments.yes;
    if asks && !std::io::stdin().is_terminal() {
        anyhow::bail!(
            "init asks about its proposals, and there is no terminal: add --yes or --print"
        );
    }

    let choices = Choices {
        outlets: present_outlets(&arguments.output)?,
        ..Choices::default()
    };
    let survey = survey(config.source_url()?).await?;
    let proposal = match asks {
        true => dialog::decide(&survey, choices)?,
        false => propose(&survey, &choices),
    };

    let text = toml(&survey, &proposal);
    validate_text(&text)
        .context("the proposal is not a valid configuration; please report this with the schema")?;

    if arguments.print {
        print_text(&text)?;
        return Ok(proposal.obstacle().is_none());
    }

    write(&arguments.output, &text, arguments.force)?;

    for proposed in &proposal.tables {
        let found = match &proposed.form {
            Form::Mapped(mapping) => mapping.candidate.describe(&survey),
            Form::Lookup { .. } => "by a query".to_owned(),
            Form::Absent { .. } => "absent".to_owned(),
        };
        println!("{:<22} {found}", proposed.table.name());
    }

    print_next_steps(&survey, &proposal, &arguments.output);
    Ok(proposal.obstacle().is_none())
}

/// Returns the outlets of the file that will be replaced: to labels, a changed id is another outlet.
fn present_outlets(path: &Path) -> anyhow::Result<Outlets> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Outlets::default()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };

    Outlets::of_configuration(&text).with_context(|| {
        format!(
            "the ids of outlets in {} cannot be kept: fix the file, or move it away",
            path.display()
        )
    })
}

/// Never replaces a file that somebody has created meanwhile.
fn write(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .create_new(!force)
        .open(path);

    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            anyhow::bail!("{} exists: add --force to replace it", path.display())
        }
        opened => opened.with_context(|| format!("cannot write {}", path.display()))?,
    };

    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns whether the role cannot read a table that is mapped.
fn lacks_values(survey: &Survey, proposal: &Proposal) -> bool {
    proposal.tables.iter().any(|proposed| match &proposed.form {
        Form::Mapped(mapping) => {
            let columns = &survey.tables[mapping.candidate.index].columns;
            columns.iter().any(|column| !column.readable)
        }
        Form::Lookup { .. } | Form::Absent { .. } => false,
    })
}

fn print_next_steps(survey: &Survey, proposal: &Proposal, path: &Path) {
    let path = path.display();
    println!("\nwrote {path}");

    if lacks_values(survey, proposal) {
        println!(
            "role {} cannot read all of these tables, so values are missing: after the grants that `walhook setup --print` prints, run init again with --force",
            survey.role
        );
    }

    if let Some(obstacle) = proposal.obstacle() {
        println!("nothing can be captured yet: {obstacle}");
    }

    for (table, column, codes) in proposal.unknown_codes() {
        let codes: Vec<&str> = codes.iter().map(|code| code.text.as_str()).collect();
        println!(
            "to complete: what {} mean in source.tables.{}.values.{column}",
            codes.join(", "),
            table.name()
        );
    }

    println!(
        "next: read the file, `export WALHOOK_CONFIG={path}`; let a DBA run what `walhook setup --print` prints; \
         `walhook init --explain`, `walhook setup`, `walhook check`"
    );
}
