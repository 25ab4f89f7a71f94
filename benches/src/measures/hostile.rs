//! Ordinary webhooks beside a tenant that attacks: it calls the API far above its limit, with queries of the delivery log that
//! match nothing, holds connections open, sends headers byte by byte, and its receivers hang. Then beside ten thousand
//! hanging receivers of a thousand tenants.
//!
//! The attackers and the hanging receivers have a processor of their own, as if they were other machines: otherwise the figures would
//! mostly show how attackers and target share the processors.

use std::time::Duration;

use anyhow::Context;
use tokio::runtime::Handle;

use super::attack::{Attack, Attackers};
use super::dead::end;
use super::load::{Latencies, Load};
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

const ALONE: &str = "alone, p99";
const ATTACKED: &str = "beside the hostile tenant, p99";
const HANGING: &str = "beside ten thousand receivers that hang, p99";

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("hostile");
    let separation = Separation::new()?;
    figures.add("processors of the measured system", "", f64::from(separation.measured()));
    let runtime = separation.runtime().handle().clone();
    let attacker = runtime.spawn(Receiver::start()).await??;
    let tenants = plan.count(TENANTS);
    let (mut rig, searched) = installed(plan, tenants, &attacker).await?;
    let length = plan.seconds(10.0);
    let repeats = plan.latencies();
    for repeat in 1..=repeats {
        for name in [ALONE, ATTACKED, HANGING] {
            plan.show_step(format!("hostile: {name}, {repeat} of {repeats}"));
            let attack = match name {
                ATTACKED => Some(Attack::on_the_api(HOSTILE, searched.clone())),
                HANGING => Some(Attack::by_receivers(HOSTILE..HOSTILE + tenants)),
                _ => None,
            };
            let (mut measured, sidecars) = run(&mut rig, &mut figures, attack, &runtime, length).await?;
            figures.add(name, "ms", measured.of_receipts(0.99));
            // The attack also slows the platform's own commits.
            figures.add(format!("{name}, of commit and bare POST"), "ms", measured.reference(0.99));
            require_memory(&mut figures, "all", &sidecars, MEMORY)?;
            end(&rig, sidecars).await?;
        }
    }
    figures.ratio("beside the hostile tenant / alone", ATTACKED, ALONE, Some(Must::AtMost(1.5)));
    figures.ratio("beside receivers that hang / alone", HANGING, ALONE, Some(Must::AtMost(1.5)));
    Ok(figures)
}

/// Sets up both cases. Returns the webhook whose log is searched.
async fn installed(plan: &Plan, tenants: u64, attacker: &Receiver) -> anyhow::Result<(Rig, String)> {
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.platform.add_users(HOSTILE, HOSTILE + tenants - 1, 100).await?;
    rig.set_up("").await?;
    plan.show_step("hostile: creating webhooks");
    let (good, hanging) = (rig.receiver.url(), attacker.hanging_url());
    rig.create_webhooks(&[(1, good)]).await?;
    rig.deliver_sample(1).await?;
    let owners = (HOSTILE..HOSTILE + tenants).flat_map(|user| std::iter::repeat_n(user, WEBHOOKS_EACH));
    let wanted: Vec<(u64, String)> = owners.map(|user| (user, hanging.clone())).collect();
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

/// Runs the load while the attack is running.
async fn run(
    rig: &mut Rig,
    figures: &mut Figures,
    attack: Option<Attack>,
    runtime: &Handle,
    length: Duration,
) -> anyhow::Result<(Latencies, [Sidecar; 1])> {
    let load = Load::ordinary(1, length);
    rig.rest().await?;
    let mut sidecars = [rig.start_sidecar("measured").await?];
    rig.warm_up(load.user, load.rows()).await?;
    let attackers = match attack {
        Some(attack) => Some(Attackers::start(attack, &sidecars[0], rig.platform.url(), runtime)?),
        None => None,
    };
    let measured = load.run(rig, &mut sidecars).await?;
    if let Some(attackers) = attackers {
        rig.require_bounded_queues(figures, Held::All, 1).await?;
        attackers.end(figures).await?;
    }
    Ok((measured, sidecars))
}
