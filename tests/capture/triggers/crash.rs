//! Kills, restarts and standby replicas.

use std::time::Duration;

use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use super::load::{Load, assert_complete, wait_for_more};
use super::{by_triggers, number, prepared};
use crate::support::TestApp;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_lost_or_repeated_by_kills_under_load() {
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
async fn capture_continues_after_restarts_of_the_primary() {
    let mut app = TestApp::prepare_alone(Options {
        fsync: true,
        ..Options::default()
    })
    .await;
    by_triggers(&mut app);

    let _store = store_elsewhere(&mut app).await;
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

/// Puts the store on another server: one on the primary's would flush the primary's commits with
/// its own.
pub async fn store_elsewhere(app: &mut TestApp) -> PrivatePostgres {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    store.create_database("elsewhere").await.unwrap();
    app.store_url = store.url("elsewhere");
    let store_url = app.store_url.clone();
    app.set("store.url", &store_url);

    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_a_crash_could_undo_is_not_read() {
    let settings = [
        ("synchronous_commit", "off"),
        ("wal_writer_delay", "10s"),
        ("full_page_writes", "off"),
    ];
    let mut app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    by_triggers(&mut app);
    let _store = store_elsewhere(&mut app).await;

    app.setup().await;
    app.run_with(&["--roles", "capture"]).await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    // Clearing the outbox would flush the WAL too: this trigger blocks it.
    let wait = "create function wait() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return old; end $$;
        create trigger wait before delete on walhook_capture.outbox for each row execute function wait(); checkpoint";
    platform.client.batch_execute(wait).await.unwrap();

    let holder = app.source().await;
    holder
        .batch_execute("begin; select pg_advisory_xact_lock(1)")
        .await
        .unwrap();
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    app.server.restart(StopMode::Immediate).await.unwrap();

    let rows = number(&app.source().await, "select count(*) from payment").await;
    assert_eq!(
        rows, 1,
        "an event was raised for a row that the crash has undone"
    );
    app.platform().await.payment(user, "ready").await;
    app.wait_for_events(2).await;
}
