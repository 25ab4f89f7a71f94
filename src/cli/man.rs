//! `walhook man`: manual pages, generated from the help texts.

use anyhow::Context;
use clap::CommandFactory;
use std::path::PathBuf;

use super::{Cli, CommandResult};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Directory to write the pages to: walhook.1 and one page per command
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub fn execute(arguments: &Arguments) -> CommandResult {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("cannot write the pages to {}", directory.display()))?;

    Ok(true)
}
