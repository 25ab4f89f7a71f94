//! Kills, restarts and standby replicas.

use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use super::{by_triggers, number};
use crate::support::{TestApp, run_sql, server};

/// Puts the store on another server: one on the primary's would flush the primary's commits with
/// its own.
pub async fn store_elsewhere(app: &mut TestApp) -> PrivatePostgres {
    let store = server(Options::default()).await;
    store.create_database("elsewhere").await.unwrap();
    app.store_url = store.url("elsewhere");
    let store_url = app.store_url.clone();
    app.set("store.url", &store_url);

    store
}

#[tokio::test]
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
    run_sql(&platform.client, wait).await;

    let holder = app.source().await;
    run_sql(&holder, "begin; select pg_advisory_xact_lock(1)").await;
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
