//! `walhook setup`: prepares the store and the primary.

use std::process::ExitCode;

use super::CommandResult;
use crate::capture::setup::{setup, statements};
use crate::config::Config;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print the SQL for the primary instead, and touch nothing
    #[arg(long)]
    print: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    if arguments.print {
        print!("{}", statements(&config.source, config.source_url().ok()));
        return Ok(ExitCode::SUCCESS);
    }
    let done = setup(&config.source, config.source_url()?, config.store_url()?).await?;
    for line in &done {
        println!("{line}");
    }
    if done.is_empty() {
        println!("everything is set up");
    }
    Ok(ExitCode::SUCCESS)
}
