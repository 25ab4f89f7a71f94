//! What watching costs the application that writes: transactions per second, Postgres's CPU time and bytes of WAL for each, by
//! pgbench. A server without watching and one for each way of watching take turns.
//!
//! No sidecar runs meanwhile: its own work would compete for the same processors. What reading the WAL costs is in `capture`.

use anyhow::{Context, bail};

use super::Plan;
use crate::figures::Figures;
use crate::platform::{DATABASE, NEXT_STATUS, ROWS, ROWS_APART};
use crate::processes::Kind;
use crate::rig::Rig;
use crate::wait::eventually;

const CLIENTS: &str = "4";
const UNWATCHED: &str = "unwatched";

/// How the rows are watched: a name, and the setting of the source that makes it so.
const WAYS: [(&str, Option<&str>); 4] = [
    (UNWATCHED, None),
    ("replica identity full", Some("replica_identity = \"full\"")),
    ("replica identity index", Some("replica_identity = \"index\"")),
    ("triggers", Some("capture = \"trigger\"")),
];

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("writer");
    let mut servers = Vec::new();
    for (name, source) in WAYS {
        plan.tell(format!("writer: preparing {name}"));
        let mut rig = primary(plan).await?;
        if let Some(source) = source {
            rig.installation.configure(source, "");
            if let Err(refusal) = rig.installation.set_up().await {
                plan.progress.suspend(|| eprintln!("left out: the writer's cost of {name}: {refusal}"));
                continue;
            }
        }
        servers.push((name, rig));
    }
    let repeats = plan.latencies();
    for repeat in 1..=repeats {
        // Each is the first in turn: what the machine's speed does within a repeat favours none.
        servers.rotate_left(1);
        for (name, rig) in &servers {
            plan.tell(format!("writer: {name}, {repeat} of {repeats}"));
            run(plan, rig, &mut figures, name).await?;
        }
    }
    for (name, _) in WAYS.iter().filter(|(name, _)| servers.iter().any(|(kept, _)| kept == name)) {
        if *name == UNWATCHED {
            continue;
        }
        figures.ratio(format!("{name} / unwatched, TPS"), &tps(name), &tps(UNWATCHED), None);
        figures.ratio(format!("{name} / unwatched, CPU"), &cpu(name), &cpu(UNWATCHED), None);
        figures.ratio(format!("{name} / unwatched, WAL"), &wal(name), &wal(UNWATCHED), None);
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

/// A platform that nothing was done to, and what pgbench is to do.
async fn primary(plan: &Plan) -> anyhow::Result<Rig> {
    let rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    let script = rig.server.directory().join("update.sql");
    let text = format!(
        "\\set row random(0, {ROWS} - 1)\n\
         update distro_queue set status = {NEXT_STATUS}, updated_at = now() where id = {ROWS_APART} + :row;\n"
    );
    std::fs::write(&script, text).with_context(|| format!("cannot write {}", script.display()))?;
    Ok(rig)
}

async fn run(plan: &Plan, rig: &Rig, figures: &mut Figures, name: &str) -> anyhow::Result<()> {
    // Pages are written whole into the WAL the first time after a checkpoint: not while it is counted.
    for statement in ["checkpoint", "update distro_queue set updated_at = now()", "vacuum (analyze)"] {
        rig.platform.client.batch_execute(statement).await?;
    }
    let (place, before) = (rig.platform.position().await?, rig.cpu(&[]));
    let (transactions, per_second) = pgbench(rig, plan.seconds(10.0).as_secs()).await?;
    // Sessions that have ended are in the account of Postgres as a whole.
    eventually("pgbench's sessions have ended", || async {
        let sql = "select not exists (select from pg_stat_activity where application_name = 'pgbench')";
        Ok(rig.platform.client.query_one(sql, &[]).await?.get(0))
    })
    .await?;
    let seconds = rig.cpu(&[]).since(&before, Kind::Postgres);
    let bytes = rig.platform.position().await? - place;
    figures.add(tps(name), "TPS", per_second);
    figures.add(cpu(name), "µs each", seconds * 1e6 / transactions);
    figures.add(wal(name), "bytes each", bytes as f64 / transactions);
    Ok(())
}

/// Runs pgbench. Returns the number of transactions, and how many per second.
async fn pgbench(rig: &Rig, seconds: u64) -> anyhow::Result<(f64, f64)> {
    let mut command = rig.server.program("pgbench");
    command.args(["--no-vacuum", "--protocol", "prepared", "--client", CLIENTS, "--file", "update.sql"]);
    command.args(["--time", &seconds.to_string(), &rig.server.socket_url(DATABASE)]);
    let output = command.output().await.context("pgbench, which belongs to PostgreSQL's client programs")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("pgbench failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let behind = |words: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(words))?;
        rest.split([' ', '/']).find_map(|word| word.parse::<f64>().ok())
    };
    let processed = behind("number of transactions actually processed: ").context("pgbench reports no transactions")?;
    Ok((processed, behind("tps = ").context("pgbench reports no rate")?))
}
