//! Deliveries per second from a backlog in the WAL, to one webhook and to ten of a user, compared
//! with a bare loop of POSTs and with the receiver's capacity.

use std::time::Duration;

use super::backlog::Backlog;
use super::{MEMORY, Plan, SMALL_MEMORY};
use crate::bare::Bare;
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Rig, add_cpu, require_memory};

struct Case {
    name: &'static str,
    backlog: Backlog,
    /// As many requests as the sidecar has in flight by default.
    concurrency: usize,
    of_bare: f64,
    /// A bound on peak memory in megabytes. Each connection has 16 KiB of buffers.
    memory: f64,
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("drain");
    let mut rig = Rig::start(&plan.walhook).await?;

    rig.platform.add_users(1, 2, ROWS).await?;
    rig.set_up("").await?;

    let url = rig.receiver.url();
    let wanted: Vec<(u64, String)> = [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        .map(|user| (user, url.clone()))
        .to_vec();

    rig.create_webhooks(&wanted).await?;
    rig.deliver_sample(1).await?;

    let one = Backlog {
        user: 1,
        transitions: plan.count(150_000),
        fan_out: 1,
        replicas: 1,
    };

    let ten = Backlog {
        user: 2,
        transitions: plan.count(15_000),
        fan_out: 10,
        replicas: 1,
    };

    let cases = [
        Case {
            name: "one webhook",
            backlog: one,
            concurrency: 64,
            of_bare: 0.12,
            memory: SMALL_MEMORY,
        },
        Case {
            name: "ten webhooks",
            backlog: ten,
            concurrency: 256,
            of_bare: 0.16,
            memory: MEMORY,
        },
    ];

    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        for case in &cases {
            plan.show_step(format!("drain: {}, {repeat} of {repeats}", case.name));
            measure_case(plan, &mut rig, &mut figures, case).await?;
        }
    }

    Ok(figures)
}

async fn measure_case(
    plan: &Plan,
    rig: &mut Rig,
    figures: &mut Figures,
    case: &Case,
) -> anyhow::Result<()> {
    let Case {
        name, concurrency, ..
    } = *case;
    let bare = Bare::new(&mut rig.receiver).await?;
    let loop_name = format!("bare loop, {concurrency} at once");
    let raw_name = format!("raw sockets, {concurrency} at once");

    figures.add(
        &raw_name,
        "POSTs/s",
        bare.raw_rate(&rig.receiver, concurrency, plan.seconds(2.0))
            .await?,
    );

    figures.add(
        &loop_name,
        "POSTs/s",
        bare.rate(concurrency, plan.seconds(2.0)).await?,
    );
    drop(bare);

    // Let the machine become idle before the sidecar starts.
    rig.rest().await?;
    tokio::time::sleep(Duration::from_millis(200)).await;

    let drained = case.backlog.drain(rig, figures).await?;
    figures.add(name, "deliveries/s", drained.rate);
    figures.ratio(
        format!("{name} / bare loop"),
        name,
        &loop_name,
        Some(Must::AtLeast(case.of_bare)),
    );

    // The receiver must not be the bottleneck of either.
    figures.ratio(
        format!("raw sockets / bare loop, {concurrency} at once"),
        &raw_name,
        &loop_name,
        Some(Must::AtLeast(1.1)),
    );

    add_cpu(
        figures,
        name,
        &drained.before,
        &drained.after,
        drained.deliveries,
    );

    require_memory(figures, name, &drained.sidecars, case.memory)?;
    drained.stop().await
}
