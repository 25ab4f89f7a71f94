//! An ordinary webhook, and a polite API client of its owner, beside others that behave badly:
//!
//! - a tenant that attacks: it calls the API far above its limit, with queries of the delivery log
//!   that match nothing, there are more slow API clients than connections, and its receivers hang or
//!   send interim responses, or heads, without end;
//! - ten thousand receivers of a thousand tenants, of which a third misbehave, each in one of six
//!   ways.
//!
//! Each is compared with the same tenants while they behave: with the same changes of their rows
//! and receivers that answer.
//!
//! The tenants and their receivers have a processor of their own, as if they were other machines:
//! otherwise the figures would mostly show how attackers and target share the processors.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::Plan;
use super::clients;
use super::dead::end;
use super::load::{Latencies, Load};
use super::polite::{PoliteClient, p99};
use super::reach::{Reach, mixed};
use super::tenants::{self, Activity, Running};
use crate::figures::{Figures, Must};
use crate::platform::{Muted, ROWS};
use crate::processors::Separation;
use crate::receiver::{Kind, Receiver};
use crate::rig::{Held, Rig, require_memory};
use crate::sidecar::Sidecar;

/// Deliveries of this user are timed, and requests of its API client.
const MEASURED: u64 = 1;
/// The hostile user.
const HOSTILE: u64 = 2;
/// The maximum per tenant.
const WEBHOOKS_EACH: usize = 10;
/// Tenants of the ten thousand receivers, including the hostile one.
const TENANTS: u64 = 1_000;
/// Entries of the searched attempt log.
const LINES: u64 = 250_000;
/// Seconds between the start of the other tenants' activity and that of the load, for all cases.
/// The activity starts with a delivery to each receiver. If all receivers answer, they do so in this
/// time. Deliveries to those that hang are in flight, or queued, from then on. All slow clients have
/// connected too.
const SETTLE: f64 = 5.0;
/// Seconds of the load: `delivery.timeout`, after which requests to receivers that never answer end
/// together. Each load has one such moment.
const LENGTH: f64 = 10.0;
/// Transitions per second: so many that the p99 is the fifteenth largest of 1,500 samples.
const RATE: f64 = 150.0;

/// A bound on peak memory in megabytes: more than that of other measures, because about 1,700
/// requests of 50 KB each wait for receivers.
const MEMORY: f64 = 160.0;

const ATTACK: Pair = Pair {
    hostile: Case {
        name: "beside the hostile tenant",
        tenants: 1,
        receivers: Conduct::Attack,
    },
    good: Case {
        name: "beside the same tenant while it behaves",
        tenants: 1,
        receivers: Conduct::Answer,
    },
    ratio: "hostile tenant / the same while it behaves",
};
const RECEIVERS: Pair = Pair {
    hostile: Case {
        name: "beside ten thousand receivers, a third hostile",
        tenants: TENANTS,
        receivers: Conduct::Mixed,
    },
    good: Case {
        name: "beside ten thousand receivers that answer",
        tenants: TENANTS,
        receivers: Conduct::Answer,
    },
    ratio: "receivers, a third hostile / that answer",
};

/// A case, the same case while the others behave, and the name of their ratio.
struct Pair {
    hostile: Case,
    good: Case,
    ratio: &'static str,
}

/// What happens beside the measured webhook.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The number of other tenants whose rows change.
    tenants: u64,
    receivers: Conduct,
}

/// How the receivers of the other tenants behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Conduct {
    Answer,
    /// They hang or send without end, and their owner attacks the API.
    Attack,
    /// A third misbehave.
    Mixed,
}

impl Case {
    fn receipts(self) -> String {
        format!("{}, p99", self.name)
    }
}

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("hostile");
    let separation = Separation::new()?;

    figures.add(
        "processors of the measured system",
        "",
        f64::from(separation.measured()),
    );
    figures.add("slow API clients", "", clients::ALL as f64);

    let runtime = separation.runtime().handle().clone();
    let receiver = runtime.spawn(Receiver::start()).await??;
    let tenants = plan.count(TENANTS);
    let webhooks = Vec::new();
    let measured = Uuid::nil();
    let settle = plan.seconds(SETTLE);

    let mut others = Others {
        receiver,
        runtime,
        tenants,
        webhooks,
        measured,
        settle,
    };

    let mut rig = installed(plan, &mut others).await?;
    let repeats = plan.repeats;
    let length = plan.seconds(LENGTH);
    let cases = [
        ATTACK.good,
        ATTACK.hostile,
        RECEIVERS.good,
        RECEIVERS.hostile,
    ];

    for repeat in 1..=repeats {
        for case in cases {
            plan.show_step(format!("hostile: {}, {repeat} of {repeats}", case.name));
            let (mut measured, sidecars) =
                run(&mut rig, &mut figures, case, &mut others, length).await?;

            figures.add(case.receipts(), "ms", measured.of_receipts(0.99));

            // Other tenants' changes also slow the platform's own commits.
            figures.add(
                format!("{}, of commit and bare POST", case.receipts()),
                "ms",
                measured.reference(0.99),
            );
            require_memory(&mut figures, "all", &sidecars, MEMORY)?;
            end(&rig, sidecars).await?;
        }
    }

    for Pair {
        hostile,
        good,
        ratio,
    } in [ATTACK, RECEIVERS]
    {
        figures.ratio(
            ratio,
            &hostile.receipts(),
            &good.receipts(),
            Some(Must::AtMost(1.5)),
        );

        figures.ratio(
            format!("API client: {ratio}"),
            &p99(hostile.name),
            &p99(good.name),
            None,
        );
    }

    Ok(figures)
}

/// The other tenants.
struct Others {
    receiver: Receiver,
    /// On a processor of its own.
    runtime: Handle,
    tenants: u64,
    /// The ids of their webhooks.
    webhooks: Vec<Uuid>,
    /// The id of the measured user's webhook.
    measured: Uuid,
    settle: Duration,
}

impl Others {
    /// Lets the receivers behave as `conduct` says.
    async fn set_receivers(&mut self, rig: &Rig, conduct: Conduct) -> anyhow::Result<()> {
        let kinds = (0..self.webhooks.len()).map(|number| match conduct {
            Conduct::Answer => Kind::Answer,
            Conduct::Attack => Kind::ATTACKING[number % Kind::ATTACKING.len()],
            Conduct::Mixed => mixed(number),
        });

        let urls: Vec<String> = kinds.map(|kind| self.receiver.url_of(kind)).collect();
        let sql = "update walhook.webhook set url = wanted.url from unnest($1::uuid[], $2::text[]) wanted (id, url)
            where webhook.id = wanted.id";
        let updated = rig
            .store
            .execute(sql, &[&self.webhooks, &urls])
            .await
            .context("other receivers")?;

        ensure!(
            updated == urls.len() as u64,
            "only {updated} of {} webhooks have got a receiver",
            urls.len()
        );
        self.receiver.reset().await
    }

    /// What the tenants do in a case.
    fn activity(&self, case: Case) -> Activity {
        let attacked = (case.receivers == Conduct::Attack).then(|| self.webhooks[0].to_string());
        let users = HOSTILE..HOSTILE + case.tenants.min(self.tenants);
        Activity { attacked, users }
    }
}

/// Sets up all cases.
async fn installed(plan: &Plan, others: &mut Others) -> anyhow::Result<Rig> {
    let tenants = others.tenants;
    let mut rig = Rig::start(&plan.walhook).await?;

    rig.platform.add_users(MEASURED, MEASURED, ROWS).await?;
    rig.platform
        .add_users(HOSTILE, HOSTILE + tenants - 1, tenants::ROWS)
        .await?;
    rig.set_up("").await?;
    plan.show_step("hostile: creating webhooks");
    rig.create_webhooks(&[(MEASURED, rig.receiver.url())])
        .await?;
    rig.deliver_sample(MEASURED).await?;
    others.measured = rig
        .store
        .query_one("select id from walhook.webhook", &[])
        .await?
        .get(0);

    let owners =
        (HOSTILE..HOSTILE + tenants).flat_map(|user| std::iter::repeat_n(user, WEBHOOKS_EACH));
    let wanted: Vec<(u64, String)> = owners.map(|user| (user, others.receiver.url())).collect();
    let created = rig.installation.create_webhooks(&wanted, "none").await?;

    others.webhooks = created
        .iter()
        .map(|webhook| webhook.id.parse())
        .collect::<Result<_, _>>()?;
    let searched = others
        .webhooks
        .first()
        .context("a webhook of the hostile tenant")?;
    let lines = format!(
        "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, duration_ms,
             outcome, response_status, url, signature, standard_signature, response_body)
         select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0') || '7' || substr(gen_random_uuid()::text, 16))::uuid,
             '{searched}', gen_random_uuid(), gen_random_uuid(), 'distribution.outlet.status_changed', 1, 1, now(), 3, 'delivered', 200,
             'http://127.0.0.1/', sha256(n::text::bytea), sha256(n::text::bytea), ''
         from generate_series(1, {}) n",
        plan.count(LINES)
    );

    rig.store
        .batch_execute(&lines)
        .await
        .context("filling the hostile tenant's log")?;
    rig.read_wal().await?;

    Ok(rig)
}

/// Runs the load while the other tenants do what `case` says.
async fn run(
    rig: &mut Rig,
    figures: &mut Figures,
    case: Case,
    others: &mut Others,
    length: Duration,
) -> anyhow::Result<(Latencies, [Sidecar; 1])> {
    let load = Load::at_rate(MEASURED, RATE, length);
    others.set_receivers(rig, case.receivers).await?;
    rig.rest().await?;

    let mut sidecars = [rig.start_sidecar("measured").await?];
    rig.warm_up(load.user, load.rows()).await?;

    // A receiver that has not answered since the start would wait in the queue with the other
    // tenants' receivers.
    rig.receiver.reset().await?;
    rig.platform.write_singly(MEASURED, 1, Muted::No).await?;
    rig.wait_for_deliveries(&mut sidecars, 1).await?;

    let activity = others.activity(case);
    let receivers = (activity.users.end - activity.users.start) * WEBHOOKS_EACH as u64;
    let running =
        Running::start(activity, &sidecars[0], rig.platform.url(), &others.runtime).await?;

    tokio::time::sleep(others.settle).await;
    let before = Reach::now(&mut others.receiver).await?;
    let polite = PoliteClient::start(MEASURED, others.measured, &sidecars[0])?;
    let measured = load.run(rig, &mut sidecars).await?;
    let after = Reach::now(&mut others.receiver).await?;

    polite.end(figures, case.name).await?;
    rig.require_bounded_queues(figures, Held::All, 1).await?;

    let committed_at = running.committed_at;
    running.end(figures, &sidecars[0]).await?;

    let reach = Reach::wait(&mut others.receiver, receivers).await?;
    figures.add(
        format!("{}: receivers reached before the load", case.name),
        "",
        before.receivers() as f64,
    );
    reach.require_all(figures, case.name, receivers, committed_at);

    if case.receivers == Conduct::Mixed {
        reach.record_kinds(figures);
        figures.add(
            "requests that wait for slow receivers, before the load",
            "",
            before.slow() as f64,
        );
        figures.add(
            "requests that wait for slow receivers, after the load",
            "",
            after.slow() as f64,
        );
    }

    Ok((measured, sidecars))
}
