//! The cost of capture for the application that writes, by pgbench: transactions per second,
//! Postgres's CPU time and WAL bytes per transaction. A server without capture and one server per
//! mode of capture take turns.
//!
//! No sidecar runs meanwhile: its own work would compete for the same processors. What reading the
//! WAL costs is in `capture`.

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

    let repeats = plan.latencies();
    for repeat in 1..=repeats {
        // Each repeat starts with another server, so that changes of the machine's speed favor
        // none.
        servers.rotate_left(1);

        for (name, rig) in &servers {
            plan.show_step(format!("writer: {name}, {repeat} of {repeats}"));
            run(plan, rig, &mut figures, name).await?;
        }
    }

    for (name, _) in WAYS
        .iter()
        .filter(|(name, _)| servers.iter().any(|(kept, _)| kept == name))
    {
        if *name == UNWATCHED {
            continue;
        }

        figures.ratio(
            format!("{name} / unwatched, TPS"),
            &tps(name),
            &tps(UNWATCHED),
            None,
        );

        figures.ratio(
            format!("{name} / unwatched, CPU"),
            &cpu(name),
            &cpu(UNWATCHED),
            None,
        );

        figures.ratio(
            format!("{name} / unwatched, WAL"),
            &wal(name),
            &wal(UNWATCHED),
            None,
        );
    }

    Ok(figures)
}

fn tps(name: &str) -> String {
    format!("{name}, TPS")
}

fn cpu(name: &str) -> String {
    format!("{name}, CPU of Postgres")
}

fn wal(name: &str) -> String {
    format!("{name}, WAL")
}

/// Creates a platform before `walhook setup`, and the script for pgbench.
async fn primary(plan: &Plan) -> anyhow::Result<Rig> {
    let rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;

    let script = rig.server.directory().join("update.sql");
    let text = format!(
        "\\set row random(0, {ROWS} - 1)\n\
         update distro_queue set status = {NEXT_STATUS}, updated_at = now() where id = {ROW_ID_STRIDE} + :row;\n"
    );
    std::fs::write(&script, text).with_context(|| format!("cannot write {}", script.display()))?;

    Ok(rig)
}

async fn run(plan: &Plan, rig: &Rig, figures: &mut Figures, name: &str) -> anyhow::Result<()> {
    // Updates every page after the checkpoint, so that full-page images are not part of the
    // measurement.
    for statement in [
        "checkpoint",
        "update distro_queue set updated_at = now()",
        "vacuum (analyze)",
    ] {
        rig.platform.client.batch_execute(statement).await?;
    }

    let position = rig.platform.position().await?;
    let before = rig.cpu(&[]);
    let (transactions, per_second) = pgbench(rig, plan.seconds(10.0).as_secs()).await?;

    // The CPU time of ended sessions is counted for Postgres as a whole.
    eventually("pgbench's sessions have ended", || async {
        let sql =
            "select not exists (select from pg_stat_activity where application_name = 'pgbench')";
        Ok(rig.platform.client.query_one(sql, &[]).await?.get(0))
    })
    .await?;

    let seconds = rig.cpu(&[]).since(&before, Kind::Postgres);
    let bytes = rig.platform.position().await? - position;

    figures.add(tps(name), "TPS", per_second);
    figures.add(cpu(name), "µs each", seconds * 1e6 / transactions);
    figures.add(wal(name), "bytes each", bytes as f64 / transactions);

    Ok(())
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
