//! `walhook completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{CommandResult, print_text};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub fn execute<Program: CommandFactory>(arguments: &Arguments) -> CommandResult {
    let mut script = Vec::new();
    let mut command = Program::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    print_text(&String::from_utf8(script)?)
}
