//! `walhook completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CommandResult, print_text};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub fn execute(arguments: &Arguments) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "walhook", &mut script);
    print_text(&String::from_utf8(script)?)
}
