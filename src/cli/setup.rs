//! `walhook setup`: prepares the store and the primary.

use super::{CommandResult, print_steps, print_text};
use crate::config::{CaptureMode, Config};
use crate::primary::install::setup;
use crate::primary::print::{statements, trigger_statements};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print the SQL for the primary and change nothing
    #[arg(long)]
    print: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    if arguments.print {
        let text = match config.source.capture {
            CaptureMode::Wal => statements(&config.source, config.source_url().ok()),
            // The triggers depend on the tables' keys and types.
            CaptureMode::Trigger => {
                trigger_statements(&config.source, config.source_url()?).await?
            }
        };
        return print_text(&text);
    }

    let done = setup(&config.source, config.source_url()?, config.store_url()?).await?;
    print_steps(&done, "everything is set up")
}
