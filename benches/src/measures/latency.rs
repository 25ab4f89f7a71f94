//! From a commit on the primary to the receipt, at an ordinary load and at a heavy one, and after a
//! restart.

use anyhow::{Context, ensure};

use super::backlog::Backlog;
use super::load::Load;
use super::{Plan, SMALL_MEMORY};
use crate::figures::{Figures, Must};
use crate::platform::micros_now;
use crate::rig::{Rig, require_memory};
use crate::sidecar::Sidecar;

/// Enough for 70 % of 70,000 events per second over six seconds.
const ROWS: u64 = 300_000;
const FEWEST_ROWS: u64 = 60_000;
const SHARES: [(f64, &str); 4] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "max")];

/// Of the drain rate: more than can be sustained, because the application's commits use the same
/// processors.
const OVERLOAD: f64 = 1.5;

/// Bounds on a load's latencies relative to the reference's.
struct Bounds {
    p50: f64,
    p99: f64,
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("latency");
    let mut rig = Rig::start(&plan.walhook).await?;

    // A short load lasts a second, and its warm-up another.
    let rows = plan.count(ROWS).max(FEWEST_ROWS);
    rig.platform.add_users(1, 1, rows).await?;
    rig.set_up("").await?;
    rig.create_webhooks(&[(1, rig.receiver.url())]).await?;

    let backlog = Backlog {
        user: 1,
        transitions: plan.count(30_000),
        fan_out: 1,
        replicas: 1,
    };

    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        plan.show_step(format!("latency: {repeat} of {repeats}"));

        // Measured in each repeat, because the machine's speed changes.
        let mut drained = backlog.drain(&mut rig, &mut figures).await?;
        let overload = Load::at_rate(1, drained.rate * OVERLOAD, plan.seconds(2.0));

        ensure!(
            overload.rows() <= rows,
            "the overload needs {} rows: raise ROWS",
            overload.rows()
        );
        let sustained =
            sustained_rate(&mut rig, &mut figures, &mut drained.sidecars, overload).await?;
        let heavy = Load::at_rate(1, sustained * 0.7, plan.seconds(5.0));

        ensure!(
            heavy.rows() <= rows,
            "the heavy load needs {} rows: raise ROWS",
            heavy.rows()
        );
        let ordinary = Load::ordinary(1, plan.seconds(10.0));

        record(
            &mut rig,
            &mut figures,
            &mut drained.sidecars,
            ordinary,
            "50/s",
            Bounds { p50: 4.0, p99: 3.0 },
        )
        .await?;

        record(
            &mut rig,
            &mut figures,
            &mut drained.sidecars,
            heavy,
            "70 % load",
            Bounds { p50: 8.0, p99: 6.0 },
        )
        .await?;

        rig.settle().await?;
        require_memory(&mut figures, "both", &drained.sidecars, SMALL_MEMORY)?;
        restart(plan, &mut rig, &mut figures, drained.sidecars).await?;
    }

    Ok(figures)
}

/// Measures how many events per second are delivered while the application commits more than that.
async fn sustained_rate(
    rig: &mut Rig,
    figures: &mut Figures,
    sidecars: &mut [Sidecar],
    overload: Load,
) -> anyhow::Result<f64> {
    rig.rest().await?;
    rig.warm_up(overload.user, overload.rows()).await?;
    let measured = overload.run(rig, sidecars).await?;

    figures.add("overload, written", "events/s", measured.rate);
    figures.add("overload, received", "events/s", measured.received);
    rig.settle().await?;

    Ok(measured.received)
}

async fn record(
    rig: &mut Rig,
    figures: &mut Figures,
    sidecars: &mut [Sidecar],
    load: Load,
    name: &str,
    bounds: Bounds,
) -> anyhow::Result<()> {
    rig.rest().await?;
    rig.warm_up(load.user, load.rows()).await?;

    let mut measured = load.run(rig, sidecars).await?;
    figures.add(format!("{name}, written"), "events/s", measured.rate);
    figures.add(
        format!("{name}, autovacuums meanwhile"),
        "",
        measured.autovacuums as f64,
    );

    for (share, quantile) in SHARES {
        figures.add(
            format!("{name}, {quantile}"),
            "ms",
            measured.of_receipts(share),
        );
    }

    for (share, quantile, bound) in [(0.5, "p50", bounds.p50), (0.99, "p99", bounds.p99)] {
        let reference = format!("{name}, two commits and a bare POST, {quantile}");
        figures.add(&reference, "ms", measured.reference(share));
        let ratio = format!("{name}, {quantile} / two commits and a bare POST");
        let over = format!("{name}, {quantile}");
        figures.ratio(ratio, &over, &reference, Some(Must::AtMost(bound)));
    }

    Ok(())
}

const RESTART: &str = "first event after a restart";
/// Commits per second while the sidecar is killed and started again.
const RESTART_RATE: f64 = 500.0;

/// Kills the sidecar while the application commits, and measures how long after the start of the
/// next one the first event is received.
async fn restart(
    plan: &Plan,
    rig: &mut Rig,
    figures: &mut Figures,
    killed: Vec<Sidecar>,
) -> anyhow::Result<()> {
    let load = Load::at_rate(1, RESTART_RATE, plan.seconds(4.0));
    rig.rest().await?;
    rig.receiver.reset().await?;

    let writing = tokio::spawn(load.write_on_thread(rig.platform.url().to_owned()));
    tokio::time::sleep(load.warm_up + load.length / 2).await;

    for sidecar in killed {
        sidecar.kill().await?;
    }

    let started_at = micros_now();
    let mut sidecars = [rig.installation.start("restarted", "capture,deliver,api")?];
    let commits = writing.await??;
    let rows = commits
        .iter()
        .map(|commit| (commit.first_row, ()))
        .collect();
    let receipts = rig.wait_for_receipts(&mut sidecars, &rows).await?;
    let first = receipts
        .iter()
        .map(|(_, at)| *at)
        .filter(|at| *at > started_at)
        .min();
    let first = first.context("no event after the restart")?;

    figures.add(RESTART, "ms", (first - started_at) as f64 / 1e3);
    rig.settle().await?;
    let [sidecar] = sidecars;
    sidecar.stop().await
}
