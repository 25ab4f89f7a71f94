//! `walhook teardown`: removes everything that Walhook created on the primary.

use super::{CommandResult, confirmed, print_steps, print_text};
use crate::config::{CaptureMode, Config, without_password};
use crate::primary::uninstall::{owner_statements, teardown, teardown_store};
use crate::store::Store;

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
    let source = config.capture_url()?;
    let store = config.store_url()?;
    let reads_log = config.source.capture == CaptureMode::Log;

    if arguments.print && reads_log {
        return print_text("-- A store that reads a log has nothing on a primary.\n");
    }

    if arguments.print {
        return print_text(&owner_statements(&config.source, source, store).await?);
    }

    let question = question(&arguments, &config, source, store);
    if !confirmed(arguments.yes, "teardown", &question)? {
        return Ok(false);
    }

    if reads_log {
        let store = Store::open(store, 1)?;
        let done = teardown_store(&config.source, &store, arguments.store).await?;
        let done: Vec<String> = done.into_iter().collect();
        return print_steps(&done, "the checkpoint is deleted");
    }

    let done = teardown(&config.source, source, store, arguments.store).await?;
    print_steps(&done, "nothing is left to remove")
}

fn question(arguments: &Arguments, config: &Config, source: &str, store: &str) -> String {
    let mut text = match config.source.capture {
        CaptureMode::Wal | CaptureMode::Trigger => format!(
            "Drop slot {} and publication {} on {}, and delete the checkpoint",
            config.source.slot,
            config.source.publication,
            without_password(source)
        ),
        CaptureMode::Log => "Delete the checkpoint".to_owned(),
    };

    if arguments.store {
        text.push_str(&format!(
            ", and drop schema walhook with all webhooks and delivery logs on {}",
            without_password(store)
        ));
    }

    text
}
