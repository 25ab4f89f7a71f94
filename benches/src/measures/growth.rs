//! Compares the drain rate of an empty store with that of a grown one. Each has its own server, and
//! they take turns.

use anyhow::Context;

use super::backlog::Backlog;
use super::{MEMORY, Plan};
use crate::figures::{Figures, Must};
use crate::platform::ROWS;
use crate::rig::{Rig, add_cpu, require_memory};

/// Users in addition to the first, with ten webhooks each.
const USERS: std::ops::RangeInclusive<u64> = 2..=101;
const WEBHOOKS_EACH: u64 = 10;
/// Each event was delivered to the ten webhooks of its user.
const EVENTS: u64 = 500_000;
const PENDING: u64 = 250_000;

pub async fn measure(plan: &Plan) -> anyhow::Result<Figures> {
    let mut figures = Figures::new("growth");
    let mut empty = installed(plan).await?;
    let mut grown = installed(plan).await?;

    plan.show_step("growth: filling the store");
    let url = grown.receiver.url();
    let owners = USERS.flat_map(|user| std::iter::repeat_n(user, WEBHOOKS_EACH as usize));
    let wanted: Vec<(u64, String)> = owners.map(|user| (user, url.clone())).collect();

    grown.create_webhooks(&wanted).await?;
    fill(&grown, plan.count(EVENTS), plan.count(PENDING)).await?;
    grown.read_wal().await?;

    let size = "select pg_database_size(current_database())::float8 / 1e9";
    figures.add(
        "size of the grown store",
        "GB",
        grown.store.query_one(size, &[]).await?.get(0),
    );

    let repeats = plan.repeats;
    for repeat in 1..=repeats {
        for (name, rig) in [("empty", &mut empty), ("grown", &mut grown)] {
            plan.show_step(format!("growth: {name}, {repeat} of {repeats}"));
            drain(plan, rig, &mut figures, name).await?;
        }
    }

    figures.ratio("grown / empty", "grown", "empty", Some(Must::AtLeast(0.9)));
    Ok(figures)
}

async fn installed(plan: &Plan) -> anyhow::Result<Rig> {
    let mut rig = Rig::start(&plan.walhook).await?;
    rig.platform.add_users(1, 1, ROWS).await?;
    rig.platform
        .add_users(*USERS.start(), *USERS.end(), 1)
        .await?;
    rig.set_up("").await?;
    rig.create_webhooks(&[(1, rig.receiver.url())]).await?;

    Ok(rig)
}

async fn drain(
    plan: &Plan,
    rig: &mut Rig,
    figures: &mut Figures,
    name: &str,
) -> anyhow::Result<()> {
    rig.rest().await?;
    let backlog = Backlog {
        user: 1,
        transitions: plan.count(50_000),
        fan_out: 1,
        replicas: 1,
    };

    let drained = backlog.drain(rig, figures).await?;
    figures.add(name, "deliveries/s", drained.rate);

    add_cpu(
        figures,
        name,
        &drained.before,
        &drained.after,
        drained.deliveries,
    );

    require_memory(figures, name, &drained.sidecars, MEMORY)?;
    drained.stop().await
}

/// Adds events of today with their attempt log, and retries that are not due yet.
async fn fill(rig: &Rig, events: u64, pending: u64) -> anyhow::Result<()> {
    fill_events(rig, events)
        .await
        .context("filling the events")?;
    fill_log(rig).await.context("filling the log")?;

    let pending = format!(
        "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at)
         select gen_random_uuid(), webhook.id, event.id, 2 + n % 9, now() + interval '1 hour' + n * interval '10 ms'
         from (select id, user_id, row_number() over () as n from walhook.event limit {pending} / {WEBHOOKS_EACH}) as event
         join walhook.webhook using (user_id)"
    );
    // Leaves nothing for autovacuum to do when the measurement begins.
    for statement in [&pending, "vacuum (analyze)", "checkpoint"] {
        rig.store
            .batch_execute(statement)
            .await
            .context("filling the deliveries")?;
    }

    Ok(())
}

/// The time prefix of a UUIDv7 for an event or log entry. Times are spread from midnight until now.
const FRONT: &str = "lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7'";

async fn fill_events(rig: &Rig, events: u64) -> anyhow::Result<()> {
    let first = USERS.start();
    let users = USERS.end() + 1 - USERS.start();

    let sql = format!(
        "insert into walhook.event (id, user_id, kind, occurred_at, commit_lsn, ordinal, data)
         select ({FRONT} || substr(gen_random_uuid()::text, 16))::uuid, ({first} + n % {users})::text,
             'distribution.outlet.status_changed', at, '0/1'::pg_lsn + n * 128, 1, json_build_object(
                 'distro_queue_id', n, 'release_id', n / 40, 'label_id', {first} + n % {users}, 'release_cat', 'CAT-' || n / 40,
                 'outlet_id', 1 + n % 40, 'outlet_name', 'Outlet ' || 1 + n % 40, 'previous_status', 'scheduled',
                 'status', 'transcoding')
         from (
             select n, midnight + n * (now() - midnight) / {events} as at
             from generate_series(1, {events}) n, (select date_trunc('day', now() at time zone 'utc') at time zone 'utc' as midnight) day
         ) as raised"
    );

    Ok(rig.store.batch_execute(&sql).await?)
}

/// Adds a log entry per event and webhook: nine of ten accepted, the others 503. Today's partition
/// is detached and has no key meanwhile: building the index once is faster than maintaining it.
async fn fill_log(rig: &Rig) -> anyhow::Result<()> {
    let one = &rig.store;
    let other = rig.store_client().await?;
    let name = "select 'walhook.attempt_' || to_char(now() at time zone 'utc', 'YYYYMMDD')";
    let name: String = one.query_one(name, &[]).await?.get(0);
    let described = "select pg_get_expr(relpartbound, pg_class.oid), conname
        from pg_class join pg_constraint on conrelid = pg_class.oid and contype = 'p' where pg_class.oid = $1::text::regclass";
    let row = one
        .query_one(described, &[&name])
        .await
        .context("the partition of today")?;
    let (bounds, key): (String, String) = (row.get(0), row.get(1));

    one.batch_execute(&format!(
        "alter table walhook.attempt detach partition {name}; alter table {name} drop constraint {key};
         alter table {name} set (autovacuum_enabled = off)"
    ))
    .await?;
    let even = lines(&name, 0);
    let odd = lines(&name, 1);

    tokio::try_join!(one.batch_execute(&even), other.batch_execute(&odd))?;

    one.batch_execute(&format!(
        "set maintenance_work_mem = '1GB';
         alter table {name} add constraint {key} primary key (webhook_id, id);
         alter table {name} reset (autovacuum_enabled);
         alter table walhook.attempt attach partition {name} {bounds}"
    ))
    .await?;

    Ok(())
}

/// Builds the insert for half of the log entries, in the order of time.
fn lines(table: &str, half: u8) -> String {
    format!(
        "insert into {table} (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, duration_ms,
             outcome, response_status, error_kind, error_message, url, signature, standard_signature, response_body)
         select ({FRONT} || substr(random, 16))::uuid, webhook_id, ({FRONT} || substr(random, 16))::uuid, event_id, kind, 1, 1, at,
             1 + length(random) % 40, case when failed then 'failed' else 'delivered' end, case when failed then 503 else 200 end,
             case when failed then 'http_status' end, case when failed then 'the receiver answered 503 Service Unavailable' end,
             url, sha256(random::bytea), sha256(('.' || random)::bytea),
             case when failed then '<html><head><title>503 Service Unavailable</title></head><body>try later</body></html>'
                  else '{{\"ok\":true}}' end::bytea
         from (
             select event.id as event_id, event.kind, event.occurred_at as at, webhook.id as webhook_id, webhook.url,
                 gen_random_uuid()::text as random, random() < 0.1 as failed
             from walhook.event join walhook.webhook using (user_id)
             where (event.commit_lsn - '0/1'::pg_lsn) / 128 % 2 = {half}
         ) as made"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filled_log_has_five_million_lines_of_a_thousand_webhooks() {
        let webhooks = (USERS.end() + 1 - USERS.start()) * WEBHOOKS_EACH;
        assert_eq!((EVENTS * WEBHOOKS_EACH, webhooks), (5_000_000, 1_000));
    }
}
