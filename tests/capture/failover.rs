//! The primary is lost and a standby takes its place, under one URL that names both.

use std::path::PathBuf;

use tokio_postgres::types::PgLsn;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::chaos::Road;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_with_the_slot_goes_on_where_the_primary_ended() {
    let Some(programs) = installed().into_iter().find(|(version, _)| *version >= 17).map(|(_, programs)| programs)
    else {
        skip("no PostgreSQL 17 or later: scripts/fetch-postgres 17 fetches one");
        return;
    };
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let settings = [("sync_replication_slots", "on"), ("hot_standby_feedback", "on")];
    let Pair { app, standby } = pair(Some(programs), &settings, &store).await;
    let mut road = Road::start(app).await;
    let pid = road.app.sidecar().pid();
    road.pay(5).await;
    road.assert_told().await;
    until_slot_is_carried_over(&road, &standby).await;
    until_caught_up(&road.platform.client, &standby).await;
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    promote(&standby).await;
    let url = standby.url(&format!("{}_platform", road.app.name));
    road.platform = crate::support::Platform::new(postgres::connect(&url).await.unwrap());
    road.pay(5).await;
    road.assert_told().await;
    assert_eq!(road.app.sidecar().pid(), pid, "without a new start");
    let timeline = "select timeline from walhook.checkpoint";
    assert_eq!(road.app.store().await.query_one(timeline, &[]).await.unwrap().get::<_, i32>(0), 2);
}
