//! Connections that go silent without ending, as when a NAT drops its state: they are given up in bounded time, and the lag
//! grows meanwhile.

use std::collections::HashSet;
use std::time::Duration;

use walhook::config::Source;
use walhook::events::LookupKey;
use walhook::lookup::Lookups;
use walhook::store::Store;

use super::chaos::Road;
use crate::support::proxy::{Proxy, Weather};
use crate::support::{TestApp, eventually};

const LAG: &str = "walhook_capture_lag_seconds";

/// The same URL through a proxy.
fn through(proxy: &Proxy, app: &TestApp, url: &str) -> String {
    let changed = url.replace(&format!(":{}", app.server.port()), &format!(":{}", proxy.port));
    assert_ne!(changed, url);
    changed
}

async fn wait_for_lag(road: &mut Road, what: &str, holds: fn(f64) -> bool) {
    let sidecar = road.app.sidecar();
    eventually(what, async || sidecar.metric(LAG).await.filter(|lag| holds(*lag))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_connections_are_forgotten_is_connected_to_again() {
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;
    app.set("store.url", &through(&proxy, &app, &app.store_url));
    let mut road = Road::start(app).await;
    road.pay(3).await;
    road.assert_told().await;
    proxy.forget();
    road.pay(3).await;
    wait_for_lag(&mut road, "the lag to grow", |lag| lag > 3.0).await;
    road.assert_told().await;
    wait_for_lag(&mut road, "the lag to end", |lag| lag < 3.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_grows_while_nothing_comes_from_the_primary() {
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;
    app.set("source.url", &through(&proxy, &app, &app.source_url));
    let mut road = Road::start(app).await;
    road.pay(1).await;
    road.assert_told().await;
    proxy.weather(Weather::Frozen);
    wait_for_lag(&mut road, "the lag to grow", |lag| lag > 6.0).await;
    proxy.weather(Weather::Fair);
    // Nothing is written meanwhile: the heartbeats show that nothing is waiting.
    wait_for_lag(&mut road, "the lag to end", |lag| lag < 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_over_a_forgotten_connection_ends_and_the_next_one_works() {
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
    let failed = tokio::time::timeout(Duration::from_secs(55), lookups.fetch(&keys, None)).await;
    let error = failed.expect("a lookup ends").unwrap_err();
    assert!(error.is_transient(), "{error}");
    lookups.fetch(&keys, None).await.unwrap();
}

/// Every connection of the process at once: the stream, heartbeats, lookups and the store's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than a minute: `make soak`"]
async fn a_nat_that_forgets_everything_is_recovered_from() {
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;
    app.set("source.url", &through(&proxy, &app, &app.source_url));
    app.set("store.url", &through(&proxy, &app, &app.store_url));
    let mut road = Road::start(app).await;
    road.pay(3).await;
    road.assert_told().await;
    proxy.forget();
    road.pay(3).await;
    wait_for_lag(&mut road, "the lag to grow", |lag| lag > 30.0).await;
    wait_for_lag(&mut road, "the lag to end", |lag| lag < 3.0).await;
    road.assert_told().await;
}
