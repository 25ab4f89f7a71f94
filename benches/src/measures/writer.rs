//! The cost of capture for the application that writes: by pgbench, transactions per second,
//! Postgres's CPU time and WAL bytes per transaction that updates one row, and the time of a
//! statement that updates all rows. A server without capture and one server per mode of capture
//! take turns.
//!
//! No sidecar runs meanwhile: its own work would compete for the same processors. What reading the
//! WAL costs is in `capture`.

use std::time::Instant;

use anyhow::{Context, bail};

use super::Plan;
use crate::figures::Figures;
use crate::platform::{DATABASE, NEXT_STATUS, ROW_ID_STRIDE, ROWS};
use crate::processes::Kind;
use crate::rig::Rig;
use crate::wait::eventually;

const CLIENTS: &str = "4";
const UNWATCHED: &str = "unwatched";

/// The modes of capture: a name, and a setting of `source`.
const WAYS: [(&str, Option<&str>); 4] = [
    (UNWATCHED, None),
    ("replica identity full", Some("replica_identity = \"full\"")),
    (
        "replica identity index",
        Some("replica_identity = \"index\""),
    ),
    ("triggers", Some("capture = \"trigger\"")),
];

/// The writes: transitions, and updates that change nothing that events need.
const WRITES: [(&str, &str); 2] = [("transitions", NEXT_STATUS), ("other updates", "status")];

/// What is measured of each write, and its unit.
const OF_ONE_ROW: [(&str, &str); 3] = [
    ("TPS", "TPS"),
    ("CPU of Postgres", "µs each"),
    ("WAL", "bytes each"),
];
const OF_ALL_ROWS: (&str, &str) = ("all rows at once", "ms");

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("writer");
    let mut servers = Vec::new();

    for (name, source) in WAYS {
        plan.show_step(format!("writer: preparing {name}"));
        let mut rig = primary(plan).await?;

        if let Some(source) = source {
            rig.installation.configure(source, "");

            if let Err(refusal) = rig.installation.set_up().await {
                plan.progress
                    .suspend(|| eprintln!("left out: the writer's cost of {name}: {refusal}"));
                continue;
            }
        }

        servers.push((name, rig));
    }

    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        // Each repeat starts with another server, so that changes of the machine's speed favor
        // none.
        servers.rotate_left(1);

        for (name, rig) in &servers {
            for (write, status) in WRITES {
                plan.show_step(format!("writer: {name}, {write}, {repeat} of {repeats}"));
                let values = run(plan, rig, status).await?;

                for ((what, unit), value) in measured().zip(values) {
                    figures.add(figure(name, write, what), unit, value);
                }
            }
        }
    }

    for (name, _) in &servers {
        for (write, _) in WRITES.iter().filter(|_| *name != UNWATCHED) {
            for (what, _) in measured() {
                figures.ratio(
                    format!("{name} / unwatched, {write}, {what}"),
                    &figure(name, write, what),
                    &figure(UNWATCHED, write, what),
                    None,
                );
            }
        }
    }

    Ok(figures)
}

fn measured() -> impl Iterator<Item = (&'static str, &'static str)> {
    OF_ONE_ROW.into_iter().chain([OF_ALL_ROWS])
}

fn figure(name: &str, write: &str, what: &str) -> String {
    format!("{name}, {write}, {what}")
}

/// Creates a platform before `walhook setup`.
async fn primary(plan: &Plan) -> anyhow::Result<Rig> {
    let rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;

    Ok(rig)
}

/// Sets the statuses of rows to this expression. Returns what is [`measured`].
async fn run(plan: &Plan, rig: &Rig, status: &str) -> anyhow::Result<[f64; 4]> {
    let update = format!("update distro_queue set status = {status}, updated_at = now()");
    let client = &rig.platform.client;
    client.batch_execute("checkpoint").await?;

    // Updates every page after the checkpoint, so that full-page images are not part of what
    // follows.
    client
        .batch_execute("update distro_queue set updated_at = now()")
        .await?;
    client.batch_execute("vacuum (analyze)").await?;

    let started = Instant::now();
    client.batch_execute(&update).await?;
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    client.batch_execute("vacuum (analyze)").await?;

    let script = rig.server.directory().join("update.sql");
    let text =
        format!("\\set row random(0, {ROWS} - 1)\n{update} where id = {ROW_ID_STRIDE} + :row;\n");
    std::fs::write(&script, text).with_context(|| format!("cannot write {}", script.display()))?;

    let position = rig.platform.position().await?;
    let before = rig.cpu(&[]);
    let (transactions, per_second) = pgbench(rig, plan.seconds(5.0).as_secs()).await?;

    // The CPU time of ended sessions is counted for Postgres as a whole.
    eventually("pgbench's sessions have ended", || async {
        let sql =
            "select not exists (select from pg_stat_activity where application_name = 'pgbench')";
        Ok(client.query_one(sql, &[]).await?.get(0))
    })
    .await?;

    let seconds = rig.cpu(&[]).since(&before, Kind::Postgres);
    let bytes = rig.platform.position().await? - position;

    Ok([
        per_second,
        seconds * 1e6 / transactions,
        bytes as f64 / transactions,
        milliseconds,
    ])
}

/// Runs pgbench. Returns the number of transactions, and how many per second.
async fn pgbench(rig: &Rig, seconds: u64) -> anyhow::Result<(f64, f64)> {
    let mut command = rig.server.program("pgbench");
    command.args([
        "--no-vacuum",
        "--protocol",
        "prepared",
        "--client",
        CLIENTS,
        "--file",
        "update.sql",
    ]);

    command.args([
        "--time",
        &seconds.to_string(),
        &rig.server.socket_url(DATABASE),
    ]);
    let output = command
        .output()
        .await
        .context("pgbench, which belongs to PostgreSQL's client programs")?;
    let text = String::from_utf8_lossy(&output.stdout);

    if !output.status.success() {
        bail!(
            "pgbench failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }

    let number_after = |words: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(words))?;
        rest.split([' ', '/'])
            .find_map(|word| word.parse::<f64>().ok())
    };

    let processed = number_after("number of transactions actually processed: ")
        .context("pgbench reports no transactions")?;
    Ok((
        processed,
        number_after("tps = ").context("pgbench reports no rate")?,
    ))
}
