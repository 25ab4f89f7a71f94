//! `walhook unrouted`: events that could not be derived, routed or stored.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::{CommandResult, confirmed, plain_text, print_text};
use crate::app::{open_store, unrouted};
use crate::config::Config;
use crate::domain::time::millis;
use crate::store::Store;
use crate::store::unrouted::{Unrouted, UnroutedSelection};

/// Events that are read or removed at once.
const PAGE: i64 = 500;

#[derive(Debug, Subcommand)]
pub enum UnroutedAction {
    /// List unrouted events, oldest first
    List {
        #[command(flatten)]
        selected: Selected,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Derive and route them again, by the present mapping and rows, under the same ids
    Retry {
        #[command(flatten)]
        selected: Selected,
    },
    /// Give them up: they are removed and never delivered
    Discard {
        #[command(flatten)]
        selected: Selected,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
pub struct Selected {
    /// Only events with this reason, such as label_not_found
    #[arg(long, value_name = "REASON", value_parser = plain_text)]
    reason: Option<String>,
    /// Only events that were recorded at or after this time, such as 2026-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
}

impl From<Selected> for UnroutedSelection {
    fn from(Selected { reason, since }: Selected) -> Self {
        UnroutedSelection { reason, since }
    }
}

pub async fn execute(action: UnroutedAction, config: Config) -> CommandResult {
    match action {
        UnroutedAction::List { selected, json } => {
            let store = open_store(config.store_url()?, 1).await?;
            let line = if json { json_line } else { text_line };
            return each_page(&store, &selected.into(), async |page| {
                print_text(&page.iter().map(line).collect::<String>()).map(drop)
            })
            .await;
        }
        UnroutedAction::Retry { selected } => {
            let report = unrouted::retry(&config, &selected.into()).await?;
            println!("{} routed", report.routed);

            for (reason, count) in &report.unrouted {
                println!("{count} still unrouted: {reason}");
            }
        }
        UnroutedAction::Discard { selected, yes } => {
            let store = open_store(config.store_url()?, 1).await?;

            let question = "Remove the selected unrouted events, which are then never delivered";
            if !confirmed(yes, "unrouted discard", question)? {
                return Ok(false);
            }

            let mut discarded = 0;
            each_page(&store, &selected.into(), async |page| {
                let ids: Vec<Uuid> = page.iter().map(|event| event.id).collect();
                discarded += store.discard_unrouted(&ids).await?;
                Ok(())
            })
            .await?;

            println!("{discarded} discarded");
        }
    }

    Ok(true)
}

async fn each_page(
    store: &Store,
    selection: &UnroutedSelection,
    mut act: impl AsyncFnMut(&[Unrouted]) -> anyhow::Result<()>,
) -> CommandResult {
    let mut after = Uuid::nil();

    loop {
        let page = store.unrouted(selection, after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(true);
        };

        after = last.id;
        act(&page).await?;
    }
}

fn text_line(event: &Unrouted) -> String {
    let at = millis(event.occurred_at);
    format!(
        "{}\t{at}\t{}\t{} {}\t{}\t{}\n",
        event.id, event.kind, event.table, event.row, event.reason, event.detail
    )
}

fn json_line(event: &Unrouted) -> String {
    let line = json!({
        "id": event.id,
        "event": event.kind,
        "reason": event.reason,
        "detail": event.detail,
        "table": event.table,
        "row": event.row,
        "occurred_at": millis(event.occurred_at),
    });

    format!("{line}\n")
}
