//! The cells that divide a log: which one a process is of, and what operators change.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::open_store;
use crate::capture::{self, CaptureError};
use crate::config::{CaptureMode, Config};
use crate::domain::cell::{self, Cell, CellFault, Shard, Shards};
use crate::domain::event::UserId;
use crate::failpoint::failpoint;
use crate::store::{Store, StoreError};

/// How often a process looks whether it is still of the same cell, and how long it takes to notice.
const WATCH: Duration = Duration::from_secs(1);

/// Ends with an error when the store's cell is no longer `own`: the process must not act on users
/// that another cell has.
pub async fn watch(store: Store, own: Cell, shutdown: CancellationToken) -> anyhow::Result<()> {
    while shutdown
        .run_until_cancelled(tokio::time::sleep(WATCH))
        .await
        .is_some()
    {
        // Without an answer, nothing can be done for any user either.
        if let Ok(found) = store.own_cell(Some(&own.name)).await {
            ensure!(found? == Some(own.clone()), CellFault::Changed);
        }
    }

    Ok(())
}

/// Opens the store of the log whose map of cells the configuration means.
pub async fn open_log(config: &Config) -> anyhow::Result<Store> {
    ensure!(
        config.source.capture == CaptureMode::Log,
        "source.capture is not \"log\": the map of cells is in the log store, so use the configuration of a cell"
    );

    Ok(capture::log::open_readable(config.capture_url()?).await?)
}

/// Opens the store that has the user's data: one of `cells.stores` if they are set.
pub async fn open_store_of(config: &Config, user: &UserId) -> anyhow::Result<Store> {
    let shard = Shard::of(user);
    let mut urls = vec![];

    for name in config.cells.stores.keys() {
        urls.push(config.cell_url(name)?);
    }
    if urls.is_empty() {
        urls.push(config.store_url()?);
    }

    for url in urls {
        let store = open_store(url, 1).await?;
        let rows = store.cells().await?;
        if rows.is_empty() || rows.iter().any(|cell| cell.shards.contains(shard)) {
            return Ok(store);
        }
    }

    bail!(
        "user {user} is of another cell: use its configuration, or set cells.stores. `walhook cells list --user {user}` shows it"
    )
}

/// Makes a store that reads the log the first cell, with all shards. If it is a cell already, makes
/// the map and the store agree on it: one of the two may have been restored.
pub async fn add(config: &Config, name: &str) -> anyhow::Result<Cell> {
    let log = open_log(config).await?;
    let store = open_store(config.cell_url(name)?, 1).await?;
    let stored = store.checkpoint(&config.source.slot).await?;
    let read = stored
        .and_then(|stored| stored.progress.log())
        .with_context(|| {
            format!("the store of cell {name} reads no log yet: run `walhook setup` with its configuration")
        })?;

    let found = log.store_id().await.map_err(of_log)?;
    ensure!(
        read.store == found,
        "the store of cell {name} reads another log: {}, and source.log_url leads to {found}",
        read.store
    );

    let map = log.cells().await.map_err(of_log)?;
    let rows = store.cells().await?;
    if let Some(other) = map.first()
        && !map.iter().chain(&rows).any(|cell| cell.name == name)
    {
        bail!(
            "the cells have all shards: run `walhook cells split {} --into {name}`",
            other.name
        );
    }

    let id = store.store_id().await?;
    let own = match cell::own(Some(name), id, &rows) {
        Err(CellFault::NotAdded(_)) => None,
        own => own?,
    };
    let latest = cell::latest(name, id, own.clone(), &map)?;
    let cell = latest.unwrap_or_else(|| Cell {
        name: name.to_owned(),
        shards: Shards::ALL,
        store: id,
        epoch: 1,
    });

    log.put_cell(&cell).await.map_err(of_log)?;
    if own.as_ref() != Some(&cell) {
        wait_for_processes(&store, &config.source.slot, name).await?;
        store.with_limit(LONG_STATEMENT).become_cell(&cell).await?;
    }

    Ok(cell)
}

/// How far a split is.
#[derive(Clone, Debug)]
pub enum Split {
    /// No process acts for the cell any more. Its clone can be promoted.
    Prepared,
    /// Both cells can start.
    Done { keeps: Cell, moves: Cell },
}

/// Statements that remove the data of half of the users.
const LONG_STATEMENT: Duration = Duration::from_secs(3_600);
/// How long to wait for the processes of a cell, which notice and drain, and for its clone.
const END_OF_PROCESSES: Duration = Duration::from_secs(60);
/// The epoch of a new cell while processes of the cell that is split may run.
const UNPREPARED: i64 = 0;
const CHANGED: &str = "the store of the cell has changed meanwhile: run the command again";

/// Splits cell `name` into two halves, the upper of which moves to the new cell `into`. Its store is
/// a clone of the cell's server.
///
/// First, while the clone is a standby, stores the halves in the cell, so that its processes end,
/// and then raises the epoch of the second half to that of the first: the standby has all that they
/// have done when it has this too. A clone that was promoted earlier is refused. Then, when it is
/// promoted, stores the halves in the log, and removes from each of the two what belongs to the
/// other. Each step can be repeated.
pub async fn split(config: &Config, name: &str, into: &str) -> anyhow::Result<Split> {
    let log = open_log(config).await?;
    let old = open_store(config.cell_url(name)?, 1).await?;
    let new = open_store(config.cell_url(into)?, 1).await?;
    ensure!(
        !old.identity().await?.is_same(&new.identity().await?),
        "the URLs of the cells {name} and {into} lead to the same store: correct cells.stores"
    );

    let is_promoted = new.log_end().await?.lineage().is_some();
    let map = log.cells().await.map_err(of_log)?;
    cell::covered(&map)?;

    let rows = old.cells().await?;
    let (keeps, mut moves) = match halves(name, into, &rows, &map)? {
        Some(halves) => halves,
        None => {
            ensure!(
                !is_promoted,
                "the server of cell {into} was promoted too early: it lacks what cell {name} has done since. Clone the server of \
                 cell {name} again, and leave it a standby"
            );
            begin(name, into, &log, &old, &new, &map).await?
        }
    };

    keeps.verify_store(old.store_id().await?)?;

    let is_done = rows == [keeps.clone()];
    if !is_done {
        wait_for_processes(&old, &config.source.slot, name).await?;
    }

    if moves.epoch == UNPREPARED {
        moves.epoch = keeps.epoch;
        ensure!(old.put_halves(&keeps, &moves).await?, CHANGED);
        failpoint!("cell_is_prepared_clone_does_not_have_it")?;
    }

    if !is_promoted {
        wait_for_clone(&new, &moves).await?;
        return Ok(Split::Prepared);
    }

    ensure!(
        new.cells().await?.contains(&moves),
        "the server of cell {into} was promoted before it had all of cell {name}: clone it again, and leave it a standby until \
         `walhook cells split` asks for the promotion. `--abort` lets cell {name} continue meanwhile"
    );
    ensure!(
        log.put_halves(&keeps, &moves).await.map_err(of_log)?,
        CellFault::OtherStore {
            name: keeps.name,
            known: map
                .iter()
                .find(|cell| cell.name == name)
                .map_or(Uuid::nil(), |cell| cell.store),
            found: keeps.store,
        }
    );
    failpoint!("log_has_halves_stores_have_not")?;

    if new.cells().await? != [moves.clone()] {
        new.with_limit(LONG_STATEMENT).become_cell(&moves).await?;
    }

    failpoint!("new_half_is_cell_old_is_not")?;
    if !is_done {
        old.with_limit(LONG_STATEMENT).become_cell(&keeps).await?;
    }

    Ok(Split::Done { keeps, moves })
}

/// Returns the halves of a split that was started. None if it was not.
fn halves(
    name: &str,
    into: &str,
    rows: &[Cell],
    map: &[Cell],
) -> anyhow::Result<Option<(Cell, Cell)>> {
    let find = |cells: &[Cell], name: &str| cells.iter().find(|cell| cell.name == name).cloned();
    let keeps = find(rows, name).ok_or_else(|| CellFault::NotAdded(name.to_owned()))?;

    if let Some(other) = rows.iter().find(|cell| cell.name != name) {
        ensure!(
            other.name == into,
            CellFault::Splitting {
                name: name.to_owned(),
                into: other.name.clone(),
            }
        );
        return Ok(Some((keeps, other.clone())));
    }

    cell::verify(Some(&keeps), map)?;

    // It is complete.
    Ok(find(map, into).map(|moves| (keeps, moves)))
}

/// Stores the halves in the cell that is split.
async fn begin(
    name: &str,
    into: &str,
    log: &Store,
    old: &Store,
    new: &Store,
    map: &[Cell],
) -> anyhow::Result<(Cell, Cell)> {
    let own = old.own_cell(Some(name)).await??;
    cell::verify(own.as_ref(), map)?;
    let own = own.ok_or_else(|| CellFault::NotAdded(name.to_owned()))?;

    // Clones of all cells have the same system identifier.
    let is_clone = old.identity().await?.system_identifier
        == new.identity().await?.system_identifier
        && new.cells().await?.contains(&own);
    ensure!(
        is_clone,
        "the server of cell {into} is no clone of that of cell {name}, or does not have its last changes yet: make it with \
         pg_basebackup, and let it stream"
    );

    let (lower, upper) = own
        .shards
        .halves()
        .with_context(|| format!("cell {name} has one shard, which cannot be divided"))?;

    // Changes nothing: fails while the cell still runs if the map cannot be written.
    log.put_cell(&own).await.map_err(of_log)?;

    let keeps = Cell {
        shards: lower,
        epoch: own.epoch + 1,
        ..own
    };
    let moves = Cell {
        name: into.to_owned(),
        shards: upper,
        store: Uuid::now_v7(),
        epoch: UNPREPARED,
    };
    ensure!(old.put_halves(&keeps, &moves).await?, CHANGED);
    failpoint!("cell_has_halves_processes_run")?;

    Ok((keeps, moves))
}

/// Undoes the first step of a split whose clone is of no use.
pub async fn abort(config: &Config, name: &str, into: &str) -> anyhow::Result<Cell> {
    let log = open_log(config).await?;
    let store = open_store(config.cell_url(name)?, 1).await?;
    let map = log.cells().await.map_err(of_log)?;

    let rows = store.cells().await?;
    let moves = rows.iter().find(|row| row.name == into);
    // Another cell may have been split into this name meanwhile.
    let is_moved = |cell: &Cell| moves.is_none_or(|moves| moves.store == cell.store);
    ensure!(
        !map.iter().any(|cell| cell.name == into && is_moved(cell)),
        "cell {into} is in the map already: run `walhook cells split {name} --into {into}` to the end"
    );
    let known = map.into_iter().find(|cell| cell.name == name);
    let known = known.ok_or_else(|| CellFault::Unknown(name.to_owned()))?;

    ensure!(
        store.store_id().await? == known.store && (moves.is_some() || rows == [known.clone()]),
        "cell {name} is not being split into {into} in the store at cells.stores.{name}: nothing was changed"
    );

    store.become_cell(&known).await?;
    Ok(known)
}

/// Waits until no process of the cell is connected to its store: they end because its shards have
/// changed.
async fn wait_for_processes(store: &Store, slot: &str, name: &str) -> anyhow::Result<()> {
    let until = Instant::now() + END_OF_PROCESSES;

    loop {
        let running = store.processes(slot).await?;
        let Some(first) = running.first() else {
            return Ok(());
        };

        ensure!(
            Instant::now() < until,
            "{} processes of cell {name} still run, such as {}: stop them, and run the command again",
            running.len(),
            first.name
        );
        tokio::time::sleep(WATCH).await;
    }
}

/// Waits until the clone has all that the cell's processes have done.
async fn wait_for_clone(clone: &Store, moves: &Cell) -> anyhow::Result<()> {
    let until = Instant::now() + END_OF_PROCESSES;

    while !clone.cells().await?.contains(moves) {
        ensure!(
            Instant::now() < until,
            "the server of cell {} does not have all of the other one yet: see there in pg_stat_wal_receiver that it is connected, and \
             run the command again",
            moves.name
        );
        tokio::time::sleep(WATCH).await;
    }

    Ok(())
}

/// Names the setting, and what a command needs that the processes do not.
fn of_log(error: StoreError) -> anyhow::Error {
    let remedy = if error.is_rejection() {
        ". To change the map of cells, give it the rights of the log's owner"
    } else {
        ""
    };

    anyhow!("{}{remedy}", CaptureError::Log(error))
}
