//! The primary is lost and a standby takes its place, under one URL that names both.

use std::path::PathBuf;

use postgres_types::PgLsn;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::chaos::Road;
use crate::support::proxy::{Proxy, Weather};
use crate::support::{TestApp, eventually, skip};
use crate::versions::installed;

const STANDBY_SLOT: &str = "standby";
const PHYSICAL: &str = "select pg_create_physical_replication_slot('standby')";

pub struct Pair {
    pub app: TestApp,
    pub standby: PrivatePostgres,
}

/// A primary and its standby, with a store of its own beside them: it must not be lost with the primary.
pub async fn pair(programs: Option<PathBuf>, settings: &[(&str, &str)], store: &PrivatePostgres) -> Pair {
    let options = Options { programs: programs.as_deref(), ..Options::default() };
    let mut app = TestApp::prepare_alone(options).await;
    store.create_database(&app.name).await.unwrap();
    app.store_url = store.url(&app.name);
    let url = app.store_url.clone();
    app.set("store.url", &url);
    app.source().await.execute(PHYSICAL, &[]).await.unwrap();
    app.server.stop(StopMode::Fast).await.unwrap();
    let settings = [&[("primary_slot_name", STANDBY_SLOT), ("hot_standby", "on")], settings].concat();
    let standby = app.server.standby(Options { settings: &settings, ..options }).await.unwrap();
    app.server.start_again().await.unwrap();
    // One that has found no primary waits before it looks again.
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
    let end: PgLsn = primary.query_one("select pg_current_wal_lsn()", &[]).await.unwrap().get(0);
    let standby = postgres::connect(&standby.url("postgres")).await.unwrap();
    let replayed = "select coalesce(pg_last_wal_replay_lsn() >= $1, false)";
    eventually("the standby to have everything", async || {
        standby.query_one(replayed, &[&end]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
}

/// Waits until the standby has the slot, at the primary's end.
pub async fn until_slot_is_carried_over(road: &Road, standby: &PrivatePostgres) {
    let follower = postgres::connect(&standby.url("postgres")).await.unwrap();
    let synced = "select to_jsonb(slot) from pg_replication_slots slot
         where slot_name = $1 and synced and not temporary and confirmed_flush_lsn >= $2";
    let end: PgLsn = road.platform.client.query_one("select pg_current_wal_lsn()", &[]).await.unwrap().get(0);
    // The standby takes a slot over where a record says which transactions run: a checkpoint writes one.
    eventually("the slot on the standby", async || {
        road.platform.client.batch_execute("checkpoint").await.unwrap();
        follower.query_opt(synced, &[&road.app.name, &end]).await.unwrap()
    })
    .await;
}

pub async fn promote(standby: &PrivatePostgres) {
    let client = postgres::connect(&standby.url("postgres")).await.unwrap();
    assert!(client.query_one("select pg_promote()", &[]).await.unwrap().get::<_, bool>(0));
}

async fn gap(app: &TestApp) -> String {
    let store = app.store().await;
    let open = "select reason from walhook.gap where repaired_at is null";
    eventually("the gap to be noted", async || store.query_opt(open, &[]).await.unwrap()).await.get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_without_the_slot_is_a_gap() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let Pair { app, standby } = pair(None, &[], &store).await;
    let mut road = Road::start(app).await;
    road.pay(3).await;
    road.assert_told().await;
    until_caught_up(&road.platform.client, &standby).await;
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    promote(&standby).await;
    assert_eq!(gap(&road.app).await, "slot_missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_lacks_what_we_have_is_a_fork() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let Pair { app, standby } = pair(None, &[], &store).await;
    let mut road = Road::start(app).await;
    road.pay(1).await;
    road.assert_told().await;
    until_caught_up(&road.platform.client, &standby).await;
    standby.stop(StopMode::Fast).await.unwrap();
    // Told to the receivers, and never on the standby.
    road.pay(3).await;
    road.assert_told().await;
    road.app.kill().await;
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    promote(&standby).await;
    let client = postgres::connect(&standby.url(&format!("{}_platform", road.app.name))).await.unwrap();
    // The new history grows past where the old one ended; somebody has even made a slot of the name.
    client
        .batch_execute("create table growth as select n, repeat('x', 500) from generate_series(1, 20000) n")
        .await
        .unwrap();
    client.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", &[&road.app.name]).await.unwrap();
    let _sidecar = road.app.spawn(&[]);
    assert_eq!(gap(&road.app).await, "timeline_forked");
}

/// A sidecar that has delivered five payments, and a standby that has the slot and everything else up to then. None where
/// PostgreSQL is too old for that.
async fn with_slot_on_standby(store: &PrivatePostgres, store_url: Option<&str>) -> Option<(Road, PrivatePostgres)> {
    let Some(programs) = installed().into_iter().find(|(version, _)| *version >= 17).map(|(_, programs)| programs)
    else {
        skip("no PostgreSQL 17 or later: scripts/fetch-postgres 17 fetches one");
        return None;
    };
    let settings = [("sync_replication_slots", "on"), ("hot_standby_feedback", "on")];
    let Pair { mut app, standby } = pair(Some(programs), &settings, store).await;
    if let Some(template) = store_url {
        let url = template.replace("{database}", &app.name);
        app.set("store.url", &url);
    }
    let mut road = Road::start(app).await;
    road.pay(5).await;
    road.assert_told().await;
    until_slot_is_carried_over(&road, &standby).await;
    until_caught_up(&road.platform.client, &standby).await;
    Some((road, standby))
}

/// Promotes the standby; the platform goes on there.
async fn fail_over(road: &mut Road, standby: &PrivatePostgres) {
    promote(standby).await;
    let url = standby.url(&format!("{}_platform", road.app.name));
    road.platform = crate::support::Platform::new(postgres::connect(&url).await.unwrap());
}

/// Commits payments that only the primary has, far behind everything that the standby has. Returns where they end.
async fn pay_on_the_primary_alone(road: &Road, standby: &PrivatePostgres) -> (Vec<i64>, PgLsn) {
    standby.stop(StopMode::Fast).await.unwrap();
    let filler = "select pg_logical_emit_message(false, 'filler', repeat('x', 4000000))";
    road.platform.client.batch_execute(filler).await.unwrap();
    let mut payments = Vec::new();
    road.platform.client.batch_execute("begin").await.unwrap();
    for _ in 0..3 {
        payments.push(road.platform.payment(road.user, "ready").await);
    }
    road.platform.client.batch_execute("commit").await.unwrap();
    (payments, wal_position(&road.platform.client).await)
}

async fn wal_position(client: &tokio_postgres::Client) -> PgLsn {
    client.query_one("select pg_current_wal_lsn()", &[]).await.unwrap().get(0)
}

/// The payments that the store has events of.
async fn stored_payments(app: &TestApp) -> Vec<i64> {
    let statement = "select (data ->> 'payment_request_id')::bigint from walhook.event order by 1";
    app.store().await.query(statement, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn timeline(app: &TestApp) -> i32 {
    app.store().await.query_one("select timeline from walhook.checkpoint", &[]).await.unwrap().get(0)
}

async fn until_streamed(road: &Road) {
    let active = "select from pg_replication_slots where slot_name = $1 and active_pid is not null";
    let client = &road.platform.client;
    eventually("the new primary's slot to be read", async || {
        client.query_opt(active, &[&road.app.name]).await.unwrap().map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_with_the_slot_goes_on_where_the_primary_ended() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let Some((mut road, standby)) = with_slot_on_standby(&store, None).await else { return };
    let pid = road.app.sidecar().pid();
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    fail_over(&mut road, &standby).await;
    road.pay(5).await;
    road.assert_told().await;
    assert_eq!(road.app.sidecar().pid(), pid, "without a new start");
    assert_eq!(timeline(&road.app).await, 2);
}

/// The primary is lost while the store's commit of its last changes hangs, and the standby does not have these changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_hangs_during_a_failover_hides_nothing_of_the_new_timeline() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let Some((mut road, standby)) = with_slot_on_standby(&store, None).await else { return };
    let mut client = road.app.store().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute("lock table walhook.event in access exclusive mode").await.unwrap();
    let (undone, end) = pay_on_the_primary_alone(&road, &standby).await;
    let observer = road.app.store().await;
    // It has moved the checkpoint, and waits for the lock.
    let hanging = "select from pg_locks wanted join pg_locks had using (pid)
         where wanted.relation = 'walhook.event'::regclass and not wanted.granted
         and had.relation = 'walhook.checkpoint'::regclass and had.granted and had.mode = 'RowExclusiveLock'";
    eventually("the commit to hang", async || observer.query_opt(hanging, &[]).await.unwrap()).await;
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    fail_over(&mut road, &standby).await;
    let active = "select from pg_replication_slots where slot_name = $1 and active_pid is not null";
    eventually("capture to reach the new primary", async || {
        let streams = road.platform.client.query_opt(active, &[&road.app.name]).await.unwrap();
        let waits = "select from pg_locks where not granted and locktype in ('transactionid', 'tuple') limit 1";
        streams.or(observer.query_opt(waits, &[]).await.unwrap())
    })
    .await;
    road.pay(5).await;
    assert!(wal_position(&road.platform.client).await < end, "the new payments are numbered below the undone ones");
    lock.rollback().await.unwrap();
    let gap = async || {
        let open = "select reason from walhook.gap where repaired_at is null";
        observer.query_opt(open, &[]).await.unwrap().map(|row| row.get::<_, String>(0))
    };
    let found = eventually("the new payments in the store, or a gap", async || {
        let all = road.wanted.is_subset(&stored_payments(&road.app).await.into_iter().collect());
        if all { Some(None) } else { gap().await.map(Some) }
    })
    .await;
    let stored = stored_payments(&road.app).await;
    println!("the gap: {found:?}, stored {stored:?}, undone {undone:?}");
    match found {
        None => assert!(!undone.iter().any(|payment| stored.contains(payment)), "{stored:?} {undone:?}"),
        Some(reason) => {
            assert_eq!(reason, "timeline_forked");
            assert!(undone.iter().all(|payment| stored.contains(payment)), "{stored:?} {undone:?}");
            road.app.walhook_ok(&["repair"]).await;
            eventually("the new payments in the store", async || {
                road.wanted.is_subset(&stored_payments(&road.app).await.into_iter().collect()).then_some(())
            })
            .await;
        }
    }
    assert_eq!(timeline(&road.app).await, 2);
}

/// One replica cannot reach the store with its last changes; the other takes over on the new primary before it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_late_with_an_undone_batch_hides_nothing_of_the_new_timeline() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let proxy = Proxy::start(store.port()).await;
    let through_proxy = store.url("{database}").replace(&store.port().to_string(), &proxy.port.to_string());
    let Some((mut road, standby)) = with_slot_on_standby(&store, Some(&through_proxy)).await else { return };
    let direct = road.app.store_url.clone();
    let other = road.app.set("store.url", &direct).replica(&[]).await;
    proxy.weather(Weather::Frozen);
    let (undone, end) = pay_on_the_primary_alone(&road, &standby).await;
    let received = "select from pg_stat_replication join pg_replication_slots on pid = active_pid
         where slot_name = $1 and write_lsn >= $2";
    eventually("the late replica to have the changes", async || {
        road.platform.client.query_opt(received, &[&road.app.name, &end]).await.unwrap().map(drop)
    })
    .await;
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    fail_over(&mut road, &standby).await;
    until_streamed(&road).await;
    proxy.weather(Weather::Fair);
    let log = road.app.log_file();
    let committed = "select from walhook.checkpoint where commit_lsn > $1";
    let switch: PgLsn = wal_position(&road.platform.client).await;
    let client = road.app.store().await;
    eventually("the late batch to be decided on", async || {
        let refused = std::fs::read_to_string(&log).unwrap().contains("standing by");
        (refused || client.query_opt(committed, &[&switch]).await.unwrap().is_some()).then_some(())
    })
    .await;
    road.pay(5).await;
    assert!(wal_position(&road.platform.client).await < end, "the new payments are numbered below the undone ones");
    road.assert_told().await;
    let stored = stored_payments(&road.app).await;
    assert!(!undone.iter().any(|payment| stored.contains(payment)), "{stored:?} {undone:?}");
    assert_eq!(timeline(&road.app).await, 2);
    assert_eq!(client.query_one("select count(*) from walhook.gap", &[]).await.unwrap().get::<_, i64>(0), 0);
    drop(other);
}

/// Deliveries go out before their commit; what was lost with it is read again, from the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_read_again_after_a_failover_keep_their_ids() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let Some((mut road, standby)) = with_slot_on_standby(&store, None).await else { return };
    let mut client = road.app.store().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute("lock table walhook.event in access exclusive mode").await.unwrap();
    road.pay(1).await;
    let told = road.receiver.wait_for_deliveries(6).await.len();
    until_caught_up(&road.platform.client, &standby).await;
    road.app.kill().await;
    let ended = "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock'";
    let hanging = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let observer = road.app.store().await;
    eventually("the commit to be lost", async || {
        observer.execute(ended, &[]).await.unwrap();
        observer.query_opt(hanging, &[]).await.unwrap().is_none().then_some(())
    })
    .await;
    lock.rollback().await.unwrap();
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    fail_over(&mut road, &standby).await;
    road.app.run().await;
    road.receiver.wait_for(told + 1).await;
    road.assert_told().await;
    assert_eq!(timeline(&road.app).await, 2);
}
