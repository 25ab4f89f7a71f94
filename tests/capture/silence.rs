//! Connections that go silent without ending, as when a NAT drops its state: they are closed in
//! bounded time, and the lag grows meanwhile.

use std::collections::HashSet;

use walhook::config::Source;
use walhook::events::LookupKey;
use walhook::lookup::Lookups;
use walhook::private_postgres::Options;
use walhook::store::Store;

use super::chaos::Scenario;
use crate::support::proxy::{Proxy, Weather};
use crate::support::versions;
use crate::support::{DEADLINE, TestApp, eventually, one, run_sql};

const LAG: &str = "walhook_capture_lag_seconds";

/// Returns the same URL through a proxy.
fn through(proxy: &Proxy, app: &TestApp, url: &str) -> String {
    let changed = url.replace(
        &format!(":{}", app.server.port()),
        &format!(":{}", proxy.port),
    );
    assert_ne!(changed, url);

    changed
}

async fn wait_for_lag(scenario: &mut Scenario, what: &str, holds: fn(f64) -> bool) {
    let sidecar = scenario.app.sidecar();
    eventually(what, async || {
        sidecar.metric(LAG).await.filter(|lag| holds(*lag))
    })
    .await;
}

#[tokio::test]
async fn the_lag_grows_while_the_primary_is_silent() {
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;

    app.set("source.url", &through(&proxy, &app, &app.source_url));
    let mut scenario = Scenario::start(app).await;

    scenario.pay(1).await;
    scenario.assert_delivered().await;
    proxy.weather(Weather::Frozen);
    wait_for_lag(&mut scenario, "the lag to grow", |lag| lag > 6.0).await;
    proxy.weather(Weather::Fair);

    // No changes are written meanwhile: the lag ends because heartbeats return.
    wait_for_lag(&mut scenario, "the lag to end", |lag| lag < 1.0).await;
}

#[tokio::test]
async fn a_lookup_over_a_silent_connection_ends_and_the_next_one_works() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let proxy = Proxy::start(app.server.port()).await;
    let platform = app.platform().await;
    let label = platform.label(platform.user(&[]).await).await;
    let store = Store::open(&app.store_url, 1).unwrap();
    let mut lookups = Lookups::for_repair(
        &through(&proxy, &app, &app.source_url),
        &Source::default(),
        store,
    );
    let keys = HashSet::from([LookupKey::Label(label)]);
    let committed = "select mod(pg_current_xact_id()::text::bigint, 4294967296)";
    let committed: i64 = one(&platform.client, committed).await;

    // With a transaction, the wait until it is visible has a shorter limit than the query.
    for transaction in [None, Some(u32::try_from(committed).unwrap())] {
        lookups.fetch(&keys, transaction).await.unwrap();
        proxy.forget();
        let failed = tokio::time::timeout(DEADLINE, lookups.fetch(&keys, transaction)).await;
        failed.expect("a lookup ends").unwrap_err();
        lookups.fetch(&keys, transaction).await.unwrap();
    }
}

/// A primary that is busy sends only keepalives, here because it waits for a standby. A new stream
/// would not get further.
#[tokio::test]
#[ignore = "takes more than a minute: `make soak`"]
async fn a_primary_that_sends_only_keepalives_keeps_its_connection() {
    let Some(programs) = versions::since(17) else {
        return;
    };

    let settings = [("synchronized_standby_slots", "absent")];
    let options = Options {
        programs: Some(&programs),
        settings: &settings,
        ..Options::default()
    };

    let mut scenario = Scenario::start(TestApp::prepare_alone(options).await).await;
    scenario.pay(1).await;

    for seconds in [30.0, 60.0, 80.0] {
        let sidecar = scenario.app.sidecar();
        eventually("the lag to grow", async || {
            sidecar.metric(LAG).await.filter(|lag| *lag > seconds)
        })
        .await;
    }

    let client = &scenario.platform.client;
    run_sql(client, "alter system reset synchronized_standby_slots").await;
    run_sql(client, "select pg_reload_conf()").await;
    scenario.assert_delivered().await;

    let log = std::fs::read_to_string(scenario.app.log_file()).unwrap();
    assert_eq!(log.matches("reading changes").count(), 1, "{log}");
}

/// PostgreSQL counts the time for which the walsender sends a transaction, and so waits for this
/// process, as a transaction's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_sent_for_longer_than_the_primary_allows_transactions_to_last() {
    const COUNT: usize = 8_000;
    let Some(programs) = versions::since(17) else {
        return;
    };

    let options = Options {
        programs: Some(&programs),
        ..Options::default()
    };
    let mut app = TestApp::prepare_alone(options).await;
    let platform = app.platform().await;
    let database = format!(
        "alter database {}_platform set transaction_timeout = '3s'",
        app.name
    );
    run_sql(&platform.client, &database).await;
    app.setup().await;
    app.run().await;

    let store = app.store().await;
    run_sql(&store, "begin; lock table walhook.event").await;
    let user = platform.user(&[]).await;
    let insert = format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         select id, {user}, repeat('x', 8000), 1, 1, 'ready' from generate_series(1, {COUNT}) as id"
    );
    platform.transaction(&insert).await;
    eventually("the walsender to wait for this process", async || {
        let waits = "select from pg_stat_activity where backend_type = 'walsender' and wait_event = 'WalSenderWriteData'";
        platform.client.query_opt(waits, &[]).await.unwrap()
    })
    .await;

    // A transaction that begins later exceeds the limit.
    let other = app.source().await;
    let ended = other.batch_execute("begin; select pg_sleep(60)").await;
    ended.expect_err("the limit applies");
    run_sql(&store, "rollback").await;
    app.wait_for_events(COUNT).await;

    let log = std::fs::read_to_string(app.log_file()).unwrap();
    assert_eq!(log.matches("reading changes").count(), 1, "{log}");
}
