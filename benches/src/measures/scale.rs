//! One, two and four replicas, with a receiver that takes its time.

use super::backlog::Backlog;
use super::{MEMORY, Plan};
use crate::figures::Figures;
use crate::platform::ROWS;
use crate::rig::{Rig, require_memory};

const MILLISECONDS: u64 = 20;

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("scale");
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.set_up("").await?;
    rig.create_webhooks(&[(1, rig.receiver.slow_url(MILLISECONDS))]).await?;
    for repeat in 1..=plan.repeats {
        for replicas in [1, 2, 4] {
            plan.tell(format!("scale: replicas: {replicas}, {repeat} of {}", plan.repeats));
            // Each replica may have 64 requests to a webhook under way: 3,200 deliveries a second.
            let transitions = plan.count(5_000 * replicas as u64);
            let backlog = Backlog { user: 1, transitions, fan_out: 1, replicas };
            let drained = backlog.drain(&mut rig, &mut figures).await?;
            let name = format!("replicas: {replicas}");
            figures.add(&name, "deliveries/s", drained.rate);
            require_memory(&mut figures, &name, &drained.sidecars, MEMORY)?;
            drained.stop().await?;
        }
    }
    Ok(figures)
}
