//! From a commit on the primary to the receipt, at an ordinary load and at a heavy one.

use super::backlog::Backlog;
use super::load::{Load, warm_up};
use super::{Plan, SMALL_MEMORY};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Rig, require_memory};
use crate::sidecar::Sidecar;

const SHARES: [(f64, &str); 4] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "max")];

/// What a load's latency may be over the reference, in milliseconds.
struct Bounds {
    p50: f64,
    p99: f64,
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("latency");
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.set_up("").await?;
    rig.create_webhooks(&[(1, rig.receiver.url())]).await?;
    let backlog = Backlog { user: 1, transitions: plan.count(60_000), fan_out: 1, replicas: 1 };
    for repeat in 1..=plan.repeats {
        plan.tell(format!("latency: {repeat} of {}", plan.repeats));
        // Each time anew: the machine's speed changes, and a share of what it could do a minute ago says little.
        let mut drained = backlog.drain(&mut rig, &mut figures).await?;
        let heavy = drained.rate * 0.7;
        warm_up(&rig, 1).await?;
        let load = Load { user: 1, rate: 50.0, length: plan.seconds(8.0) };
        record(&mut rig, &mut figures, &mut drained.sidecars, load, "50/s", Bounds { p50: 1.0, p99: 4.0 }).await?;
        let load = Load { user: 1, rate: heavy, length: plan.seconds(5.0) };
        record(&mut rig, &mut figures, &mut drained.sidecars, load, "70 % load", Bounds { p50: 4.0, p99: 30.0 })
            .await?;
        rig.settle().await?;
        require_memory(&mut figures, "both", &drained.sidecars, SMALL_MEMORY)?;
        drained.stop().await?;
    }
    Ok(figures)
}

async fn record(
    rig: &mut Rig,
    figures: &mut Figures,
    sidecars: &mut [Sidecar],
    load: Load,
    name: &str,
    bounds: Bounds,
) -> anyhow::Result<()> {
    let mut measured = load.run(rig, sidecars).await?;
    figures.add(format!("{name}, written"), "events/s", measured.rate);
    for (share, quantile) in SHARES {
        figures.add(format!("{name}, {quantile}"), "ms", measured.of_receipts(share));
    }
    for (share, quantile, bound) in [(0.5, "p50", bounds.p50), (0.99, "p99", bounds.p99)] {
        let reference = measured.reference(share);
        figures.add(format!("{name}, commit and bare POST, {quantile}"), "ms", reference);
        let over = measured.of_receipts(share) - reference;
        figures.require(format!("{name}, {quantile} over them"), "ms", over, Must::AtMost(bound));
    }
    Ok(())
}
