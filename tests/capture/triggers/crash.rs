//! Kills, restarts and stand-bys.

use std::time::Duration;

use walhook::private_postgres::{Options, StopMode};

use super::load::{Load, assert_complete, wait_for_more};
use super::{by_triggers, prepared};
use crate::support::TestApp;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_lose_and_repeat_nothing() {
    let mut app = prepared().await;
    app.setup().await;
    app.run().await;
    let user = app.platform().await.user(&[]).await;
    let load = Load::start(&app, user).await;
    for round in 0..8_u64 {
        wait_for_more(&app, 20).await;
        tokio::time::sleep(Duration::from_micros(round * 977 % 15_000)).await;
        app.kill().await;
        app.run().await;
    }
    assert_complete(&app, &load.stop().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_takes_over_after_a_kill() {
    let mut app = prepared().await;
    app.setup().await;
    app.run().await;
    let user = app.platform().await.user(&[]).await;
    let load = Load::start(&app, user).await;
    wait_for_more(&app, 10).await;
    let other = app.replica(&[]).await;
    wait_for_more(&app, 10).await;
    app.kill().await;
    wait_for_more(&app, 50).await;
    let committed = load.stop().await;
    assert_complete(&app, &committed).await;
    drop(other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_primary_is_gone_on_with() {
    let mut app = TestApp::prepare_alone(Options { fsync: true, ..Options::default() }).await;
    by_triggers(&mut app);
    let store =
        std::sync::Arc::new(walhook::private_postgres::PrivatePostgres::start(Options::default()).await.unwrap());
    store.create_database("elsewhere").await.unwrap();
    app.store_url = store.url("elsewhere");
    let store_url = app.store_url.clone();
    app.set("store.url", &store_url);
    app.setup().await;
    app.run().await;
    let pid = app.sidecar().pid();
    let user = app.platform().await.user(&[]).await;
    let mut committed = std::collections::HashSet::new();
    for mode in [StopMode::Fast, StopMode::Immediate] {
        let load = Load::start(&app, user).await;
        wait_for_more(&app, 20).await;
        committed.extend(load.stop().await);
        app.server.restart(mode).await.unwrap();
        let load = Load::start(&app, user).await;
        wait_for_more(&app, 20).await;
        committed.extend(load.stop().await);
    }
    assert_complete(&app, &committed).await;
    assert_eq!(app.sidecar().pid(), pid);
}
