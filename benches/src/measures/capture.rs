//! Rows per second through capture and derivation alone, as shipped and without the ledger, beside
//! PostgreSQL's own client discarding the same stream.
//!
//! The same WAL is read in every repeat, by all three in turn. The transactions are muted: each
//! change is decoded, its event is derived and dropped instead of stored. As shipped, Walhook also
//! keeps the ledger of last seen states.

use std::time::Instant;

use anyhow::{Context, bail};

use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::{DATABASE, Muted, ROWS};
use crate::rig::{Rig, add_cpu, require_memory};
use crate::sidecar::SLOT;

const REFERENCE: &str = "pg_recvlogical";
const REFERENCE_SLOT: &str = "reference";
/// A copy of the slot, at the start of the WAL of a shape.
const SAVED_SLOT: &str = "saved";
const PUBLICATION: &str = "walhook";

#[derive(Clone, Copy)]
enum Shape {
    /// One transaction per row.
    Single(u64),
    /// One transaction for all rows.
    Giant(u64),
}

/// A configuration of the sidecar, and the share of the reference's rate that it must reach.
struct Way {
    name: &'static str,
    /// Lines of the section `source`.
    settings: &'static str,
    single: f64,
    giant: f64,
}

const WAYS: [Way; 2] = [
    Way {
        name: "as shipped",
        settings: "",
        single: 1.0,
        giant: 0.6,
    },
    Way {
        name: "without the ledger",
        settings: "ledger = false",
        single: 1.3,
        giant: 1.0,
    },
];

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("capture");
    let mut rig = Rig::start(&plan.walhook).await?;

    rig.platform.add_users(1, 1, ROWS).await?;

    // Over TCP, as from another machine.
    rig.installation.set_source(rig.server.url(DATABASE));
    rig.set_up("").await?;

    // A multiple of the number of rows.
    let giant = plan.count(500_000).next_multiple_of(ROWS);
    for shape in [Shape::Single(plan.count(250_000)), Shape::Giant(giant)] {
        plan.show_step(format!("capture: writing {}", shape.name()));
        save_position(&rig).await?;

        let end = shape.write(&rig).await?;
        rig.rest().await?;

        let repeats = plan.repeats;
        for repeat in 1..=repeats {
            plan.show_step(format!("capture: {}, {repeat} of {repeats}", shape.name()));
            measure_reference(&rig, &mut figures, shape).await?;

            for way in &WAYS {
                restore_position(&rig).await?;
                measure_way(&mut rig, &mut figures, shape, way, end).await?;
            }
        }

        restore_position(&rig).await?;
        drop_saved_position(&rig).await?;

        // The next shape starts after this one's WAL, with the ledger of that position.
        rig.installation.configure("", "");
        rig.read_wal().await?;
    }

    Ok(figures)
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Shape::Single(_) => "single-row transactions",
            Shape::Giant(_) => "one giant transaction",
        }
    }

    const fn rows(self) -> u64 {
        match self {
            Shape::Single(rows) | Shape::Giant(rows) => rows,
        }
    }

    const fn bound(self, way: &Way) -> f64 {
        match self {
            Shape::Single(_) => way.single,
            Shape::Giant(_) => way.giant,
        }
    }

    async fn write(self, rig: &Rig) -> anyhow::Result<u64> {
        match self {
            Shape::Single(rows) => rig.platform.write_singly(1, rows, Muted::Yes).await,
            Shape::Giant(rows) => rig.platform.write_at_once(1, rows, Muted::Yes).await,
        }
    }
}

/// Saves the positions of the slot and the store, and the ledger, so that the WAL can be read from
/// here again.
async fn save_position(rig: &Rig) -> anyhow::Result<()> {
    copy_slot(rig, SLOT, SAVED_SLOT).await?;
    let sql = "create table saved_checkpoint as table walhook.checkpoint;
        create table saved_last_seen as table walhook.last_seen;
        create table saved_ledger_complete as table walhook.ledger_complete";
    Ok(rig.store.batch_execute(sql).await?)
}

/// Restores the slot, the store's position and the ledger, which a sidecar without ledger has
/// emptied.
async fn restore_position(rig: &Rig) -> anyhow::Result<()> {
    drop_slot(rig, SLOT).await?;
    copy_slot(rig, SAVED_SLOT, SLOT).await?;
    let sql = "delete from walhook.checkpoint; insert into walhook.checkpoint table saved_checkpoint;
        truncate walhook.last_seen, walhook.ledger_complete;
        insert into walhook.last_seen table saved_last_seen; insert into walhook.ledger_complete table saved_ledger_complete";
    rig.store.batch_execute(sql).await?;

    rig.rest().await
}

async fn drop_saved_position(rig: &Rig) -> anyhow::Result<()> {
    drop_slot(rig, SAVED_SLOT).await?;
    Ok(rig
        .store
        .batch_execute("drop table saved_checkpoint, saved_last_seen, saved_ledger_complete")
        .await?)
}

async fn copy_slot(rig: &Rig, from: &str, to: &str) -> anyhow::Result<()> {
    let sql = "select pg_copy_logical_replication_slot($1, $2)";
    rig.platform
        .client
        .execute(sql, &[&from, &to])
        .await
        .with_context(|| format!("copying the slot {from}"))?;

    Ok(())
}

async fn drop_slot(rig: &Rig, slot: &str) -> anyhow::Result<()> {
    let sql = "select pg_drop_replication_slot($1)";
    rig.platform
        .client
        .execute(sql, &[&slot])
        .await
        .with_context(|| format!("dropping the slot {slot}"))?;

    Ok(())
}

async fn measure_reference(rig: &Rig, figures: &mut Figures, shape: Shape) -> anyhow::Result<()> {
    let name = format!("{}, {REFERENCE}", shape.name());
    let rows = shape.rows();

    copy_slot(rig, SAVED_SLOT, REFERENCE_SLOT).await?;
    let before = rig.cpu(&[]);
    let rate = rows as f64 / receive_with_reference(rig).await?;

    // The CPU time of its walsender, which has ended, is counted for the postmaster.
    add_cpu(figures, &name, &before, &rig.cpu(&[]), rows);
    figures.add(name, "rows/s", rate);

    drop_slot(rig, REFERENCE_SLOT).await
}

async fn measure_way(
    rig: &mut Rig,
    figures: &mut Figures,
    shape: Shape,
    way: &Way,
    end: u64,
) -> anyhow::Result<()> {
    let name = format!("{}, {}", shape.name(), way.name);
    let rows = shape.rows();

    rig.installation.configure(way.settings, "");
    let before = rig.cpu(&[]);
    let sidecar = rig.installation.start("capture", "capture")?;

    rig.platform.wait_for_reader(SLOT).await?;
    let started = Instant::now();

    rig.wait_for_checkpoint(end).await?;
    let rate = rows as f64 / started.elapsed().as_secs_f64();
    let sidecars = [sidecar];
    let after = rig.cpu(&sidecars);

    figures.add(&name, "rows/s", rate);
    let reference = format!("{}, {REFERENCE}", shape.name());

    figures.ratio(
        format!("{name} / {REFERENCE}"),
        &name,
        &reference,
        Some(Must::AtLeast(shape.bound(way))),
    );

    add_cpu(figures, &name, &before, &after, rows);
    require_memory(figures, &name, &sidecars, MEMORY)?;
    rig.catch_up().await?;

    let [sidecar] = sidecars;
    sidecar.stop().await
}

/// Returns the seconds until pg_recvlogical has received the WAL from the slot's position to the
/// current end.
async fn receive_with_reference(rig: &Rig) -> anyhow::Result<f64> {
    let client = &rig.platform.client;
    let end: String = client
        .query_one("select pg_current_wal_flush_lsn()::text", &[])
        .await?
        .get(0);
    let mut command = rig.server.program("pg_recvlogical");

    command.args([
        "--start",
        "--no-loop",
        "--slot",
        REFERENCE_SLOT,
        "--endpos",
        &end,
        "--file",
        "/dev/null",
    ]);

    command.args(["--option", "proto_version=1", "--option", "messages=true"]);
    command.args([
        "--option",
        &format!("publication_names={PUBLICATION}"),
        "--dbname",
        &rig.server.url(DATABASE),
    ]);

    let started = Instant::now();
    let output = command
        .output()
        .await
        .context("pg_recvlogical, which belongs to PostgreSQL's client programs")?;
    if !output.status.success() {
        bail!(
            "pg_recvlogical failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }

    Ok(started.elapsed().as_secs_f64())
}
