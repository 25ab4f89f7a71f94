//! One, two and four replicas with a slow receiver.
//!
//! This measures the configured cap, `delivery.per_webhook_concurrency`: a replica has at most 64
//! requests to one webhook in flight, so a receiver that takes 100 ms gets at most 640 deliveries
//! per second from each. Four replicas then use a part of most machines' processors, which would
//! otherwise be the limit. The figures show how much of the cap is used. They do not show the rate
//! that the machine could reach without it; `drain` does.

use super::backlog::Backlog;
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Rig, require_memory};

const MILLISECONDS: u64 = 100;
/// The default of `delivery.per_webhook_concurrency`.
const IN_FLIGHT: u64 = 64;
const CAP_OF_ONE: u64 = IN_FLIGHT * 1_000 / MILLISECONDS;

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("scale");
    let mut rig = Rig::start(&plan.walhook).await?;

    rig.platform.add_users(1, 1, ROWS).await?;
    rig.set_up("").await?;
    rig.create_webhooks(&[(1, rig.receiver.slow_url(MILLISECONDS))])
        .await?;

    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        for replicas in [1, 2, 4] {
            plan.show_step(format!(
                "scale: replicas: {replicas}, {repeat} of {repeats}"
            ));
            rig.rest().await?;

            let transitions = plan.count(2_000 * replicas as u64);
            let backlog = Backlog {
                user: 1,
                transitions,
                fan_out: 1,
                replicas,
            };

            let drained = backlog.drain(&mut rig, &mut figures).await?;
            let name = format!("replicas: {replicas}");
            let cap = format!("replicas: {replicas}, the configured cap");

            figures.add(&name, "deliveries/s", drained.rate);
            figures.add(&cap, "deliveries/s", (CAP_OF_ONE * replicas as u64) as f64);
            figures.ratio(
                format!("replicas: {replicas}, share of the cap"),
                &name,
                &cap,
                Some(Must::AtLeast(0.7)),
            );

            require_memory(&mut figures, &name, &drained.sidecars, MEMORY)?;
            drained.stop().await?;
        }
    }

    figures.ratio("two replicas / one", "replicas: 2", "replicas: 1", None);
    figures.ratio("four replicas / one", "replicas: 4", "replicas: 1", None);

    Ok(figures)
}
