//! `walhook completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CommandResult};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub fn execute(arguments: &Arguments) -> CommandResult {
    clap_complete::generate(arguments.shell, &mut Cli::command(), "walhook", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
