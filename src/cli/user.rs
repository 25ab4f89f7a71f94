//! `walhook user`: manages the data of a user of the platform.

use std::time::Duration;

use clap::Subcommand;

use super::{CommandResult, confirmed, plain_text};
use crate::app::open_store;
use crate::config::{Config, without_password};
use crate::domain::event::UserId;
use crate::manage::erase;

#[derive(Debug, Subcommand)]
pub enum UserAction {
    /// Permanently remove a user's webhooks, secrets, tokens, events and delivery logs
    Erase {
        /// The platform's user id
        #[arg(value_name = "ID", value_parser = plain_text)]
        user: String,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// A user's delivery logs may be long.
const STATEMENT_LIMIT: Duration = Duration::from_secs(3_600);

pub async fn execute(action: UserAction, config: Config) -> CommandResult {
    let UserAction::Erase { user, yes } = action;
    let url = config.store_url()?;
    let store = open_store(url, 1).await?.with_limit(STATEMENT_LIMIT);
    let question = format!(
        "Permanently remove all webhooks, secrets, tokens, events and delivery logs of user {user} on {}",
        without_password(url)
    );

    if !confirmed(yes, "user erase", &question)? {
        return Ok(false);
    }

    let erased = erase::erase(&store, &UserId(user.into())).await?;
    for (what, count) in erased.counts.iter().filter(|(_, count)| *count > 0) {
        println!("{count}\t{what}");
    }

    match erased.total() {
        0 => println!("nothing is stored about this user"),
        // Like the audit log, the server log does not name the user.
        rows => {
            println!("audit record: {}", erased.id);
            tracing::info!(erasure = %erased.id, rows, "a user was erased");
        }
    }

    Ok(true)
}
