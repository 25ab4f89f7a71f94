//! A webhook that answers, beside nine of the same user that hang until the timeout.

use super::load::{Load, warm_up};
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Held, Rig, require_memory};

/// Shorter than the default so that every slot is taken and timed out within a repeat.
const TIMEOUT: &str = "timeout = \"2s\"";
const RATE: f64 = 50.0;

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("dead");
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 2, ROWS).await?;
    rig.set_up(TIMEOUT).await?;
    let (good, hanging) = (rig.receiver.url(), rig.receiver.hanging_url());
    let mut wanted = vec![(1, good.clone()), (2, good)];
    wanted.extend(std::iter::repeat_n((2, hanging), 9));
    rig.create_webhooks(&wanted).await?;

    let mut sidecars = [rig.start_sidecar("dead").await?];
    warm_up(&rig, 1).await?;
    let length = plan.seconds(7.0);
    let mut alone = Vec::new();
    // What hangs leaves retries behind, so whatever is alone comes first.
    for repeat in 1..=plan.repeats {
        plan.tell(format!("dead: alone, {repeat} of {}", plan.repeats));
        let mut measured = Load { user: 1, rate: RATE, length }.run(&mut rig, &mut sidecars).await?;
        alone.push(measured.of_receipts(0.99));
        figures.add("alone, p99", "ms", measured.of_receipts(0.99));
    }
    warm_up(&rig, 2).await?;
    for (repeat, alone) in alone.into_iter().enumerate() {
        plan.tell(format!("dead: beside nine that hang, {} of {}", repeat + 1, plan.repeats));
        let mut measured = Load { user: 2, rate: RATE, length }.run(&mut rig, &mut sidecars).await?;
        let p99 = measured.of_receipts(0.99);
        figures.add("beside nine that hang, p99", "ms", p99);
        figures.require("beside nine / alone", "", p99 / alone, Must::AtMost(1.5));
        rig.require_bounded_queues(&mut figures, Held::All, 1).await?;
    }
    require_memory(&mut figures, "both", &sidecars, MEMORY)?;
    let [sidecar] = sidecars;
    sidecar.stop().await?;
    Ok(figures)
}
