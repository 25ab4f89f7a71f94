//! `walhook man`: manual pages, generated from the help texts.

use anyhow::Context;
use clap::CommandFactory;
use std::path::PathBuf;

use super::CommandResult;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Directory to write the pages to: that of the program, and one per command
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub fn execute<Program: CommandFactory>(arguments: &Arguments) -> CommandResult {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(Program::command(), directory)
        .with_context(|| format!("cannot write the pages to {}", directory.display()))?;

    Ok(true)
}
