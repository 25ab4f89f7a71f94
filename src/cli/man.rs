//! `walhook man`: the manual pages, made from the command line's own help.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use super::{Cli, CommandResult};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where to write the pages: walhook.1 and one for each command
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub fn execute(arguments: &Arguments) -> CommandResult {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("writing the pages to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
