//! What `ordering` costs: deliveries per second from a backlog to one webhook, beside one without
//! an order.

use super::backlog::Backlog;
use super::{Plan, SMALL_MEMORY};
use crate::figures::Figures;
use crate::platform::ROWS;
use crate::rig::{Rig, require_memory};

/// An ordering, and how many transitions take some seconds under it.
const ORDERINGS: [(&str, u64); 3] = [("none", 50_000), ("release", 20_000), ("strict", 2_000)];

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("ordering");
    let mut rig = Rig::start(&plan.walhook).await?;

    rig.platform
        .add_users(1, ORDERINGS.len() as u64, ROWS)
        .await?;
    rig.set_up("").await?;

    let url = rig.receiver.url();

    for (user, (ordering, _)) in (1..).zip(ORDERINGS) {
        rig.create_ordered_webhooks(&[(user, url.clone())], ordering)
            .await?;
    }

    rig.deliver_sample(1).await?;
    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        for (user, (ordering, transitions)) in (1..).zip(ORDERINGS) {
            plan.show_step(format!("ordering: {ordering}, {repeat} of {repeats}"));
            rig.rest().await?;

            let backlog = Backlog {
                user,
                transitions: plan.count(transitions),
                fan_out: 1,
                replicas: 1,
            };

            let drained = backlog.drain(&mut rig, &mut figures).await?;
            figures.add(ordering, "deliveries/s", drained.rate);
            require_memory(&mut figures, ordering, &drained.sidecars, SMALL_MEMORY)?;
            drained.stop().await?;
        }
    }

    figures.ratio("release / none", "release", "none", None);
    figures.ratio("strict / none", "strict", "none", None);

    Ok(figures)
}
