//! `walhook teardown`: takes everything of Walhook's off the primary.

use std::process::ExitCode;

use super::{CommandResult, confirmed};
use crate::config::{Config, without_password};
use crate::primary::uninstall::teardown;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Drop the store's schema too: webhooks, events and logs with it
    #[arg(long)]
    store: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    let (source, store) = (config.source_url()?, config.store_url()?);
    if !arguments.yes && !confirmed("teardown", &question(&arguments, &config, source, store))? {
        println!("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    let done = teardown(&config.source, source, store, arguments.store).await?;
    for line in &done {
        println!("{line}");
    }
    if done.is_empty() {
        println!("nothing of Walhook's is left");
    }
    Ok(ExitCode::SUCCESS)
}

fn question(arguments: &Arguments, config: &Config, source: &str, store: &str) -> String {
    let mut text = format!(
        "Drop slot {} and publication {} on {}, and give up the place reached in the log",
        config.source.slot,
        config.source.publication,
        without_password(source)
    );
    if arguments.store {
        text.push_str(&format!(", and drop schema walhook with all webhooks and logs on {}", without_password(store)));
    }
    text
}
