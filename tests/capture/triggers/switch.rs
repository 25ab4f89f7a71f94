//! Switching from the WAL to triggers and back, under load and kills.

use super::load::{Load, assert_complete, wait_for_more};
use super::{by_triggers, number};
use crate::support::{TestApp, eventually};

/// Kills and restarts the sidecar several times, so that the switch is interrupted at different steps.
async fn restart_often(app: &mut TestApp) {
    app.kill().await;
    for _ in 0..3 {
        let mut sidecar = app.spawn(&[]);
        sidecar.wait_until_ready().await;
        sidecar.kill().await;
    }
    app.run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_lost_or_repeated_by_switching_to_triggers_and_back() {
    let mut app = TestApp::prepare().await;
    let source = app.source().await;
    let identities = "select string_agg(relname || relreplident::text, ',' order by relname) from pg_class
        where relnamespace = 'public'::regnamespace and relkind = 'r'";
    let before: String = source.query_one(identities, &[]).await.unwrap().get(0);
    app.setup().await;
    app.run().await;
    let user = app.platform().await.user(&[]).await;
    let load = Load::start(&app, user).await;
    wait_for_more(&app, 20).await;

    by_triggers(&mut app);
    app.setup().await;
    restart_often(&mut app).await;
    wait_for_more(&app, 20).await;
    let slots = format!("select count(*) from pg_replication_slots where slot_name = '{}'", app.name);
    eventually("the slot to be dropped", async || (number(&source, &slots).await == 0).then_some(())).await;
    let now = async || source.query_one(identities, &[]).await.unwrap().get::<_, String>(0);
    eventually("the replica identities to be restored", async || (now().await == before).then_some(())).await;

    app.set("source.capture", "wal");
    assert!(app.stop().await.success());
    app.setup().await;
    app.run().await;
    restart_often(&mut app).await;
    wait_for_more(&app, 20).await;
    let schema = "select count(*) from pg_namespace where nspname = 'walhook_capture'";
    eventually("the triggers to be dropped", async || (number(&source, schema).await == 0).then_some(())).await;
    assert_complete(&app, &load.stop().await).await;
    assert_eq!(number(&app.store().await, "select count(*) from walhook.gap").await, 0);
}
