//! Switching from the WAL to triggers and back, under load and kills.

use rustix::process::Signal;

use super::load::{Load, assert_complete, wait_for_more};
use super::{by_triggers, number};
use crate::support::{TestApp, eventually};

/// Kills and restarts the sidecar several times, so that the switch is interrupted at different
/// steps.
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
    let identities =
        "select string_agg(relname || relreplident::text, ',' order by relname) from pg_class
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

    let slots = format!(
        "select count(*) from pg_replication_slots where slot_name = '{}'",
        app.name
    );
    eventually("the slot to be dropped", async || {
        (number(&source, &slots).await == 0).then_some(())
    })
    .await;

    let now = async || {
        source
            .query_one(identities, &[])
            .await
            .unwrap()
            .get::<_, String>(0)
    };

    eventually("the replica identities to be restored", async || {
        (now().await == before).then_some(())
    })
    .await;

    app.set("source.capture", "wal");
    assert!(app.stop().await.success());
    app.setup().await;
    app.run().await;
    restart_often(&mut app).await;
    wait_for_more(&app, 20).await;

    let schema = "select count(*) from pg_namespace where nspname = 'walhook_capture'";
    eventually("the triggers to be dropped", async || {
        (number(&source, schema).await == 0).then_some(())
    })
    .await;
    assert_complete(&app, &load.stop().await).await;
    assert_eq!(
        number(&app.store().await, "select count(*) from walhook.gap").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_while_it_verifies_a_switch_leaves_it_to_the_next() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;

    // The query that verifies the request waits for this lock; setup must not.
    app.sidecar().signal(Signal::STOP);
    by_triggers(&mut app);
    app.setup().await;

    let source = app.source().await;
    source
        .batch_execute("begin; lock table pg_catalog.pg_trigger in access exclusive mode")
        .await
        .unwrap();
    app.sidecar().signal(Signal::CONT);

    let observer = app.source().await;
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%as makers%'
        and datname = current_database()";

    eventually("the check to wait", async || {
        (number(&observer, waiting).await == 1).then_some(())
    })
    .await;
    let replied = format!(
        "select coalesce((extract(epoch from reply_time) * 1000)::bigint, 0) from pg_stat_replication
         join pg_replication_slots on active_pid = pid where slot_name = '{}'",
        app.name
    );

    for _ in 0..2 {
        let before = number(&observer, &replied).await;
        eventually("feedback", async || {
            (number(&observer, &replied).await > before).then_some(())
        })
        .await;
    }

    app.kill().await;
    source.batch_execute("rollback").await.unwrap();

    app.run().await;
    platform.payment(user, "ready").await;
    app.wait_for_events(2).await;

    let slots = format!(
        "select count(*) from pg_replication_slots where slot_name = '{}'",
        app.name
    );
    eventually("the slot to be dropped", async || {
        (number(&observer, &slots).await == 0).then_some(())
    })
    .await;
    assert_eq!(
        number(&app.store().await, "select count(*) from walhook.gap").await,
        0
    );
}
