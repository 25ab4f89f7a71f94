//! Bad networks, stalled processes and slow stores: capture recovers automatically, and no event is
//! lost or repeated.

use std::collections::HashSet;
use std::sync::Arc;

use postgres_types::PgLsn;
use rustix::process::Signal;
use walhook::private_postgres::{Options, StopMode, free_port};

use crate::support::{Platform, Receiver, TestApp, eventually, one, run_sql};

/// A running sidecar, a webhook, and the payments whose events must be delivered to it.
pub struct Scenario {
    pub app: TestApp,
    pub platform: Platform,
    pub user: i64,
    pub receiver: Arc<Receiver>,
    /// The ids of the payments that were committed.
    pub payments: HashSet<i64>,
}

impl Scenario {
    /// Runs setup and the sidecar, and creates the webhook.
    pub async fn start(mut app: TestApp) -> Scenario {
        app.set("source.heartbeat", "200ms")
            .set("delivery.timeout", "2s");
        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;

        app.api(&user.to_string())
            .await
            .create_webhook(&receiver.url("/"), &["payment.statement_ready"])
            .await;

        Scenario {
            app,
            platform,
            user,
            receiver: Arc::new(receiver),
            payments: HashSet::new(),
        }
    }

    /// Commits `count` payments that raise an event each.
    pub async fn pay(&mut self, count: usize) {
        for _ in 0..count {
            let payment = self.platform.payment(self.user, "ready").await;
            self.payments.insert(payment);
        }
    }

    /// Waits until the event of every payment is delivered, and asserts that the store has each
    /// once.
    pub async fn assert_delivered(&self) {
        let paid = |requests: &[crate::support::Received]| -> HashSet<i64> {
            requests
                .iter()
                .filter_map(|request| request.data()["payment_request_id"].as_i64())
                .collect()
        };

        let received = self.receiver.wait_for_deliveries(self.payments.len()).await;
        assert_eq!(paid(&received), self.payments);

        let deliveries: HashSet<&str> = received.iter().map(|request| request.delivery()).collect();
        assert_eq!(
            deliveries.len(),
            self.payments.len(),
            "an event was delivered under two ids"
        );
        self.app.wait_for_events(self.payments.len()).await;
    }

    async fn wait_until_slot_is_inactive(&self) {
        let streams = "select active_pid from pg_replication_slots where slot_name = $1 and active_pid is not null";
        eventually("the server to end the connection", async || {
            self.platform
                .client
                .query_opt(streams, &[&self.app.name])
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    }
}

/// Four times the period of feedback: an unoptimised build holds its thread for a good part of a
/// second.
pub const IMPATIENT: [(&str, &str); 1] = [("wal_sender_timeout", "4s")];

/// For connections that must survive while thousands of rows are decoded.
pub const BUSY: [(&str, &str); 1] = [("wal_sender_timeout", "10s")];

/// Returns the number of bytes up to which the kernel enlarges a connection's buffer.
fn largest_buffer(setting: &str) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{setting}")).unwrap();
    sizes.split_whitespace().last().unwrap().parse().unwrap()
}

/// The part that fits into the socket's buffer has arrived before the sidecar reads any of it. The
/// rest arrives only after that.
#[tokio::test]
async fn a_message_larger_than_the_buffers_of_a_connection_does_not_block_it() {
    let mut scenario = Scenario::start(TestApp::prepare().await).await;
    scenario.pay(1).await;
    scenario.assert_delivered().await;
    scenario.app.sidecar().signal(Signal::STOP);

    let bytes = 2 * (largest_buffer("tcp_rmem") + largest_buffer("tcp_wmem"));
    let large = format!("select pg_logical_emit_message(false, 'large', repeat('x', {bytes}))");

    run_sql(&scenario.platform.client, &large).await;

    // Flushes it too.
    scenario.pay(1).await;
    let blocked = "select from pg_stat_activity join pg_replication_slots on pid = active_pid
         where slot_name = $1 and wait_event = 'WalSenderWriteData'";

    eventually("the walsender to wait for the socket", async || {
        scenario
            .platform
            .client
            .query_opt(blocked, &[&scenario.app.name])
            .await
            .unwrap()
            .map(drop)
    })
    .await;

    scenario.app.sidecar().signal(Signal::CONT);
    scenario.pay(1).await;
    scenario.assert_delivered().await;
}

#[tokio::test]
async fn a_sidecar_that_was_stopped_for_longer_than_wal_sender_timeout_continues() {
    let app = TestApp::prepare_alone(Options {
        settings: &IMPATIENT,
        ..Options::default()
    })
    .await;
    let mut scenario = Scenario::start(app).await;

    scenario.pay(3).await;
    scenario.app.sidecar().signal(Signal::STOP);
    scenario.pay(20).await;
    scenario.wait_until_slot_is_inactive().await;
    scenario.app.sidecar().signal(Signal::CONT);
    scenario.pay(3).await;
    scenario.assert_delivered().await;
}

#[tokio::test]
async fn the_replication_connection_survives_a_store_that_does_not_answer() {
    const ROWS: i64 = 20_000;
    let app = TestApp::prepare_alone(Options {
        settings: &BUSY,
        ..Options::default()
    })
    .await;
    let scenario = Scenario::start(app).await;
    let walsender = "select pid, reply_time from pg_stat_replication where reply_time is not null";
    let client = &scenario.platform.client;
    let mut store = scenario.app.store().await;
    let lock = store.transaction().await.unwrap();

    lock.batch_execute("lock table walhook.event in access exclusive mode")
        .await
        .unwrap();

    let (started_at, pid) = {
        let row = eventually("feedback", async || {
            client.query_opt(walsender, &[]).await.unwrap()
        })
        .await;
        (row.get::<_, jiff::Timestamp>(1), row.get::<_, i32>(0))
    };

    let statement = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
        select n, $1, 'INV', 1, 1, 'ready' from generate_series(1000000, 1000000 + $2::bigint - 1) n";
    client
        .execute(statement, &[&scenario.user, &ROWS])
        .await
        .unwrap();

    eventually("feedback for longer than wal_sender_timeout", async || {
        let row = client.query_one(walsender, &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), pid, "the connection must not end");

        (row.get::<_, jiff::Timestamp>(1)
            .duration_since(started_at)
            .as_secs_f64()
            > 15.0)
            .then_some(())
    })
    .await;

    lock.rollback().await.unwrap();

    eventually("all events in the store", async || {
        let row = store
            .query_one(
                "select count(*), count(distinct id) from walhook.event",
                &[],
            )
            .await
            .unwrap();
        (row.get::<_, i64>(0) == ROWS && row.get::<_, i64>(1) == ROWS).then_some(())
    })
    .await;

    assert_eq!(one::<i32>(client, walsender).await, pid);
}

/// A deadlock to avoid: the server shuts down only after the stream has received everything. The
/// stream waits for the store, which is on that server.
#[tokio::test]
async fn a_primary_that_is_also_the_store_can_shut_down_while_changes_wait() {
    shut_down_while_changes_wait(TestApp::prepare_alone(Options::default()).await).await;
}

/// The error of the second host does not hide that the first one shuts down.
#[tokio::test]
async fn a_primary_that_is_one_of_several_hosts_can_shut_down_while_changes_wait() {
    let mut app = TestApp::prepare_alone(Options::default()).await;
    let port = format!(":{}/", app.server.port());
    let hosts = format!(
        "{}127.0.0.1:{}/",
        port.replace('/', ","),
        free_port().unwrap()
    );
    let source = app.source_url.replace(&port, &hosts);
    let store = app.store_url.replace(&port, &hosts);

    app.set("source.url", &source).set("store.url", &store);
    shut_down_while_changes_wait(app).await;
}

async fn shut_down_while_changes_wait(app: TestApp) {
    let mut scenario = Scenario::start(app).await;
    scenario.pay(3).await;
    scenario.assert_delivered().await;

    let mut store = scenario.app.store().await;
    let lock = store.transaction().await.unwrap();

    lock.batch_execute("lock table walhook.event in access exclusive mode")
        .await
        .unwrap();
    scenario.pay(20).await;

    let client = &scenario.platform.client;
    eventually("a statement to wait for the lock", async || {
        let waiting = "select exists (select from pg_locks where not granted)";
        one::<bool>(client, waiting).await.then_some(())
    })
    .await;

    // Fails if the server waits for the stream for longer than the time limit of the stop.
    scenario.app.server.restart(StopMode::Fast).await.unwrap();
    scenario.assert_delivered().await;
}

#[tokio::test]
async fn the_slot_retains_no_wal_while_only_another_database_writes() {
    /// Segments have 16 MiB; the server keeps the WAL since the checkpoint before last.
    const BOUND: i64 = 64 << 20;
    let app = TestApp::prepare_alone(Options::default()).await;
    let scenario = Scenario::start(app).await;

    scenario.app.server.create_database("busy").await.unwrap();
    let busy = walhook::postgres::connect(&scenario.app.server.url("busy"))
        .await
        .unwrap();
    let current = async || one::<PgLsn>(&busy, "select pg_current_wal_lsn()").await;

    let start = current().await;

    for table in 0..8 {
        let write = format!(
            "create table t{table} as select n, repeat('x', 1000) from generate_series(1, 16000) n"
        );
        run_sql(&busy, &write).await;
    }

    let written = current().await;
    assert!(
        u64::from(written) - u64::from(start) > 128 << 20,
        "several segments"
    );
    run_sql(&busy, "checkpoint").await;

    let statement = "select confirmed_flush_lsn, (pg_current_wal_lsn() - restart_lsn)::bigint
         from pg_replication_slots where slot_name = $1";
    let retained = eventually("the slot to follow", async || {
        let row = busy
            .query_one(statement, &[&scenario.app.name])
            .await
            .unwrap();
        let retained: i64 = row.get(1);

        // The slot releases WAL only up to a record of the running transactions: a checkpoint
        // writes one.
        run_sql(&busy, "checkpoint").await;
        (row.get::<_, PgLsn>(0) >= written && retained < BOUND).then_some(retained)
    })
    .await;

    println!(
        "{} MiB written by the other database, {} KiB retained",
        (u64::from(written) - u64::from(start)) >> 20,
        retained >> 10
    );
    let events = "select count(*) from walhook.event";
    assert_eq!(one::<i64>(&scenario.app.store().await, events).await, 0);
}
