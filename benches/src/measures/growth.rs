//! A store that has grown: does the drain rate stay?

use anyhow::Context;

use super::backlog::Backlog;
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Rig, add_cpu, require_memory};

const USERS: u64 = 1_000;
const LOG_ROWS: u64 = 20_000_000;
const PENDING: u64 = 1_000_000;

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("growth");
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.platform.add_users(2, USERS, 1).await?;
    rig.set_up("").await?;
    let url = rig.receiver.url();
    rig.create_webhooks(&[(1, url.clone())]).await?;

    let mut empty = Vec::new();
    for repeat in 1..=plan.repeats {
        plan.tell(format!("growth: an empty store, {repeat} of {}", plan.repeats));
        empty.push(drain(plan, &mut rig, &mut figures, "empty").await?);
    }
    plan.tell("growth: filling the store");
    let wanted: Vec<(u64, String)> = (2..=USERS).map(|user| (user, url.clone())).collect();
    rig.create_webhooks(&wanted).await?;
    fill(&rig, plan.count(LOG_ROWS), plan.count(PENDING)).await?;
    for (repeat, empty) in empty.into_iter().enumerate() {
        plan.tell(format!("growth: a grown store, {} of {}", repeat + 1, plan.repeats));
        let grown = drain(plan, &mut rig, &mut figures, "grown").await?;
        figures.require("grown / empty", "", grown / empty, Must::AtLeast(0.9));
    }
    Ok(figures)
}

async fn drain(plan: &Plan, rig: &mut Rig, figures: &mut Figures, name: &str) -> anyhow::Result<f64> {
    let backlog = Backlog { user: 1, transitions: plan.count(60_000), fan_out: 1, replicas: 1 };
    let drained = backlog.drain(rig, figures).await?;
    let rate = drained.rate;
    figures.add(name, "deliveries/s", rate);
    add_cpu(figures, name, &drained.before, &drained.after, drained.deliveries);
    require_memory(figures, name, &drained.sidecars, MEMORY)?;
    drained.stop().await?;
    Ok(rate)
}

/// Lines of the log as of this day, in the partition that new ones go to, and retries that are not due yet.
async fn fill(rig: &Rig, log_rows: u64, pending: u64) -> anyhow::Result<()> {
    fill_log(rig, log_rows / USERS).await.context("filling the log")?;
    let pending = format!(
        "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at)
         select gen_random_uuid(), webhook.id, gen_random_uuid(), 2, now() + interval '1 day'
         from walhook.webhook, generate_series(1, {pending} / {USERS}) n"
    );
    // Of the log nothing is dead: its partition is left out.
    for statement in [&pending, "vacuum walhook.delivery", "analyze", "checkpoint"] {
        rig.store.batch_execute(statement).await.context("filling the deliveries")?;
    }
    Ok(())
}

/// `each` lines for every webhook, whose ids lie as far back as there are of them. The partition stands apart meanwhile, without
/// its key: to sort all lines once is faster than to keep them sorted.
async fn fill_log(rig: &Rig, each: u64) -> anyhow::Result<()> {
    let (one, other) = (&rig.store, rig.store_client().await?);
    let name = "select 'walhook.attempt_' || to_char(now() at time zone 'utc', 'YYYYMMDD')";
    let name: String = one.query_one(name, &[]).await?.get(0);
    let described = "select pg_get_expr(relpartbound, pg_class.oid), conname
        from pg_class join pg_constraint on conrelid = pg_class.oid and contype = 'p' where pg_class.oid = $1::text::regclass";
    let row = one.query_one(described, &[&name]).await.context("the partition of today")?;
    let (bounds, key): (String, String) = (row.get(0), row.get(1));
    one.batch_execute(&format!(
        "alter table walhook.attempt detach partition {name}; alter table {name} drop constraint {key}"
    ))
    .await?;
    let lines = |remainder: u8| {
        format!(
            "with line as materialized (
                 select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - {each} + n), 12, '0')
                     || '70008000000000000000')::uuid as id
                 from generate_series(1, {each}) n
             ), webhook as (select *, row_number() over (order by id) % 2 = {remainder} as is_ours from walhook.webhook)
             insert into {name} (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at,
                 duration_ms, outcome, response_status, url, signature, standard_signature, response_body)
             select line.id, webhook.id, line.id, line.id, 'distribution.outlet.status_changed', 1, 1, now(), 3,
                 'delivered', 200, webhook.url, '\\x00', '\\x00', ''
             from webhook, line where webhook.is_ours"
        )
    };
    let (even, odd) = (lines(0), lines(1));
    tokio::try_join!(one.batch_execute(&even), other.batch_execute(&odd))?;
    one.batch_execute(&format!(
        "set maintenance_work_mem = '1GB';
         alter table {name} add constraint {key} primary key (webhook_id, id);
         alter table {name} set (autovacuum_enabled = off);
         alter table walhook.attempt attach partition {name} {bounds}"
    ))
    .await?;
    Ok(())
}
