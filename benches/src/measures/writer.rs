//! What watching costs the application that writes: transactions a second and bytes of log an update, by pgbench.

use anyhow::{Context, bail};

use super::Plan;
use crate::figures::Figures;
use crate::platform::{DATABASE, NEXT_STATUS, ROWS, ROWS_APART};
use crate::rig::Rig;

const CLIENTS: &str = "4";

/// How the rows are watched: a name, and the setting of the source that makes it so.
const WAYS: [(&str, &str); 3] = [
    ("replica identity full", "replica_identity = \"full\""),
    ("replica identity index", "replica_identity = \"index\""),
    ("triggers", "capture = \"trigger\""),
];

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("writer");
    let rig = primary(plan).await?;
    let mut unwatched = Vec::new();
    for repeat in 1..=plan.repeats {
        plan.tell(format!("writer: unwatched, {repeat} of {}", plan.repeats));
        unwatched.push(run(plan, &rig, &mut figures, "unwatched").await?);
    }
    for (name, source) in WAYS {
        let mut rig = primary(plan).await?;
        rig.installation.configure(source, "");
        if let Err(refusal) = rig.installation.set_up().await {
            plan.progress.suspend(|| eprintln!("left out: the writer's cost of {name}: {refusal}"));
            continue;
        }
        for (repeat, unwatched) in unwatched.iter().enumerate() {
            plan.tell(format!("writer: {name}, {} of {}", repeat + 1, plan.repeats));
            let watched = run(plan, &rig, &mut figures, name).await?;
            figures.add(format!("{name} / unwatched, TPS"), "", watched.per_second / unwatched.per_second);
            figures.add(format!("{name} / unwatched, log"), "", watched.bytes / unwatched.bytes);
        }
    }
    Ok(figures)
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

struct Cost {
    per_second: f64,
    bytes: f64,
}

async fn run(plan: &Plan, rig: &Rig, figures: &mut Figures, name: &str) -> anyhow::Result<Cost> {
    // Pages are written whole into the log the first time after a checkpoint: not while we count.
    for statement in ["checkpoint", "update distro_queue set updated_at = now()", "vacuum distro_queue"] {
        rig.platform.client.batch_execute(statement).await?;
    }
    let before = rig.platform.position().await?;
    let (transactions, per_second) = pgbench(rig, plan.seconds(2.0).as_secs()).await?;
    let bytes = (rig.platform.position().await? - before) as f64 / transactions;
    figures.add(name, "TPS", per_second);
    figures.add(format!("{name}, log"), "bytes each", bytes);
    Ok(Cost { per_second, bytes })
}

/// Transactions, and how many a second.
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
    let processed = behind("number of transactions actually processed: ").context("pgbench tells no transactions")?;
    Ok((processed, behind("tps = ").context("pgbench tells no rate")?))
}
