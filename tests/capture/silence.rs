//! Connections that go silent without ending, as when a NAT drops its state: they are closed in bounded time, and the lag grows
//! meanwhile.

use std::collections::HashSet;

use walhook::config::Source;
use walhook::events::LookupKey;
use walhook::lookup::Lookups;
use walhook::store::Store;

use super::chaos::Scenario;
use crate::support::proxy::{Proxy, Weather};
use crate::support::{DEADLINE, TestApp, eventually};

const LAG: &str = "walhook_capture_lag_seconds";

/// Returns the same URL through a proxy.
fn through(proxy: &Proxy, app: &TestApp, url: &str) -> String {
    let changed = url.replace(&format!(":{}", app.server.port()), &format!(":{}", proxy.port));
    assert_ne!(changed, url);
    changed
}

async fn wait_for_lag(scenario: &mut Scenario, what: &str, holds: fn(f64) -> bool) {
    let sidecar = scenario.app.sidecar();
    eventually(what, async || sidecar.metric(LAG).await.filter(|lag| holds(*lag))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_the_store_that_go_silent_are_replaced() {
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;
    app.set("store.url", &through(&proxy, &app, &app.store_url));
    let mut scenario = Scenario::start(app).await;
    scenario.pay(3).await;
    scenario.assert_delivered().await;
    proxy.forget();
    scenario.pay(3).await;
    wait_for_lag(&mut scenario, "the lag to grow", |lag| lag > 3.0).await;
    scenario.assert_delivered().await;
    wait_for_lag(&mut scenario, "the lag to end", |lag| lag < 3.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_over_a_silent_connection_ends_and_the_next_one_works() {
    let app = TestApp::prepare().await;
    app.setup().await;
    let proxy = Proxy::start(app.server.port()).await;
    let platform = app.platform().await;
    let label = platform.label(platform.user(&[]).await).await;
    let store = Store::open(&app.store_url, 1).unwrap();
    let mut lookups = Lookups::new(&through(&proxy, &app, &app.source_url), &Source::default(), store);
    let keys = HashSet::from([LookupKey::Label(label)]);
    lookups.fetch(&keys, None).await.unwrap();
    proxy.forget();
    let failed = tokio::time::timeout(DEADLINE, lookups.fetch(&keys, None)).await;
    let error = failed.expect("a lookup ends").unwrap_err();
    assert!(error.is_transient(), "{error}");
    lookups.fetch(&keys, None).await.unwrap();
}

/// All connections of the process go silent: the stream, heartbeats, lookups and those to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than a minute: `make soak`"]
async fn the_sidecar_recovers_when_all_connections_go_silent() {
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;
    app.set("source.url", &through(&proxy, &app, &app.source_url));
    app.set("store.url", &through(&proxy, &app, &app.store_url));
    let mut scenario = Scenario::start(app).await;
    scenario.pay(3).await;
    scenario.assert_delivered().await;
    proxy.forget();
    scenario.pay(3).await;
    wait_for_lag(&mut scenario, "the lag to grow", |lag| lag > 30.0).await;
    wait_for_lag(&mut scenario, "the lag to end", |lag| lag < 3.0).await;
    scenario.assert_delivered().await;
}
