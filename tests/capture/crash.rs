//! Kills of the sidecar and restarts of either Postgres: no event is lost, invented or enqueued
//! twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{
    Platform, Received, Receiver, TestApp, eventually, next_id, one, run_sql, server,
};
use postgres_types::PgLsn;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::domain::lsn::Lsn;
use walhook::private_postgres::{Options, StopMode};
use walhook::store::Store;

/// The pause between the load's transactions.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(4);

/// Commits and rolls back payments until it is stopped. Returns those that were committed and those
/// that were rolled back.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<(Vec<i64>, Vec<i64>)>,
}

impl Load {
    fn start(client: Client, user: i64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);

        let task = tokio::spawn(async move {
            let mut committed = Vec::new();
            let mut rolled_back = Vec::new();

            while !stopped.load(Ordering::Relaxed) {
                let first = next_id();
                let second = next_id();
                let never = next_id();
                let insert = |id: i64| {
                    format!(
                        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                         values ({id}, {user}, 'INV', 1, 1, 'ready');"
                    )
                };

                // One of each kind: committed, rolled back, and rolled back to a savepoint inside a
                // committed one.
                let statements = format!(
                    "begin; {} commit; begin; {} rollback; begin; savepoint s; {} rollback to s; {} commit",
                    insert(first),
                    insert(never),
                    insert(never),
                    insert(second)
                );

                client
                    .batch_execute(&statements)
                    .await
                    .expect("the platform's database is up");
                committed.extend([first, second]);
                rolled_back.push(never);

                // Some load is enough: the test searches the receiver's requests repeatedly.
                tokio::time::sleep(PAUSE).await;
            }

            (committed, rolled_back)
        });

        Load { stop, task }
    }

    async fn stop(self) -> (Vec<i64>, Vec<i64>) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the load does not panic")
    }
}

/// Asserts that every committed payment was delivered under one delivery id and is stored once, and
/// that no other payment was.
async fn assert_complete(
    app: &TestApp,
    receiver: &Receiver,
    committed: &[i64],
    rolled_back: &[i64],
) {
    let by_payment = |requests: &[Received]| {
        let mut deliveries: HashMap<i64, HashSet<String>> = HashMap::new();

        for request in requests {
            let payment = request.data()["payment_request_id"].as_i64().unwrap();
            deliveries
                .entry(payment)
                .or_default()
                .insert(request.delivery().to_owned());
        }

        deliveries
    };

    let wanted: HashSet<i64> = committed.iter().copied().collect();
    let received = receiver.wait_for_deliveries(wanted.len()).await;
    let delivered = by_payment(&received);

    for payment in rolled_back {
        assert!(
            !delivered.contains_key(payment),
            "payment {payment} was rolled back"
        );
    }

    assert_eq!(delivered.len(), wanted.len(), "an event was invented");

    for (payment, deliveries) in &delivered {
        assert_eq!(
            deliveries.len(),
            1,
            "payment {payment} has several delivery ids"
        );
    }

    app.wait_for_events(wanted.len()).await;
}

async fn subscribe(app: &TestApp, platform: &Platform) -> (i64, Receiver) {
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    app.api(&user.to_string())
        .await
        .create_webhook(&receiver.url("/"), &["payment.statement_ready"])
        .await;

    (user, receiver)
}

#[tokio::test]
async fn a_store_that_does_not_flush_its_commits_loses_no_event_in_a_crash() {
    let settings = [("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let store_server = server(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    let mut app = TestApp::prepare().await;
    store_server.create_database("elsewhere").await.unwrap();
    app.store_url = store_server.url("elsewhere");

    let store_url = app.store_url.clone();
    app.set("store.url", &store_url)
        .set("delivery.timeout", "5s");
    app.setup().await;

    let checked = app.walhook_ok(&["check"]).await;
    assert!(
        checked.contains("warn  store's synchronous_commit: off"),
        "{checked}"
    );
    app.run().await;

    let platform = app.platform().await;
    let (user, receiver) = subscribe(&app, &platform).await;

    // Flushes the webhook's commit, which the crash would otherwise undo: this test is only about
    // events.
    run_sql(
        &app.store().await,
        "set synchronous_commit = on; create table flushed ()",
    )
    .await;

    let load = Load::start(app.source().await, user);

    for round in 1..=3 {
        receiver.wait_for(40 * round).await;
        let written = "select pg_current_wal_lsn()";
        let end: PgLsn = one(&platform.client, written).await;

        let slot =
            "select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn > $2";
        eventually("the WAL to be acknowledged", async || {
            platform
                .client
                .query_opt(slot, &[&app.name, &end])
                .await
                .unwrap()
        })
        .await;

        store_server.restart(StopMode::Immediate).await.unwrap();
    }

    let (committed, rolled_back) = load.stop().await;
    assert_complete(&app, &receiver, &committed, &rolled_back).await;
}

/// After a crash of the store, the slot is compared with these: if one were undone, WAL would seem
/// to have been acknowledged by another.
#[tokio::test]
async fn a_store_that_does_not_flush_its_commits_keeps_what_acknowledgements_rely_on() {
    let settings = [("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let server = server(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    let mut app = TestApp::prepare().await;
    server.create_database("elsewhere").await.unwrap();
    app.store_url = server.url("elsewhere");

    let store_url = app.store_url.clone();
    app.set("store.url", &store_url).setup().await;

    let slot = &app.name;
    let reader = Uuid::now_v7();
    let open = || Store::open(&app.store_url, 1).unwrap();
    let crash = async || server.restart(StopMode::Immediate).await.unwrap();

    crash().await;

    assert!(
        open()
            .claim_acknowledgement(slot, None, reader)
            .await
            .unwrap()
            .is_some()
    );

    crash().await;
    assert_eq!(
        open().acknowledgement_reader(slot).await.unwrap(),
        Some(reader)
    );

    let limit = Lsn(open().acknowledgement_limit(slot).await.unwrap().0 + 1);
    assert!(
        open()
            .raise_acknowledgement_limit(slot, reader, limit)
            .await
            .unwrap()
    );

    crash().await;
    assert_eq!(open().acknowledgement_limit(slot).await.unwrap(), limit);

    let found = open().checkpoint(slot).await.unwrap().unwrap();
    let timeline = found.lineage.timeline + 1;

    assert!(open().enter_timeline(slot, &found, timeline).await.unwrap());
    crash().await;

    assert_eq!(
        open()
            .checkpoint(slot)
            .await
            .unwrap()
            .unwrap()
            .lineage
            .timeline,
        timeline
    );
}
