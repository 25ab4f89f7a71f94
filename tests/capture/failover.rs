//! The primary is lost and a standby takes its place, under one URL that names both.

use std::path::PathBuf;

use postgres_types::PgLsn;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::chaos::Scenario;
use crate::support::proxy::{Proxy, Weather};
use crate::support::versions;
use crate::support::{TestApp, eventually, one, run_sql, server, standby, wal_end};

const STANDBY_SLOT: &str = "standby";
const PHYSICAL: &str = "select pg_create_physical_replication_slot('standby')";
const OPEN_GAP: &str = "select reason from walhook.gap where repaired_at is null";
const ACTIVE_SLOT: &str =
    "select from pg_replication_slots where slot_name = $1 and active_pid is not null";

pub struct Pair {
    pub app: TestApp,
    pub standby: PrivatePostgres,
}

/// Starts a primary and its standby. The store is on another server: it must not be lost with the
/// primary.
pub async fn pair(
    programs: Option<PathBuf>,
    settings: &[(&str, &str)],
    store: &PrivatePostgres,
) -> Pair {
    let options = Options {
        programs: programs.as_deref(),
        ..Options::default()
    };

    let mut app = TestApp::prepare_alone(options).await;
    store.create_database(&app.name).await.unwrap();
    app.store_url = store.url(&app.name);

    let url = app.store_url.clone();
    app.set("store.url", &url);
    app.source().await.execute(PHYSICAL, &[]).await.unwrap();
    app.server.stop(StopMode::Fast).await.unwrap();

    let settings = [
        &[("primary_slot_name", STANDBY_SLOT), ("hot_standby", "on")],
        settings,
    ]
    .concat();
    let standby = standby(
        &app.server,
        Options {
            settings: &settings,
            ..options
        },
    )
    .await;

    app.server.start_again().await.unwrap();

    // Without a restart, a standby that found no primary waits before it connects again.
    standby.restart(StopMode::Fast).await.unwrap();
    let database = format!("{}_platform", app.name);
    let both = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write&connect_timeout=2",
        app.server.port(),
        standby.port()
    );
    app.set("source.url", &both);

    Pair { app, standby }
}

pub async fn until_caught_up(primary: &tokio_postgres::Client, standby: &PrivatePostgres) {
    let end: PgLsn = one(primary, "select pg_current_wal_lsn()").await;
    let standby = postgres::connect(&standby.url("postgres")).await.unwrap();
    let replayed = "select coalesce(pg_last_wal_replay_lsn() >= $1, false)";

    eventually("the standby to catch up", async || {
        standby
            .query_one(replayed, &[&end])
            .await
            .unwrap()
            .get::<_, bool>(0)
            .then_some(())
    })
    .await;
}

/// Waits until the standby has the slot, synchronized up to the end of the primary's WAL.
pub async fn until_slot_is_synchronized(scenario: &Scenario, standby: &PrivatePostgres) {
    let follower = postgres::connect(&standby.url("postgres")).await.unwrap();
    let synced = "select to_jsonb(slot) from pg_replication_slots slot
         where slot_name = $1 and synced and not temporary and confirmed_flush_lsn >= $2";

    let end: PgLsn = one(&scenario.platform.client, "select pg_current_wal_lsn()").await;

    // The standby synchronizes a slot up to a record of the running transactions: a checkpoint
    // writes one.
    eventually("the slot on the standby", async || {
        run_sql(&scenario.platform.client, "checkpoint").await;
        follower
            .query_opt(synced, &[&scenario.app.name, &end])
            .await
            .unwrap()
    })
    .await;
}

pub async fn promote(standby: &PrivatePostgres) {
    let client = postgres::connect(&standby.url("postgres")).await.unwrap();
    assert!(one::<bool>(&client, "select pg_promote()").await);
}

async fn gap(app: &TestApp) -> String {
    let store = app.store().await;
    eventually("the gap to be recorded", async || {
        store.query_opt(OPEN_GAP, &[]).await.unwrap()
    })
    .await
    .get(0)
}

/// Creates a slot of the sidecar's name, as something else than Walhook does.
async fn create_slot(scenario: &Scenario) {
    let create = "select pg_create_logical_replication_slot($1, 'pgoutput')";
    scenario
        .platform
        .client
        .execute(create, &[&scenario.app.name])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_standby_without_the_slot_is_a_gap() {
    let store = server(Options::default()).await;
    let Pair { app, standby } = pair(None, &[], &store).await;
    let mut scenario = Scenario::start(app).await;

    scenario.pay(3).await;
    scenario.assert_delivered().await;
    until_caught_up(&scenario.platform.client, &standby).await;
    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    promote(&standby).await;
    assert_eq!(gap(&scenario.app).await, "slot_missing");
}

#[tokio::test]
async fn a_standby_that_lacks_delivered_changes_is_a_fork() {
    let store = server(Options::default()).await;
    let Pair { app, standby } = pair(None, &[], &store).await;
    let mut scenario = Scenario::start(app).await;

    scenario.pay(1).await;
    scenario.assert_delivered().await;
    until_caught_up(&scenario.platform.client, &standby).await;
    standby.stop(StopMode::Fast).await.unwrap();

    // Delivered, and never on the standby.
    scenario.pay(3).await;
    scenario.assert_delivered().await;
    scenario.app.kill().await;
    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    fail_over(&mut scenario, &standby).await;

    // The WAL of the new timeline grows beyond the end of the old one, and a slot of the same name
    // is created.
    let grow = "create table growth as select n, repeat('x', 500) from generate_series(1, 20000) n";
    run_sql(&scenario.platform.client, grow).await;
    create_slot(&scenario).await;

    let _sidecar = scenario.app.spawn(&[]);
    assert_eq!(gap(&scenario.app).await, "timeline_forked");
}

/// The standby has a payment that is not stored. A slot of the same name is created on it after its
/// promotion, before capture connects.
#[tokio::test]
async fn a_slot_that_is_created_on_the_new_primary_is_a_gap() {
    let store = server(Options::default()).await;
    let Pair { app, standby } = pair(None, &[], &store).await;
    let mut scenario = Scenario::start(app).await;

    scenario.pay(3).await;
    scenario.assert_delivered().await;
    scenario.app.kill().await;
    scenario.pay(1).await;
    until_caught_up(&scenario.platform.client, &standby).await;
    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    fail_over(&mut scenario, &standby).await;
    create_slot(&scenario).await;

    let _sidecar = scenario.app.spawn(&[]);
    let gaps = scenario.app.store().await;
    let primary = &scenario.platform.client;

    let found = eventually("a gap, or a stream", async || {
        let gap = gaps
            .query_opt(OPEN_GAP, &[])
            .await
            .unwrap()
            .map(|row| Some(row.get::<_, String>(0)));
        let stream = primary
            .query_opt(ACTIVE_SLOT, &[&scenario.app.name])
            .await
            .unwrap()
            .map(|_| None);
        gap.or(stream)
    })
    .await;

    assert_eq!(found.as_deref(), Some("slot_ahead"));
    scenario.app.walhook_ok(&["repair"]).await;
    scenario.assert_delivered().await;
    assert_eq!(timeline(&scenario.app).await, 2);
}

#[tokio::test]
async fn check_warns_if_an_asynchronous_failover_can_undo_the_store() {
    let app = TestApp::prepare_alone(Options::default()).await;
    app.setup().await;
    const WARNING: &str = "warn  store failover";

    let checked = app.walhook_ok(&["check"]).await;
    assert!(!checked.contains(WARNING), "{checked}");
    app.source().await.execute(PHYSICAL, &[]).await.unwrap();

    let checked = app.walhook_ok(&["check"]).await;
    assert!(checked.contains(WARNING), "{checked}");
}

#[tokio::test]
async fn check_warns_of_standbys_to_which_no_slot_is_synchronized() {
    let Some(programs) = versions::since(17) else {
        return;
    };
    let store = server(Options::default()).await;
    let Pair { app, standby } = pair(Some(programs), &[], &store).await;

    app.setup().await;

    let check = async |state: &str| {
        let checked = app.walhook_ok(&["check"]).await;
        let warning = format!(
            "warn  slot {} on 127.0.0.1:{}: {state}",
            app.name,
            standby.port()
        );
        assert!(checked.contains(&warning), "{warning}: {checked}");
    };

    check("missing").await;
    let primary = app.source().await;
    let follower = postgres::connect(&standby.url("postgres")).await.unwrap();
    let name = app.name.clone();

    let created = tokio::spawn(async move {
        follower
            .execute(
                "select pg_create_logical_replication_slot($1, 'pgoutput')",
                &[&name],
            )
            .await
    });

    // A slot on a standby starts at a record of the primary's running transactions.
    eventually("the slot on the standby", async || {
        run_sql(&primary, "select pg_log_standby_snapshot()").await;
        created.is_finished().then_some(())
    })
    .await;

    assert_eq!(created.await.unwrap().unwrap(), 1);
    check("not synchronized: it was created on this server").await;
    standby.stop(StopMode::Fast).await.unwrap();
    check("unknown: ").await;
}

/// Starts a sidecar that has delivered five payments, and a standby that has all of them and the
/// slot. None if no PostgreSQL 17 is installed.
pub async fn with_slot_on_standby(
    store: &PrivatePostgres,
    store_url: Option<&str>,
) -> Option<(Scenario, PrivatePostgres)> {
    let programs = versions::since(17)?;
    let settings = [
        ("sync_replication_slots", "on"),
        ("hot_standby_feedback", "on"),
    ];
    let Pair { mut app, standby } = pair(Some(programs), &settings, store).await;

    if let Some(template) = store_url {
        let url = template.replace("{database}", &app.name);
        app.set("store.url", &url);
    }

    let mut scenario = Scenario::start(app).await;
    scenario.pay(5).await;
    scenario.assert_delivered().await;
    until_slot_is_synchronized(&scenario, &standby).await;
    until_caught_up(&scenario.platform.client, &standby).await;

    Some((scenario, standby))
}

/// Promotes the standby, and connects the platform to it.
async fn fail_over(scenario: &mut Scenario, standby: &PrivatePostgres) {
    promote(standby).await;
    let url = standby.url(&format!("{}_platform", scenario.app.name));
    scenario.platform = crate::support::Platform::new(postgres::connect(&url).await.unwrap());
}

/// Commits payments that only the primary has, far beyond the end of the standby's WAL. Returns
/// them and the LSN of their end.
async fn pay_on_the_primary_alone(
    scenario: &Scenario,
    standby: &PrivatePostgres,
) -> (Vec<i64>, PgLsn) {
    standby.stop(StopMode::Fast).await.unwrap();
    let filler = "select pg_logical_emit_message(false, 'filler', repeat('x', 4000000))";

    run_sql(&scenario.platform.client, filler).await;

    let mut payments = Vec::new();
    run_sql(&scenario.platform.client, "begin").await;

    for _ in 0..3 {
        payments.push(scenario.platform.payment(scenario.user, "ready").await);
    }

    run_sql(&scenario.platform.client, "commit").await;

    (payments, wal_end(&scenario.platform.client).await)
}

/// Returns the payments whose events are stored.
async fn stored_payments(app: &TestApp) -> Vec<i64> {
    let statement = "select (data ->> 'payment_request_id')::bigint from walhook.event order by 1";
    app.store()
        .await
        .query(statement, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

async fn timeline(app: &TestApp) -> i32 {
    one(
        &app.store().await,
        "select timeline from walhook.checkpoint",
    )
    .await
}

async fn until_streamed(scenario: &Scenario) {
    let client = &scenario.platform.client;
    eventually("the new primary's slot to be read", async || {
        client
            .query_opt(ACTIVE_SLOT, &[&scenario.app.name])
            .await
            .unwrap()
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn capture_continues_on_a_standby_that_has_the_slot() {
    let store = server(Options::default()).await;
    let Some((mut scenario, standby)) = with_slot_on_standby(&store, None).await else {
        return;
    };

    let checked = scenario.app.walhook_ok(&["check"]).await;
    assert!(
        checked.contains("alter system set synchronized_standby_slots = 'standby'"),
        "{checked}"
    );

    let slot = format!(
        "slot {} on 127.0.0.1:{}: synchronized\n",
        scenario.app.name,
        standby.port()
    );
    assert!(checked.contains(&slot), "{checked}");

    let pid = scenario.app.sidecar().pid();
    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    fail_over(&mut scenario, &standby).await;
    scenario.pay(5).await;
    scenario.assert_delivered().await;
    assert_eq!(scenario.app.sidecar().pid(), pid, "the same process");
    assert_eq!(timeline(&scenario.app).await, 2);

    // On the new timeline, WAL beyond the end of the old one is acknowledged: that is no gap for
    // the next process.
    let end = wal_end(&scenario.platform.client).await;
    scenario
        .app
        .wait_for_acknowledgement(&scenario.platform.client, end)
        .await;

    scenario.app.kill().await;
    scenario.app.run().await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;
}

/// The primary is lost while the commit of its last changes hangs in the store. The standby does
/// not have these changes.
#[tokio::test]
async fn a_commit_that_hangs_during_a_failover_loses_nothing_of_the_new_timeline() {
    let store = server(Options::default()).await;
    let Some((mut scenario, standby)) = with_slot_on_standby(&store, None).await else {
        return;
    };

    let mut client = scenario.app.store().await;
    let lock = client.transaction().await.unwrap();

    lock.batch_execute("lock table walhook.event in access exclusive mode")
        .await
        .unwrap();
    let (undone, end) = pay_on_the_primary_alone(&scenario, &standby).await;
    let observer = scenario.app.store().await;

    // The transaction has moved the checkpoint and waits for the lock.
    let hanging = "select from pg_locks wanted join pg_locks had using (pid)
         where wanted.relation = 'walhook.event'::regclass and not wanted.granted
         and had.relation = 'walhook.checkpoint'::regclass and had.granted and had.mode = 'RowExclusiveLock'";
    eventually("the commit to hang", async || {
        observer.query_opt(hanging, &[]).await.unwrap()
    })
    .await;
    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    fail_over(&mut scenario, &standby).await;
    eventually("capture to reach the new primary", async || {
        let streams = scenario.platform.client.query_opt(ACTIVE_SLOT, &[&scenario.app.name]).await.unwrap();
        let waits = "select from pg_locks where not granted and locktype in ('transactionid', 'tuple') limit 1";
        streams.or(observer.query_opt(waits, &[]).await.unwrap())
    })
    .await;

    scenario.pay(5).await;
    assert!(
        wal_end(&scenario.platform.client).await < end,
        "the new payments are numbered below the undone ones"
    );
    lock.rollback().await.unwrap();

    let gap = async || {
        observer
            .query_opt(OPEN_GAP, &[])
            .await
            .unwrap()
            .map(|row| row.get::<_, String>(0))
    };

    let found = eventually("the new payments in the store, or a gap", async || {
        let all = scenario
            .payments
            .is_subset(&stored_payments(&scenario.app).await.into_iter().collect());
        if all {
            Some(None)
        } else {
            gap().await.map(Some)
        }
    })
    .await;

    let stored = stored_payments(&scenario.app).await;
    println!("the gap: {found:?}, stored {stored:?}, undone {undone:?}");

    match found {
        None => assert!(
            !undone.iter().any(|payment| stored.contains(payment)),
            "{stored:?} {undone:?}"
        ),
        Some(reason) => {
            assert_eq!(reason, "timeline_forked");
            assert!(
                undone.iter().all(|payment| stored.contains(payment)),
                "{stored:?} {undone:?}"
            );
            scenario.app.walhook_ok(&["repair"]).await;

            eventually("the new payments in the store", async || {
                scenario
                    .payments
                    .is_subset(&stored_payments(&scenario.app).await.into_iter().collect())
                    .then_some(())
            })
            .await;
        }
    }

    assert_eq!(timeline(&scenario.app).await, 2);
}

/// One replica cannot reach the store with its last changes. The other takes over on the new
/// primary first.
#[tokio::test]
async fn a_late_replica_with_an_undone_batch_loses_nothing_of_the_new_timeline() {
    let store = server(Options::default()).await;
    let proxy = Proxy::start(store.port()).await;
    let through_proxy = store
        .url("{database}")
        .replace(&store.port().to_string(), &proxy.port.to_string());
    let Some((mut scenario, standby)) = with_slot_on_standby(&store, Some(&through_proxy)).await
    else {
        return;
    };

    let direct = scenario.app.store_url.clone();
    let other = scenario.app.set("store.url", &direct).replica(&[]).await;

    proxy.weather(Weather::Frozen);
    let (undone, end) = pay_on_the_primary_alone(&scenario, &standby).await;
    let received = "select from pg_stat_replication join pg_replication_slots on pid = active_pid
         where slot_name = $1 and write_lsn >= $2";

    eventually("the late replica to have the changes", async || {
        scenario
            .platform
            .client
            .query_opt(received, &[&scenario.app.name, &end])
            .await
            .unwrap()
            .map(drop)
    })
    .await;

    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    fail_over(&mut scenario, &standby).await;
    until_streamed(&scenario).await;
    proxy.weather(Weather::Fair);

    let log = scenario.app.log_file();
    let committed = "select from walhook.checkpoint where commit_lsn > $1";
    let switch: PgLsn = wal_end(&scenario.platform.client).await;
    let client = scenario.app.store().await;

    eventually("the late batch to be stored or rejected", async || {
        let rejected = std::fs::read_to_string(&log)
            .unwrap()
            .contains("standing by");
        (rejected
            || client
                .query_opt(committed, &[&switch])
                .await
                .unwrap()
                .is_some())
        .then_some(())
    })
    .await;

    scenario.pay(5).await;
    assert!(
        wal_end(&scenario.platform.client).await < end,
        "the new payments are numbered below the undone ones"
    );
    scenario.assert_delivered().await;

    let stored = stored_payments(&scenario.app).await;
    assert!(
        !undone.iter().any(|payment| stored.contains(payment)),
        "{stored:?} {undone:?}"
    );
    assert_eq!(timeline(&scenario.app).await, 2);

    assert_eq!(
        one::<i64>(&client, "select count(*) from walhook.gap").await,
        0
    );

    drop(other);
}
