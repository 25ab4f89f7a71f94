//! A role without privileges and a late replica cannot disturb capture.

use postgres_types::PgLsn;
use walhook::domain::lsn::{Lineage, Lsn};
use walhook::domain::position::{Checkpoint, Progress, Through};
use walhook::private_postgres::Options;
use walhook::store::Store;
use walhook::store::checkpoint::advance_checkpoint;

use crate::chaos::{IMPATIENT, Scenario};
use crate::support::proxy::{Proxy, Weather};
use crate::support::{TestApp, eventually, one, run_sql, wal_end};

/// Writes the message of a switch as a new role without any privileges.
async fn forge_a_switch(app: &TestApp) {
    let source = app.source().await;
    let forge = "begin; create role {role}; set local role {role};
        select pg_logical_emit_message(true, 'walhook', 'handover'); commit";
    source
        .batch_execute(&forge.replace("{role}", &format!("nobody_{}", app.name)))
        .await
        .unwrap();
}

const FORGE: &str = "select pg_logical_emit_message(true, 'walhook', 'handover')";

async fn captures_from_wal(app: &TestApp) -> bool {
    let is_wal = "select window_number is null from walhook.checkpoint";
    one(&app.store().await, is_wal).await
}

async fn gaps(app: &TestApp) -> i64 {
    one(&app.store().await, "select count(*) from walhook.gap").await
}

#[tokio::test]
async fn a_switch_message_of_a_role_without_privileges_is_ignored() {
    let mut scenario = Scenario::start(TestApp::prepare().await).await;
    scenario.pay(2).await;
    forge_a_switch(&scenario.app).await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;
    assert!(captures_from_wal(&scenario.app).await);
    assert_eq!(gaps(&scenario.app).await, 0);
}

#[tokio::test]
async fn forged_switch_messages_are_checked_over_one_connection() {
    const MESSAGES: u64 = 50;
    let mut app = TestApp::prepare().await;
    let proxy = Proxy::start(app.server.port()).await;
    let direct = app.source_url.clone();

    app.set(
        "source.url",
        &direct.replace(
            &format!(":{}/", app.server.port()),
            &format!(":{}/", proxy.port),
        ),
    );

    let mut scenario = Scenario::start(app).await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;

    let before = proxy.accepted();

    for _ in 0..MESSAGES {
        run_sql(&scenario.platform.client, FORGE).await;
    }

    scenario.pay(2).await;
    scenario.assert_delivered().await;

    // Lookups may open some too.
    let opened = proxy.accepted() - before;
    assert!(
        opened < MESSAGES / 5,
        "{opened} connections were opened for {MESSAGES} messages"
    );
    assert!(captures_from_wal(&scenario.app).await);
}

#[tokio::test]
async fn a_slow_check_of_a_switch_message_does_not_delay_acknowledgements() {
    let mut scenario = Scenario::start(TestApp::prepare_alone(Options::default()).await).await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;

    // The check reads this catalog. The session that has locked it can still read it.
    let holder = scenario.app.source().await;
    run_sql(&holder, "begin; lock table pg_catalog.pg_namespace").await;

    let client = &scenario.platform.client;
    run_sql(client, FORGE).await;

    let waits = "select clock_timestamp() from pg_locks where relation = 'pg_namespace'::regclass and not granted limit 1";
    let waits = eventually("the check to wait", async || {
        holder.query_opt(waits, &[]).await.unwrap()
    })
    .await;
    let since: std::time::SystemTime = waits.get(0);
    let later = "select from pg_stat_replication where reply_time - interval '3 s' > $1";

    eventually("acknowledgements during the check", async || {
        holder.query_opt(later, &[&since]).await.unwrap()
    })
    .await;
    run_sql(&holder, "rollback").await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;
    assert!(captures_from_wal(&scenario.app).await);
}

/// The forged message is read after the triggers were installed, but it is not the position of the
/// switch.
#[tokio::test]
async fn a_forged_switch_before_a_real_one_loses_nothing() {
    let mut scenario = Scenario::start(TestApp::prepare().await).await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;
    assert!(scenario.app.stop().await.success());
    forge_a_switch(&scenario.app).await;
    scenario.pay(2).await;
    scenario
        .app
        .set("source.capture", "trigger")
        .set("source.poll_interval", "20ms");
    scenario.app.setup().await;
    scenario.pay(2).await;
    scenario.app.run().await;
    scenario.assert_delivered().await;
    assert!(!captures_from_wal(&scenario.app).await);
    assert_eq!(gaps(&scenario.app).await, 0);
}

/// A replica whose connection to the primary was frozen stops after another one has taken over.
#[tokio::test]
async fn a_replica_that_ends_late_does_not_lower_the_limit_of_its_successor() {
    let options = Options {
        settings: &IMPATIENT,
        ..Options::default()
    };

    let mut app = TestApp::prepare_alone(options).await;
    let direct = app.source_url.clone();
    let proxy = Proxy::start(app.server.port()).await;
    let through_proxy = direct.replace(&app.server.port().to_string(), &proxy.port.to_string());

    app.set("source.url", &through_proxy);
    let mut scenario = Scenario::start(app).await;

    scenario.pay(2).await;
    scenario.assert_delivered().await;

    let reader = "select active_pid from pg_replication_slots where slot_name = $1 and active_pid is not null";
    let client = scenario.app.source().await;

    let late = eventually("a reader", async || {
        client
            .query_opt(reader, &[&scenario.app.name])
            .await
            .unwrap()
    })
    .await;

    let late: i32 = late.get(0);
    let successor = scenario.app.set("source.url", &direct).replica(&[]).await;

    proxy.weather(Weather::Frozen);

    eventually("the successor to take over", async || {
        let row = client
            .query_opt(reader, &[&scenario.app.name])
            .await
            .unwrap();
        row.filter(|row| row.get::<_, i32>(0) != late).map(drop)
    })
    .await;

    run_sql(
        &client,
        "select pg_logical_emit_message(false, 'filler', repeat('x', 1000000))",
    )
    .await;
    let end = wal_end(&client).await;
    scenario.app.wait_for_acknowledgement(&client, end).await;

    assert!(scenario.app.stop().await.success());
    let store = scenario.app.store().await;
    let limit: PgLsn = one(&store, "select limit_lsn from walhook.acknowledgement").await;

    assert!(
        limit >= end,
        "the limit is {limit:?}, and {end:?} is acknowledged"
    );
    successor.kill().await;
    scenario.app.run().await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;
    assert_eq!(gaps(&scenario.app).await, 0);
}

/// The update to a new timeline waits for a concurrent commit, and fails if that has moved the
/// checkpoint.
#[tokio::test]
async fn the_update_to_a_new_timeline_waits_for_a_concurrent_commit() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let store = Store::open(&app.store_url, 3).unwrap();
    let first = store.checkpoint(&app.name).await.unwrap().unwrap();

    let later = |checkpoint: &Checkpoint| {
        let commit = Lsn(checkpoint.progress.number() + 100);
        let progress = Progress::Wal {
            commit,
            through: Through::End,
            resume: Lsn(commit.0 + 8),
        };

        Checkpoint {
            progress,
            ..*checkpoint
        }
    };

    let second = later(&first);
    let mut connection = store.connection().await.unwrap();
    let transaction = connection.transaction().await.unwrap();

    assert!(
        advance_checkpoint(&transaction, &app.name, &first, &second, None)
            .await
            .unwrap()
    );
    let timeline = first.lineage.timeline + 1;
    let entering = store.clone();
    let name = app.name.clone();
    let entered = tokio::spawn(async move {
        entering
            .enter_timeline(&name, &first, timeline)
            .await
            .unwrap()
    });

    let waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let client = app.store().await;

    eventually("the new timeline to wait", async || {
        client.query_opt(waits, &[]).await.unwrap()
    })
    .await;
    transaction.commit().await.unwrap();
    assert!(
        !entered.await.unwrap(),
        "the checkpoint is no longer the one that was compared"
    );
    assert!(
        store
            .enter_timeline(&app.name, &second, timeline)
            .await
            .unwrap()
    );

    let expected = Checkpoint {
        lineage: Lineage {
            timeline,
            ..second.lineage
        },
        progress: second.progress.clone(),
    };

    assert_eq!(
        store.checkpoint(&app.name).await.unwrap(),
        Some(expected.clone())
    );
    let advanced = async |from: &Checkpoint| {
        let connection = store.connection().await.unwrap();
        advance_checkpoint(&*connection, &app.name, from, &later(from), None)
            .await
            .unwrap()
    };

    assert!(!advanced(&second).await, "a batch of the previous timeline");
    assert!(advanced(&expected).await);
}
