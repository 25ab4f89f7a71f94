//! One healthy webhook beside nine of the same user whose receivers hang until the timeout.

use super::load::Load;
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Held, Rig, require_memory};
use crate::sidecar::Sidecar;

const ALONE: &str = "alone, p99";
const BESIDE: &str = "beside nine that hang, p99";

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("dead");
    let mut rig = Rig::start(&plan.walhook).await?;

    rig.platform.add_users(1, 2, ROWS).await?;
    rig.set_up("").await?;

    let good = rig.receiver.url();
    let hanging = rig.receiver.hanging_url();
    let mut wanted = vec![(1, good.clone()), (2, good)];

    wanted.extend(std::iter::repeat_n((2, hanging), 9));
    rig.create_webhooks(&wanted).await?;
    rig.deliver_sample(1).await?;

    // Longer than the timeout of 10 s, so that requests hang, time out and hang again.
    let length = plan.seconds(10.0);
    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        for (name, user) in [(ALONE, 1), (BESIDE, 2)] {
            let what = format!("dead: {name}, {repeat} of {repeats}");
            let (mut measured, sidecars) = Load::ordinary(user, length)
                .run_on_new_sidecar(plan, &mut rig, &what)
                .await?;

            figures.add(name, "ms", measured.of_receipts(0.99));

            if user == 2 {
                rig.require_bounded_queues(&mut figures, Held::All, 1)
                    .await?;
            }

            require_memory(&mut figures, "both", &sidecars, MEMORY)?;
            end(&rig, sidecars).await?;
        }
    }

    figures.ratio(
        "beside nine / alone",
        BESIDE,
        ALONE,
        Some(Must::AtMost(1.5)),
    );

    Ok(figures)
}

/// Kills the sidecar without waiting for hanging requests, and removes its deliveries.
pub async fn end(rig: &Rig, [sidecar]: [Sidecar; 1]) -> anyhow::Result<()> {
    rig.catch_up().await?;
    sidecar.kill().await?;
    rig.forget_deliveries().await
}
