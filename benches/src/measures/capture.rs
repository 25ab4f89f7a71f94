//! Rows a second through capture and derivation alone, beside PostgreSQL's own client throwing the same stream away.
//!
//! What is written once is read as often as there are repeats. The transactions are muted: each change is decoded and judged,
//! its event is made, and dropped instead of stored. What the ledger of last seen states costs beside is measured apart.

use std::time::Instant;

use anyhow::{Context, bail};

use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::{DATABASE, Muted, ROWS};
use crate::rig::{Rig, add_cpu, require_memory};
use crate::sidecar::SLOT;

const REFERENCE_SLOT: &str = "reference";
/// Stands where a shape begins in the log.
const HERE: &str = "here";
const PUBLICATION: &str = "walhook";
const WITHOUT_LEDGER: &str = "ledger = false";

#[derive(Clone, Copy)]
enum Shape {
    /// A transaction for each row.
    Single(u64),
    /// One for all.
    Giant(u64),
    /// The same with the ledger.
    GiantKept(u64),
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("capture");
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    // As from another machine.
    rig.installation.set_source(rig.server.url(DATABASE));
    rig.installation.configure(WITHOUT_LEDGER, "");
    rig.installation.set_up().await?;
    // Whole passes over the rows.
    let giant = plan.count(1_000_000).next_multiple_of(ROWS);
    let kept = plan.count(250_000).next_multiple_of(ROWS);
    for shape in [Shape::Single(plan.count(500_000)), Shape::Giant(giant), Shape::GiantKept(kept)] {
        plan.tell(format!("capture: writing {}", shape.name()));
        rig.installation.configure(shape.settings(), "");
        remember_place(&rig).await?;
        let end = shape.write(&rig).await?;
        rig.platform.client.batch_execute("checkpoint").await?;
        let repeats = shape.repeats(plan);
        for repeat in 1..=repeats {
            plan.tell(format!("capture: {}, {repeat} of {repeats}", shape.name()));
            let reference = measure_reference(&rig, &mut figures, shape).await?;
            go_back(&rig).await?;
            measure_shape(&rig, &mut figures, shape, end, reference).await?;
        }
        forget_place(&rig).await?;
    }
    Ok(figures)
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Shape::Single(_) => "single-row transactions",
            Shape::Giant(_) => "one giant transaction",
            Shape::GiantKept(_) => "the same with the ledger",
        }
    }

    const fn rows(self) -> u64 {
        match self {
            Shape::Single(rows) | Shape::Giant(rows) | Shape::GiantKept(rows) => rows,
        }
    }

    /// Lines of the section on the source.
    const fn settings(self) -> &'static str {
        match self {
            Shape::Single(_) | Shape::Giant(_) => WITHOUT_LEDGER,
            Shape::GiantKept(_) => "",
        }
    }

    const fn of_reference(self) -> Option<f64> {
        match self {
            Shape::Single(_) => Some(1.5),
            Shape::Giant(_) => Some(1.0),
            Shape::GiantKept(_) => None,
        }
    }

    /// What has no threshold is read once.
    fn repeats(self, plan: &Plan) -> usize {
        if self.of_reference().is_some() { plan.repeats } else { 1 }
    }

    async fn write(self, rig: &Rig) -> anyhow::Result<u64> {
        match self {
            Shape::Single(rows) => rig.platform.write_singly(1, rows, Muted::Yes).await,
            Shape::Giant(rows) | Shape::GiantKept(rows) => rig.platform.write_at_once(1, rows, Muted::Yes).await,
        }
    }
}

/// Keeps where the slot stands and where the store's checkpoint is, so that the log can be read from here again.
async fn remember_place(rig: &Rig) -> anyhow::Result<()> {
    copy_slot(rig, SLOT, HERE).await?;
    Ok(rig.store.batch_execute("create table here as table walhook.checkpoint").await?)
}

async fn go_back(rig: &Rig) -> anyhow::Result<()> {
    drop_slot(rig, SLOT).await?;
    copy_slot(rig, HERE, SLOT).await?;
    let sql = "delete from walhook.checkpoint; insert into walhook.checkpoint table here";
    Ok(rig.store.batch_execute(sql).await?)
}

async fn forget_place(rig: &Rig) -> anyhow::Result<()> {
    drop_slot(rig, HERE).await?;
    Ok(rig.store.batch_execute("drop table here").await?)
}

async fn copy_slot(rig: &Rig, from: &str, to: &str) -> anyhow::Result<()> {
    let sql = "select pg_copy_logical_replication_slot($1, $2)";
    rig.platform.client.execute(sql, &[&from, &to]).await.with_context(|| format!("copying the slot {from}"))?;
    Ok(())
}

async fn drop_slot(rig: &Rig, slot: &str) -> anyhow::Result<()> {
    let sql = "select pg_drop_replication_slot($1)";
    rig.platform.client.execute(sql, &[&slot]).await.with_context(|| format!("dropping the slot {slot}"))?;
    Ok(())
}

async fn measure_reference(rig: &Rig, figures: &mut Figures, shape: Shape) -> anyhow::Result<f64> {
    let (name, rows) = (shape.name(), shape.rows());
    copy_slot(rig, HERE, REFERENCE_SLOT).await?;
    let before = rig.cpu(&[]);
    let reference = rows as f64 / receive_with_reference(rig).await?;
    // Its walsender has ended, and is in the account of Postgres as a whole.
    add_cpu(figures, &format!("{name}, pg_recvlogical"), &before, &rig.cpu(&[]), rows);
    figures.add(format!("{name}, pg_recvlogical"), "rows/s", reference);
    drop_slot(rig, REFERENCE_SLOT).await?;
    Ok(reference)
}

async fn measure_shape(rig: &Rig, figures: &mut Figures, shape: Shape, end: u64, reference: f64) -> anyhow::Result<()> {
    let (name, rows) = (shape.name(), shape.rows());
    let before = rig.cpu(&[]);
    let sidecar = rig.installation.start("capture", "capture")?;
    rig.platform.wait_for_reader(SLOT).await?;
    let begun = Instant::now();
    rig.wait_for_checkpoint(end).await?;
    let ours = rows as f64 / begun.elapsed().as_secs_f64();
    let sidecars = [sidecar];
    let after = rig.cpu(&sidecars);
    figures.add(name, "rows/s", ours);
    let ratio = (format!("{name} / pg_recvlogical"), ours / reference);
    match shape.of_reference() {
        Some(bound) => figures.require(ratio.0, "", ratio.1, Must::AtLeast(bound)),
        None => figures.add(ratio.0, "", ratio.1),
    }
    add_cpu(figures, name, &before, &after, rows);
    require_memory(figures, name, &sidecars, MEMORY)?;
    rig.catch_up().await?;
    let [sidecar] = sidecars;
    sidecar.stop().await
}

/// Seconds until pg_recvlogical has received what the slot holds.
async fn receive_with_reference(rig: &Rig) -> anyhow::Result<f64> {
    let client = &rig.platform.client;
    let end: String = client.query_one("select pg_current_wal_flush_lsn()::text", &[]).await?.get(0);
    let mut command = rig.server.program("pg_recvlogical");
    command.args(["--start", "--no-loop", "--slot", REFERENCE_SLOT, "--endpos", &end, "--file", "/dev/null"]);
    command.args(["--option", "proto_version=1", "--option", "messages=true"]);
    command.args(["--option", &format!("publication_names={PUBLICATION}"), "--dbname", &rig.server.url(DATABASE)]);
    let begun = Instant::now();
    let output = command.output().await.context("pg_recvlogical, which belongs to PostgreSQL's client programs")?;
    if !output.status.success() {
        bail!("pg_recvlogical failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(begun.elapsed().as_secs_f64())
}
