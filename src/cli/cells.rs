//! `walhook cells`: stores that divide the events of a log.

use clap::Subcommand;
use serde_json::json;

use super::{CommandResult, plain_text, print_text, table};
use crate::app::cells::{self, Split};
use crate::capture::CaptureError;
use crate::config::{Config, check_cell_name};
use crate::domain::cell::{Cell, Shard};
use crate::domain::event::UserId;

#[derive(Debug, Subcommand)]
pub enum CellsAction {
    /// List the cells with their shards
    List {
        /// Only the cell of this user
        #[arg(long, value_name = "ID", value_parser = plain_text)]
        user: Option<String>,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Make a store that reads the log the first cell, or update the map or the store of a cell after
    /// one of the two was restored
    Add {
        #[arg(value_parser = name)]
        name: String,
    },
    /// Split a cell: half of its shards move to a new cell, whose store is a clone of the cell's
    Split {
        #[arg(value_parser = name)]
        name: String,
        /// The name of the new cell
        #[arg(long, value_name = "NAME", value_parser = name)]
        into: String,
        /// Give up a split whose clone was not promoted in time: the cell keeps all of its shards
        #[arg(long)]
        abort: bool,
    },
}

pub async fn execute(action: CellsAction, config: Config) -> CommandResult {
    match action {
        CellsAction::List { user, json } => {
            let log = cells::open_log(&config).await?;
            let map = log.cells().await.map_err(CaptureError::Log)?;
            let user = user.map(|user| UserId(user.into()));
            let is_meant = |cell: &&Cell| {
                user.as_ref()
                    .is_none_or(|user| cell.shards.contains(Shard::of(user)))
            };
            let listed = map.iter().filter(is_meant);

            print_text(&match json {
                true => listed.map(json_line).collect(),
                false => table(COLUMNS, listed.map(cells_of)),
            })
        }
        CellsAction::Add { name } => {
            let cell = cells::add(&config, &name).await?;
            print_text(&format!(
                "cell {name} has the shards {}: set cells.name = \"{name}\" for its processes, and start them\n",
                cell.shards
            ))
        }
        CellsAction::Split {
            name,
            into,
            abort: true,
        } => {
            let cell = cells::abort(&config, &name, &into).await?;
            print_text(&format!("cell {name} keeps the shards {}\n", cell.shards))
        }
        CellsAction::Split { name, into, .. } => {
            print_text(&match cells::split(&config, &name, &into).await? {
                Split::Prepared => format!(
                    "no process acts for cell {name} any more: promote the server of cell {into}, and run this command again\n"
                ),
                Split::Done { keeps, moves } => format!(
                    "cell {name} has the shards {}, and cell {into} {}: start the processes of both\n",
                    keeps.shards, moves.shards
                ),
            })
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    check_cell_name(text).map(|()| text.to_owned())
}

const COLUMNS: [&str; 4] = ["CELL", "SHARDS", "EPOCH", "STORE"];

fn cells_of(cell: &Cell) -> [String; 4] {
    [
        cell.name.clone(),
        cell.shards.to_string(),
        cell.epoch.to_string(),
        cell.store.to_string(),
    ]
}

fn json_line(cell: &Cell) -> String {
    let line = json!({
        "name": cell.name,
        "first_shard": cell.shards.first.0,
        "last_shard": cell.shards.last.0,
        "epoch": cell.epoch,
        "store": cell.store,
    });

    format!("{line}\n")
}
