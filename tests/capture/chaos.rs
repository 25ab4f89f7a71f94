//! Bad networks, stalled processes and slow stores: recovered from by itself, with nothing lost and nothing told twice.

use std::collections::HashSet;
use std::sync::Arc;

use postgres_types::PgLsn;
use rustix::process::Signal;
use tokio_postgres::Client;
use walhook::private_postgres::{Options, StopMode};

use crate::support::proxy::{Proxy, Weather};
use crate::support::{Platform, Receiver, TestApp, eventually};

/// A sidecar at work, and every payment that it has to tell of.
pub struct Road {
    pub app: TestApp,
    pub platform: Platform,
    pub user: i64,
    pub receiver: Arc<Receiver>,
    pub wanted: HashSet<i64>,
}

impl Road {
    /// Sets up and runs `app`.
    pub async fn start(mut app: TestApp) -> Road {
        app.set("source.heartbeat", "200ms").set("delivery.timeout", "2s");
        app.setup().await;
        app.run().await;
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;
        app.api(&user.to_string()).await.create_webhook(&receiver.url("/"), &["payment.statement_ready"]).await;
        Road { app, platform, user, receiver: Arc::new(receiver), wanted: HashSet::new() }
    }

    pub async fn pay(&mut self, count: usize) {
        for _ in 0..count {
            let payment = self.platform.payment(self.user, "ready").await;
            self.wanted.insert(payment);
        }
    }

    /// All of them have been told, and the store has each once.
    pub async fn assert_told(&self) {
        let told = |requests: &[crate::support::Received]| -> HashSet<i64> {
            requests.iter().filter_map(|request| request.data()["payment_request_id"].as_i64()).collect()
        };
        let received = self.receiver.wait_for_deliveries(self.wanted.len()).await;
        assert_eq!(told(&received), self.wanted);
        let deliveries: HashSet<&str> = received.iter().map(|request| request.delivery()).collect();
        assert_eq!(deliveries.len(), self.wanted.len(), "a payment was told under two ids");
        self.app.wait_for_events(self.wanted.len()).await;
    }

    async fn until_nobody_streams(&self) {
        let streams = "select active_pid from pg_replication_slots where slot_name = $1 and active_pid is not null";
        eventually("the server to give the connection up", async || {
            self.platform.client.query_opt(streams, &[&self.app.name]).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

const IMPATIENT: [(&str, &str); 1] = [("wal_sender_timeout", "1s")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_networks_lose_and_repeat_nothing() {
    let mut app = TestApp::prepare_alone(Options { settings: &IMPATIENT, ..Options::default() }).await;
    let proxy = Proxy::start(app.server.port()).await;
    let url = app.source_url.replace(&app.server.port().to_string(), &proxy.port.to_string());
    app.set("source.url", &url);
    let mut road = Road::start(app).await;
    let pid = road.app.sidecar().pid();
    road.pay(5).await;
    road.assert_told().await;

    proxy.weather(Weather::Frozen);
    road.pay(20).await;
    road.until_nobody_streams().await;
    proxy.weather(Weather::Fair);
    road.pay(5).await;
    road.assert_told().await;

    for _ in 0..5 {
        road.pay(5).await;
        proxy.reset();
    }
    road.assert_told().await;

    proxy.weather(Weather::Slow(64));
    road.pay(10).await;
    proxy.weather(Weather::Slow(2_000));
    road.assert_told().await;
    proxy.weather(Weather::Fair);

    for bytes in [1, 7, 61, 350, 1_001, 4_099] {
        proxy.cut_after(bytes);
        road.pay(5).await;
        eventually("the cut", async || proxy.has_cut().then_some(())).await;
    }
    road.assert_told().await;

    let ended = "select pg_terminate_backend(active_pid) from pg_replication_slots
         where slot_name = $1 and active_pid is not null";
    for _ in 0..3 {
        let (client, name): (&Client, &str) = (&road.platform.client, &road.app.name);
        eventually("a walsender to end", async || client.query_opt(ended, &[&name]).await.unwrap()).await;
        road.pay(5).await;
    }
    road.assert_told().await;
    assert_eq!(road.app.sidecar().pid(), pid, "without a new start");
}

/// All that the socket holds of it has arrived before any of it is read: nothing more comes until that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_larger_than_the_buffers_of_a_connection_does_not_stall_it() {
    let mut road = Road::start(TestApp::prepare().await).await;
    road.pay(1).await;
    road.assert_told().await;
    road.app.sidecar().signal(Signal::STOP);
    let large = "select pg_logical_emit_message(false, 'large', repeat('x', 30000000))";
    road.platform.client.batch_execute(large).await.unwrap();
    let blocked = "select from pg_stat_activity join pg_replication_slots on pid = active_pid
         where slot_name = $1 and wait_event = 'WalSenderWriteData'";
    eventually("the walsender to wait for the socket", async || {
        road.platform.client.query_opt(blocked, &[&road.app.name]).await.unwrap().map(drop)
    })
    .await;
    road.app.sidecar().signal(Signal::CONT);
    road.pay(1).await;
    road.assert_told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_was_stopped_for_longer_than_the_server_waits_goes_on() {
    let app = TestApp::prepare_alone(Options { settings: &IMPATIENT, ..Options::default() }).await;
    let mut road = Road::start(app).await;
    road.pay(3).await;
    road.app.sidecar().signal(Signal::STOP);
    road.pay(20).await;
    road.until_nobody_streams().await;
    road.app.sidecar().signal(Signal::CONT);
    road.pay(3).await;
    road.assert_told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than a minute: `make soak`"]
async fn a_sidecar_that_stood_still_for_a_minute_goes_on() {
    let settings = [("wal_sender_timeout", "5s")];
    let app = TestApp::prepare_alone(Options { settings: &settings, ..Options::default() }).await;
    let mut road = Road::start(app).await;
    road.app.sidecar().signal(Signal::STOP);
    road.pay(200).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    road.app.sidecar().signal(Signal::CONT);
    road.assert_told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_does_not_cost_the_connection() {
    const ROWS: i64 = 20_000;
    // Four times the period of feedback: an unoptimised build holds its thread for a good part of a second.
    let settings = [("wal_sender_timeout", "4s")];
    let app = TestApp::prepare_alone(Options { settings: &settings, ..Options::default() }).await;
    let road = Road::start(app).await;
    let walsender = "select pid, reply_time from pg_stat_replication where reply_time is not null";
    let client = &road.platform.client;
    let mut store = road.app.store().await;
    let lock = store.transaction().await.unwrap();
    lock.batch_execute("lock table walhook.event in access exclusive mode").await.unwrap();
    let (begun, pid) = {
        let row = eventually("feedback", async || client.query_opt(walsender, &[]).await.unwrap()).await;
        (row.get::<_, jiff::Timestamp>(1), row.get::<_, i32>(0))
    };
    let statement = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
        select n, $1, 'INV', 1, 1, 'ready' from generate_series(1000000, 1000000 + $2::bigint - 1) n";
    client.execute(statement, &[&road.user, &ROWS]).await.unwrap();
    eventually("feedback for longer than the server's patience", async || {
        let row = client.query_one(walsender, &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), pid, "the connection was cut");
        (row.get::<_, jiff::Timestamp>(1).duration_since(begun).as_secs_f64() > 6.0).then_some(())
    })
    .await;
    lock.rollback().await.unwrap();
    eventually("all of it in the store", async || {
        let row = store.query_one("select count(*), count(distinct id) from walhook.event", &[]).await.unwrap();
        (row.get::<_, i64>(0) == ROWS && row.get::<_, i64>(1) == ROWS).then_some(())
    })
    .await;
    assert_eq!(client.query_one(walsender, &[]).await.unwrap().get::<_, i32>(0), pid);
}

/// The server does not go down before the stream has taken everything, and the stream cannot before the store does, which is
/// on that server: somebody has to let go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_with_the_store_on_it_goes_down_while_changes_wait() {
    let mut road = Road::start(TestApp::prepare_alone(Options::default()).await).await;
    road.pay(3).await;
    road.assert_told().await;
    let mut store = road.app.store().await;
    let lock = store.transaction().await.unwrap();
    lock.batch_execute("lock table walhook.event in access exclusive mode").await.unwrap();
    road.pay(20).await;
    let client = &road.platform.client;
    eventually("the store is waited for", async || {
        let waiting = "select exists (select from pg_locks where not granted)";
        client.query_one(waiting, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    road.app.server.restart(StopMode::Fast).await.unwrap();
    road.assert_told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stands_by_takes_over_after_a_kill() {
    let mut app = TestApp::prepare().await;
    // Each process names itself to the server.
    let named = |app: &mut TestApp, name: &str| {
        let url = format!("{}?application_name={name}", app.source_url);
        app.set("source.url", &url);
    };
    named(&mut app, "first");
    let mut road = Road::start(app).await;
    road.pay(3).await;
    road.assert_told().await;
    named(&mut road.app, "standing_by");
    let _others = [road.app.replica(&[]).await, road.app.replica(&[]).await];
    let client = road.app.source().await;
    let name = road.app.name.clone();
    let reader = async || {
        let reader = "select application_name from pg_stat_replication join pg_replication_slots on active_pid = pid
             where slot_name = $1";
        Some(client.query_opt(reader, &[&name]).await.unwrap()?.get::<_, String>(0))
    };
    assert_eq!(reader().await.as_deref(), Some("first"), "the others stand by, though they are ready");
    road.app.kill().await;
    road.pay(3).await;
    road.assert_told().await;
    assert_eq!(reader().await.as_deref(), Some("standing_by"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_database_beside_an_idle_publication_holds_no_log_back() {
    /// Segments are of 16 MiB; the server keeps what it wrote since the checkpoint before last.
    const BOUND: i64 = 64 << 20;
    let app = TestApp::prepare_alone(Options::default()).await;
    let road = Road::start(app).await;
    road.app.server.create_database("busy").await.unwrap();
    let busy = walhook::postgres::connect(&road.app.server.url("busy")).await.unwrap();
    let current = async || busy.query_one("select pg_current_wal_lsn()", &[]).await.unwrap().get::<_, PgLsn>(0);
    let begun = current().await;
    for table in 0..8 {
        let write = format!("create table t{table} as select n, repeat('x', 1000) from generate_series(1, 16000) n");
        busy.batch_execute(&write).await.unwrap();
    }
    let written = current().await;
    assert!(u64::from(written) - u64::from(begun) > 128 << 20, "several segments");
    busy.batch_execute("checkpoint").await.unwrap();
    let statement = "select confirmed_flush_lsn, (pg_current_wal_lsn() - restart_lsn)::bigint
         from pg_replication_slots where slot_name = $1";
    let retained = eventually("the slot to follow", async || {
        let row = busy.query_one(statement, &[&road.app.name]).await.unwrap();
        let retained: i64 = row.get(1);
        // The slot may let go where a record says which transactions run: a checkpoint writes one.
        busy.batch_execute("checkpoint").await.unwrap();
        (row.get::<_, PgLsn>(0) >= written && retained < BOUND).then_some(retained)
    })
    .await;
    println!(
        "{} MiB written by others, {} KiB held back",
        (u64::from(written) - u64::from(begun)) >> 20,
        retained >> 10
    );
    let checkpoint = "select count(*) from walhook.event";
    assert_eq!(road.app.store().await.query_one(checkpoint, &[]).await.unwrap().get::<_, i64>(0), 0);
}
