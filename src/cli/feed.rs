//! `walhook feed`: prints the events of the feed, a JSON object per line.

use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use super::forward::ca_file;
use super::listen::cancel_on_signal;
use super::listen::feed::{FeedClient, FeedOptions, Wait};
use super::listen::state::{EARLIEST, LATEST};
use super::{CommandResult, write_output};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    feed: FeedOptions,
    /// Wait for further events at the end of the feed
    #[arg(long)]
    follow: bool,
    /// PEM file of certificate authorities to trust in addition to the system's
    #[arg(long, value_name = "FILE", value_parser = ca_file)]
    ca_file: Option<PathBuf>,
}

pub async fn execute(arguments: Arguments) -> CommandResult {
    let Arguments {
        feed: options,
        follow,
        ca_file,
    } = arguments;

    let (wait, start) = match follow {
        true => (Wait::ForEvents, LATEST),
        false => (Wait::Never, EARLIEST),
    };

    let mut state = options.state(start)?;
    let mut feed = FeedClient::new(&options, ca_file.as_deref(), wait)?;
    let stop = CancellationToken::new();
    tokio::spawn(cancel_on_signal(stop.clone()));

    while let Some(page) = stop.run_until_cancelled(feed.page(state.after())).await {
        let page = page?;
        let is_end = page.events.is_empty();

        for event in &page.events {
            let id = event.content.id;
            if state.is_forwarded(id) {
                continue;
            }

            if stop.is_cancelled() || !write_output(&format!("{}\n", event.text))? {
                return Ok(true);
            }

            state.record_skipped(id)?;
        }

        state.finish_page(page.next_cursor)?;

        if is_end && !follow {
            break;
        }
    }

    Ok(true)
}
