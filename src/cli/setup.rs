//! `walhook setup`: prepares the store and the primary.

use anyhow::anyhow;

use super::{CommandResult, print_steps, print_text};
use crate::capture;
use crate::config::{CaptureMode, Config};
use crate::domain::table::Table;
use crate::lookup::{LookupError, try_queries};
use crate::postgres::{self, ConnectError, Target, quote_identifier};
use crate::primary::error::PrimaryError;
use crate::primary::install::setup;
use crate::primary::print::setup_statements;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print what is missing on the primary as SQL for a DBA, and change nothing
    #[arg(long)]
    print: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    let url = config.capture_url()?;

    if config.source.capture == CaptureMode::Log {
        if arguments.print {
            return print_text("-- A store that reads a log needs nothing on a primary.\n");
        }

        let done = capture::log::setup(&config.source, url, config.store_url()?).await?;
        return print_steps(&done, "everything is set up");
    }

    if arguments.print {
        return print(&config, url).await;
    }

    let done = setup(&config.source, url, config.store_url()?).await?;
    print_steps(&done, "everything is set up")
}

async fn print(config: &Config, url: &str) -> CommandResult {
    let tried = try_queries(url, &config.source).await.into_iter();
    let refused: Vec<(Table, String)> = tried
        .filter_map(|(table, result)| match result.err()? {
            // Only the server's words: whether they name a relation matters.
            LookupError::Query { source, .. } => Some((table, postgres::describe(&source))),
            error => Some((table, error.to_string())),
        })
        .collect();

    let printed = setup_statements(&config.source, url, config.store_url().ok(), &refused).await;
    let printed = printed.map_err(|error| match error {
        PrimaryError::Connect(ConnectError::Connect(_) | ConnectError::Timeout(_)) => {
            anyhow!("{error}. {}", first_statements(url))
        }
        error => error.into(),
    })?;

    print_text(&printed.text)?;
    Ok(printed.is_complete)
}

/// Describes what must exist before the rest can be compared with what is there.
fn first_statements(url: &str) -> String {
    let config = Target::parse(url).map(|target| target.config);
    let name = |name: Option<&str>| quote_identifier(name.unwrap_or("walhook"));
    let (role, database) = match &config {
        Ok(config) => (name(config.get_user()), name(config.get_dbname())),
        Err(_) => (name(None), name(None)),
    };

    format!(
        "`--print` compares with what is there, so the role must exist and be able to connect with source.url: \
         check its address and pg_hba.conf, and as a superuser run `create role {role} login password '…'; \
         grant connect on database {database} to {role};`"
    )
}
