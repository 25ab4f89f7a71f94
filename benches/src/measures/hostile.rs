//! An ordinary webhook beside a tenant that attacks: it calls the API far above its limit, with queries of the delivery log that
//! match nothing, holds connections open, sends headers byte by byte, and its receivers hang. Then beside ten thousand
//! hanging receivers of a thousand tenants. Each is compared with the same tenants while they behave: with the same changes of their rows
//! and receivers that answer.
//!
//! The tenants and their receivers have a processor of their own, as if they were other machines: otherwise the figures would mostly show
//! how attackers and target share the processors.

use std::time::Duration;

use anyhow::Context;
use tokio::runtime::Handle;

use super::dead::end;
use super::load::{Latencies, Load};
use super::tenants::{Activity, Running};
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::processors::Separation;
use crate::receiver::Receiver;
use crate::rig::{Held, Rig, require_memory};
use crate::sidecar::{Sidecar, Webhook};

/// The hostile user. Deliveries of user 1 are timed.
const HOSTILE: u64 = 2;
/// The maximum per tenant.
const WEBHOOKS_EACH: usize = 10;
/// Tenants of the ten thousand receivers, including the hostile one.
const TENANTS: u64 = 1_000;
/// Entries of the searched attempt log.
const LINES: u64 = 1_000_000;

const ALONE: Case = Case { name: "alone, p99", users: None, conduct: Conduct::Good };
/// Of a case, of the same case while the tenants behave, and the name of their ratio.
const PAIRS: [(Case, Case, &str); 2] = [
    (
        Case { name: "beside the hostile tenant, p99", users: Some(1), conduct: Conduct::Attacks },
        Case { name: "beside the same tenant while it behaves, p99", users: Some(1), conduct: Conduct::Good },
        "hostile tenant / the same while it behaves",
    ),
    (
        Case { name: "beside ten thousand receivers that hang, p99", users: Some(TENANTS), conduct: Conduct::Hangs },
        Case { name: "beside ten thousand receivers that answer, p99", users: Some(TENANTS), conduct: Conduct::Good },
        "receivers that hang / that answer",
    ),
];

/// What happens beside the measured webhook.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The number of other tenants. None if there are none.
    users: Option<u64>,
    conduct: Conduct,
}

/// How the other tenants behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Conduct {
    /// Their receivers answer.
    Good,
    /// Their receivers hang.
    Hangs,
    /// The receivers hang, and the API is attacked too.
    Attacks,
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("hostile");
    let separation = Separation::new()?;
    figures.add("processors of the measured system", "", f64::from(separation.measured()));
    let runtime = separation.runtime().handle().clone();
    let others = Others { receiver: runtime.spawn(Receiver::start()).await??, runtime, tenants: plan.count(TENANTS) };
    let (mut rig, searched) = installed(plan, &others).await?;
    let (repeats, length) = (plan.latencies(), plan.seconds(10.0));
    for repeat in 1..=repeats {
        for case in std::iter::once(ALONE).chain(PAIRS.iter().flat_map(|(hostile, good, _)| [*good, *hostile])) {
            plan.show_step(format!("hostile: {}, {repeat} of {repeats}", case.name));
            let (mut measured, sidecars) = run(&mut rig, &mut figures, case, &others, &searched, length).await?;
            figures.add(case.name, "ms", measured.of_receipts(0.99));
            // Other tenants' changes also slow the platform's own commits.
            figures.add(format!("{}, of commit and bare POST", case.name), "ms", measured.reference(0.99));
            require_memory(&mut figures, "all", &sidecars, MEMORY)?;
            end(&rig, sidecars).await?;
        }
    }
    for (hostile, good, ratio) in PAIRS {
        figures.ratio(ratio, hostile.name, good.name, Some(Must::AtMost(1.5)));
        figures.ratio(format!("{} / alone", hostile.name), hostile.name, ALONE.name, None);
    }
    Ok(figures)
}

/// The other tenants.
struct Others {
    receiver: Receiver,
    /// On a processor of its own.
    runtime: Handle,
    tenants: u64,
}

/// Sets up both cases. Returns the webhook whose log is searched.
async fn installed(plan: &Plan, others: &Others) -> anyhow::Result<(Rig, String)> {
    let tenants = others.tenants;
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.platform.add_users(HOSTILE, HOSTILE + tenants - 1, 100).await?;
    rig.set_up("").await?;
    plan.show_step("hostile: creating webhooks");
    rig.create_webhooks(&[(1, rig.receiver.url())]).await?;
    rig.deliver_sample(1).await?;
    let owners = (HOSTILE..HOSTILE + tenants).flat_map(|user| std::iter::repeat_n(user, WEBHOOKS_EACH));
    let wanted: Vec<(u64, String)> = owners.map(|user| (user, others.receiver.url())).collect();
    let created: Vec<Webhook> = rig.installation.create_webhooks(&wanted, "none").await?;
    let searched = created.first().context("a webhook of the hostile tenant")?.id.clone();
    let lines = format!(
        "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, duration_ms,
             outcome, response_status, url, signature, standard_signature, response_body)
         select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0') || '7' || substr(gen_random_uuid()::text, 16))::uuid,
             '{searched}', gen_random_uuid(), gen_random_uuid(), 'distribution.outlet.status_changed', 1, 1, now(), 3, 'delivered', 200,
             'http://127.0.0.1/', sha256(n::text::bytea), sha256(n::text::bytea), ''
         from generate_series(1, {}) n",
        plan.count(LINES)
    );
    rig.store.batch_execute(&lines).await.context("filling the hostile tenant's log")?;
    rig.read_wal().await?;
    Ok((rig, searched))
}

/// Runs the load while the other tenants do what `case` says.
async fn run(
    rig: &mut Rig,
    figures: &mut Figures,
    case: Case,
    others: &Others,
    searched: &str,
    length: Duration,
) -> anyhow::Result<(Latencies, [Sidecar; 1])> {
    let load = Load::ordinary(1, length);
    let Others { receiver, runtime, tenants } = others;
    let url = if case.conduct == Conduct::Good { receiver.url() } else { receiver.hanging_url() };
    let elsewhere = "update walhook.webhook set url = $1 where user_id <> '1'";
    rig.store.execute(elsewhere, &[&url]).await.context("other receivers")?;
    rig.rest().await?;
    let mut sidecars = [rig.start_sidecar("measured").await?];
    rig.warm_up(load.user, load.rows()).await?;
    let running = match case.users {
        Some(users) => {
            let searched = (case.conduct == Conduct::Attacks).then(|| searched.to_owned());
            let activity = Activity { searched, users: HOSTILE..HOSTILE + users.min(*tenants) };
            Some(Running::start(activity, &sidecars[0], rig.platform.url(), runtime)?)
        }
        None => None,
    };
    let measured = load.run(rig, &mut sidecars).await?;
    if let Some(running) = running {
        rig.require_bounded_queues(figures, Held::All, 1).await?;
        running.end(figures).await?;
    }
    Ok((measured, sidecars))
}
