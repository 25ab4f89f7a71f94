//! After an outage: a million retries are due at once, and fresh deliveries must still go out
//! first.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use tokio_postgres::types::ToSql;
use uuid::Uuid;
use walhook::domain::delivery::DeliveryClass;
use walhook::store::delivery::claim_statement;

use super::load::Load;
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Held, Rig, require_memory};
use crate::sidecar::Sidecar;

/// Owners of the webhooks that were down, ten each. User 1 has a fresh webhook.
const OWNERS: std::ops::RangeInclusive<u64> = 2..=21;
const EVENTS: u64 = 10_000;
const CLAIMED: i64 = 1_024;

const WITHOUT: &str = "fresh p99, without";
const BESIDE: &str = "fresh p99, beside the retries";

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("pileup");

    // Two servers take turns: one without retries, one with a million.
    let mut without = installed(plan).await?;
    let mut piled = installed(plan).await?;

    plan.show_step("pileup: making retries");
    require_flat_claims(&piled, &mut figures, plan.count(1_000_000)).await?;
    piled.read_wal().await?;

    let length = plan.seconds(10.0);
    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        let what = format!("pileup: without, {repeat} of {repeats}");
        let (mut measured, [sidecar]) = Load::ordinary(1, length)
            .run_on_new_sidecar(plan, &mut without, &what)
            .await?;

        figures.add(WITHOUT, "ms", measured.of_receipts(0.99));
        without.settle().await?;
        sidecar.stop().await?;

        plan.show_step(format!("pileup: with, {repeat} of {repeats}"));
        let sidecars = measure_piled(&mut piled, &mut figures, length).await?;

        if repeat == repeats {
            measure_retries_alone(plan, &piled, &mut figures).await?;
        }

        let [sidecar] = sidecars;
        sidecar.stop().await?;
    }

    if remaining(&piled).await? == 0 && plan.scale >= 1.0 {
        bail!("all retries were delivered before the measurement ended: more of them are needed");
    }

    figures.ratio(
        "fresh p99, beside / without",
        BESIDE,
        WITHOUT,
        Some(Must::AtMost(2.0)),
    );

    Ok(figures)
}

/// Runs the load beside the retries. The sidecar keeps running.
async fn measure_piled(
    rig: &mut Rig,
    figures: &mut Figures,
    length: Duration,
) -> anyhow::Result<[Sidecar; 1]> {
    let load = Load::ordinary(1, length);
    rig.rest().await?;

    let mut sidecars = [rig.start_sidecar("measured").await?];
    rig.warm_up(load.user, load.rows()).await?;

    let started = Instant::now();
    let before = remaining(rig).await?;
    let mut measured = load.run(rig, &mut sidecars).await?;

    add_rate(
        figures,
        "beside fresh deliveries",
        before - remaining(rig).await?,
        started.elapsed(),
    );

    figures.add(BESIDE, "ms", measured.of_receipts(0.99));
    rig.require_bounded_queues(figures, Held::All, 1).await?;
    require_memory(figures, "beside the retries", &sidecars, MEMORY)?;

    Ok(sidecars)
}

/// Measures the rate of retries without fresh deliveries. Only once, because it consumes many of
/// them.
async fn measure_retries_alone(
    plan: &Plan,
    rig: &Rig,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    // Retries are no longer throttled shortly after the last fresh delivery.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let started = Instant::now();
    let before = remaining(rig).await?;

    tokio::time::sleep(plan.seconds(4.0)).await;
    add_rate(
        figures,
        "without fresh deliveries",
        before - remaining(rig).await?,
        started.elapsed(),
    );

    Ok(())
}

async fn installed(plan: &Plan) -> anyhow::Result<Rig> {
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.platform
        .add_users(*OWNERS.start(), *OWNERS.end(), 1)
        .await?;
    rig.set_up("").await?;

    let url = rig.receiver.url();
    let owners = OWNERS.flat_map(|user| std::iter::repeat_n(user, 10));
    let wanted: Vec<(u64, String)> = std::iter::once(1)
        .chain(owners)
        .map(|user| (user, url.clone()))
        .collect();

    rig.create_webhooks(&wanted).await?;
    rig.deliver_sample(1).await?;

    Ok(rig)
}

fn add_rate(figures: &mut Figures, when: &str, retries: i64, took: Duration) {
    let rate = retries as f64 / took.as_secs_f64();
    figures.add(format!("retries delivered {when}"), "deliveries/s", rate);
    figures.add(
        format!("time to drain a million {when}"),
        "s",
        1e6 / rate.max(1.0),
    );
}

async fn remaining(rig: &Rig) -> anyhow::Result<i64> {
    Ok(rig
        .store
        .query_one(
            "select count(*) from walhook.delivery where attempt > 1",
            &[],
        )
        .await?
        .get(0))
}

/// Inserts `count` due retries for the webhooks that were down, in the order that an outage would
/// produce.
async fn make_retries(rig: &Rig, count: u64) -> anyhow::Result<()> {
    let sql = format!(
        "insert into walhook.event (id, user_id, kind, occurred_at, data)
         select gen_random_uuid(), '2', 'distribution.outlet.status_changed', now() - interval '1 hour', json_build_object(
             'distro_queue_id', 0, 'release_id', n, 'label_id', 2, 'release_cat', 'CAT-1', 'outlet_id', 1,
             'outlet_name', 'Outlet 1', 'previous_status', 'scheduled', 'status', 'transcoding')
         from generate_series(1, {EVENTS}) n;
         with down as (select array_agg(id) as ids from walhook.webhook where user_id <> '1'),
              old as (select array_agg(id) as ids from walhook.event where user_id = '2')
         insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at)
         select (lpad(to_hex((extract(epoch from now()) * 1000 - 7200000 + n * 3.6)::bigint), 12, '0')
                 || '7' || substr(gen_random_uuid()::text, 16))::uuid,
             down.ids[1 + n % cardinality(down.ids)], old.ids[1 + n % cardinality(old.ids)], 2,
             now() - make_interval(secs => 3600 - n * 0.0036 + 30 * random())
         from generate_series(1, {count}) n, down, old"
    );
    rig.store
        .batch_execute(&sql)
        .await
        .context("making retries")
}

/// Inserts the retries, and compares the cost of a claim with a hundredth of them and with all. It
/// must use indexes and read the same number of buffers.
async fn require_flat_claims(rig: &Rig, figures: &mut Figures, pending: u64) -> anyhow::Result<()> {
    make_retries(rig, pending / 100).await?;
    let few = buffers_of_claim(rig).await?;

    make_retries(rig, pending - pending / 100).await?;
    rig.store.batch_execute("analyze walhook.delivery").await?;

    // The disk must not be busy with writing the retries.
    rig.store.batch_execute("checkpoint").await?;
    let many = buffers_of_claim(rig).await?;

    figures.add("a claim of a hundredth of the retries", "buffers/row", few);
    figures.add("a claim of all retries", "buffers/row", many);
    figures.require(
        "a claim of all / of a hundredth",
        "",
        many / few,
        Must::AtMost(1.5),
    );

    Ok(())
}

/// Returns the buffers that a claim reads per leased row. Fails if it scans a table.
async fn buffers_of_claim(rig: &Rig) -> anyhow::Result<f64> {
    let (none, limits): (Vec<Uuid>, Vec<i64>) = Default::default();
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &Uuid::nil(),
        &20.0_f64,
        &Uuid::nil(),
        &1_000_i32,
        &CLAIMED,
        &16_i64,
        &none,
        &limits,
        &Uuid::max(),
    ];

    rig.store.batch_execute("begin").await?;
    rig.store
        .batch_execute(walhook::sql::store::server::PLAN_BY_INDEX)
        .await?;

    let explain = format!(
        "explain (analyze, buffers, format json) {}",
        claim_statement(DeliveryClass::Retry)
    );
    let row = rig.store.query_one(&explain, &parameters).await?;

    rig.store.batch_execute("rollback").await?;
    let explained: Value = row.get(0);
    let plan = &explained[0]["Plan"];
    if let Some(table) = read_whole(plan) {
        bail!("a claim reads all of {table}");
    }

    let number = |name: &str| {
        plan[name]
            .as_f64()
            .with_context(|| format!("no {name} in the plan"))
    };

    let buffers = number("Shared Hit Blocks")? + number("Shared Read Blocks")?;
    Ok(buffers / number("Actual Rows")?.max(1.0))
}

/// Returns a table that the plan scans sequentially.
fn read_whole(plan: &Value) -> Option<&str> {
    let whole = plan["Node Type"] == "Seq Scan" && plan["Actual Rows"].as_f64() > Some(0.0);
    let children = plan["Plans"].as_array().into_iter().flatten();
    whole
        .then(|| plan["Relation Name"].as_str())
        .flatten()
        .or_else(|| children.filter_map(read_whole).next())
}
