//! `walhook teardown`: removes everything that Walhook created on the primary.

use super::{CommandResult, confirmed, print_steps, print_text};
use crate::config::{Config, without_password};
use crate::primary::uninstall::{owner_statements, teardown};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Also drop the store's schema with all webhooks, events and delivery logs
    #[arg(long)]
    store: bool,
    /// Print the SQL for what belongs to other roles, and change nothing
    #[arg(long, conflicts_with_all = ["store", "yes"])]
    print: bool,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    let source = config.source_url()?;
    let store = config.store_url()?;

    if arguments.print {
        return print_text(&owner_statements(&config.source, source, store).await?);
    }

    let question = question(&arguments, &config, source, store);
    if !confirmed(arguments.yes, "teardown", &question)? {
        return Ok(false);
    }

    let done = teardown(&config.source, source, store, arguments.store).await?;
    print_steps(&done, "nothing is left to remove")
}

fn question(arguments: &Arguments, config: &Config, source: &str, store: &str) -> String {
    let mut text = format!(
        "Drop slot {} and publication {} on {}, and delete the checkpoint",
        config.source.slot,
        config.source.publication,
        without_password(source)
    );

    if arguments.store {
        text.push_str(&format!(
            ", and drop schema walhook with all webhooks and delivery logs on {}",
            without_password(store)
        ));
    }

    text
}
