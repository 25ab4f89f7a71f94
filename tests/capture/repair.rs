//! `walhook repair`: every transition missed in a gap is found and raised once.

use std::collections::BTreeMap;
use std::process::Output;

use crate::support::versions;
use crate::support::{Platform, Receiver, Sidecar, TestApp, eventually, one, run_sql};
use crate::wait_until_unready;
use tokio_postgres::Client;
use walhook::private_postgres::Options;

const ALL_OF_A_RELEASE: [&str; 3] = [
    "release.distributed",
    "release.review.status_changed",
    "distribution.outlet.status_changed",
];

/// The pause between two writes.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(4);
/// The states that a row passes through repeatedly; it never returns to its first one.
const CYCLE: [&str; 6] = [
    "transcoding",
    "batched",
    "complete",
    "error",
    "fault",
    "rejected",
];

async fn open_gaps(app: &TestApp) -> Vec<String> {
    let statement = "select reason from walhook.gap where repaired_at is null order by id";
    let rows = app.store().await.query(statement, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Waits until readiness names a gap of this reason.
async fn wait_for_gap(sidecar: &Sidecar, reason: &str) {
    wait_until_unready(sidecar, &format!("({reason})")).await;
}

/// The repaired events by kind, from the store.
async fn repaired(store: &Client) -> BTreeMap<String, i64> {
    let rows = store
        .query(
            "select kind, count(*) from walhook.event where repaired group by kind",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn counts<const N: usize>(expected: [(&str, i64); N]) -> BTreeMap<String, i64> {
    expected
        .into_iter()
        .map(|(kind, count)| (kind.to_owned(), count))
        .collect()
}

/// Stops the sidecar and waits until the server has released its slot.
async fn stop(app: &mut TestApp) {
    assert!(app.stop().await.success());
    let free = "select from pg_replication_slots where slot_name = $1 and not active";
    let client = app.source().await;
    eventually("the slot to be free", async || {
        client.query_opt(free, &[&app.name]).await.unwrap()
    })
    .await;
}

/// The number of events by kind in a repair's report.
fn reported(report: &str) -> BTreeMap<String, i64> {
    let lines = report
        .lines()
        .filter_map(|line| line.split_once(' ').filter(|(kind, _)| kind.contains('.')));
    lines
        .filter_map(|(kind, count)| Some((kind.to_owned(), count.trim().parse().ok()?)))
        .collect()
}

/// A label with releases in several states, one of them distributed.
struct Scene {
    platform: Platform,
    receiver: Receiver,
    label: i64,
    outlet: i64,
    releases: Vec<i64>,
    entries: Vec<i64>,
    webhook: String,
    api: crate::support::Api,
}

impl Scene {
    /// Creates six releases, each with an entry at an outlet, and waits until their events are
    /// delivered.
    async fn new(app: &mut TestApp) -> Scene {
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        let outlet = platform.outlet("Example Music").await;
        let receiver = Receiver::start().await;
        let api = app.api(&user.to_string()).await;
        let (webhook, _) = api
            .create_webhook(&receiver.url("/"), &ALL_OF_A_RELEASE)
            .await;
        let mut releases = Vec::new();
        let mut entries = Vec::new();

        for _ in 0..6 {
            let release = platform.release(label).await;
            releases.push(release);
            entries.push(platform.distribution(release, outlet, "scheduled").await);
        }

        receiver.wait_for(6).await;
        app.wait_for_events(6).await;

        // What a kill leaves unrecorded is sent again.
        app.wait_for_count("select count(*) from walhook.attempt", 6)
            .await;
        receiver.clear();

        Scene {
            platform,
            receiver,
            label,
            outlet,
            releases,
            entries,
            webhook,
            api,
        }
    }

    /// Changes rows while capture is stopped. The comparison finds three changes at the outlet, one
    /// of them of a new row, one change in review and two distributions.
    async fn change_rows_in_the_gap(&self) {
        let Scene {
            platform,
            releases,
            entries,
            ..
        } = self;

        // Several changes of one row count as one: states in between are unknown.
        for status in ["transcoding", "batched", "complete"] {
            platform.set_distribution_status(entries[0], status).await;
        }

        platform.set_distribution_status(entries[1], "error").await;

        // A row that returns to its earlier state has not changed.
        platform
            .set_distribution_status(entries[2], "batched")
            .await;
        platform
            .set_distribution_status(entries[2], "scheduled")
            .await;
        platform.set_review_status(releases[0], "to_review").await;
        platform
            .set_delivery_status(releases[1], "distributed")
            .await;

        // Inserted, and then deleted or not.
        let late = platform.release(self.label).await;
        platform.set_delivery_status(late, "distributed").await;
        platform.distribution(late, self.outlet, "scheduled").await;

        let short = platform.distribution(late, self.outlet, "scheduled").await;
        platform
            .execute(
                "delete from distro_queue where id = any($1)",
                &[&vec![short, entries[5]]],
            )
            .await;

        // A column that is not watched.
        platform
            .execute(
                "update distro_queue set message = 'm' where id = $1",
                &[&entries[3]],
            )
            .await;
    }
}

fn missed_events() -> BTreeMap<String, i64> {
    counts([
        ("release.review.status_changed", 1),
        ("release.distributed", 2),
        ("delivery.completed", 1),
        ("delivery.failed", 1),
        ("distribution.outlet.status_changed", 3),
    ])
}

#[tokio::test]
async fn a_dry_run_reports_what_was_missed_without_the_slot_and_the_repair_raises_it_once() {
    let mut app = TestApp::start().await;
    let scene = Scene::new(&mut app).await;
    let nothing = app.walhook(&["repair"]).await;

    assert!(!nothing.status.success());
    assert!(
        stderr(&nothing).contains("in use by process"),
        "{}",
        stderr(&nothing)
    );
    app.drop_slot().await;
    wait_for_gap(app.sidecar(), "slot_missing").await;
    app.sidecar()
        .wait_for_metric("walhook_gaps_open", 1.0)
        .await;
    scene.change_rows_in_the_gap().await;

    let dry = app.walhook_ok(&["repair", "--dry-run"]).await;
    assert_eq!(reported(&dry), missed_events(), "{dry}");
    assert!(
        dry.contains("Nothing was changed") && dry.contains("gap slot_missing: "),
        "{dry}"
    );
    assert_eq!(open_gaps(&app).await, ["slot_missing"]);

    let store = app.store().await;
    assert_eq!(repaired(&store).await, counts([]));

    let real = app.walhook_ok(&["repair"]).await;
    assert_eq!(reported(&real), missed_events(), "{real}");
    assert_eq!(repaired(&store).await, missed_events());
    assert_eq!(open_gaps(&app).await, [""; 0]);

    // The sidecar continues without a restart.
    app.sidecar().wait_until_ready().await;
    app.sidecar()
        .wait_for_metric("walhook_gaps_open", 0.0)
        .await;

    let received = scene.receiver.wait_for(6).await;
    let moved = received
        .iter()
        .find(|request| request.data()["distro_queue_id"] == scene.entries[0])
        .unwrap();

    assert_eq!(
        (&moved.data()["previous_status"], &moved.data()["status"]),
        (&"scheduled".into(), &"complete".into())
    );

    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "the repaired ones", |logs| {
            logs.iter()
                .filter(|entry| entry["repaired"] == true)
                .count()
                == 6
        });

    let logs = logs.await;
    assert_eq!(
        logs.iter()
            .filter(|entry| entry["repaired"] == false)
            .count(),
        6,
        "as they were streamed"
    );

    let detail = scene
        .api
        .get(&format!(
            "/webhooks/{}/logs/{}",
            scene.webhook,
            logs[0]["id"].as_str().unwrap()
        ))
        .await;

    assert_eq!(detail.expect(200).json()["repaired"], true);

    // Later changes raise events as usual, and a release is distributed only once.
    scene
        .platform
        .set_delivery_status(scene.releases[1], "pending")
        .await;
    scene
        .platform
        .set_delivery_status(scene.releases[1], "distributed")
        .await;
    scene
        .platform
        .set_distribution_status(scene.entries[0], "scheduled")
        .await;

    let received = scene.receiver.wait_for(7).await;
    assert_eq!(received[6].data()["previous_status"], "complete");
    assert_eq!(received.len(), 7);
    stop(&mut app).await;

    let again = app.walhook(&["repair"]).await;
    assert!(
        stderr(&again).contains("nothing to repair"),
        "{}",
        stderr(&again)
    );

    let forced = app.walhook_ok(&["repair", "--force"]).await;
    assert_eq!(reported(&forced), counts([]), "{forced}");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn concurrent_writes_during_a_repair_are_neither_lost_nor_repeated() {
    let mut app = TestApp::start().await;
    let scene = Scene::new(&mut app).await;

    app.drop_slot().await;
    wait_for_gap(app.sidecar(), "slot_missing").await;

    let writer = app.source().await;
    let entry = scene.entries[0];
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();

    let writing = tokio::spawn(async move {
        let mut last = 0_usize;

        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            last += 1;
            let status = CYCLE[last % CYCLE.len()];
            let statement =
                format!("update distro_queue set status = '{status}' where id = {entry}");
            run_sql(&writer, &statement).await;

            // Some load is enough.
            tokio::time::sleep(PAUSE).await;
        }

        run_sql(
            &writer,
            &format!("update distro_queue set status = 'last' where id = {entry}"),
        )
        .await;
    });

    let report = app.walhook_ok(&["repair"]).await;
    assert_eq!(
        reported(&report)["distribution.outlet.status_changed"],
        1,
        "{report}"
    );
    app.sidecar().wait_until_ready().await;
    scene.receiver.wait_for(20).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writing.await.unwrap();

    let ended = |requests: &[crate::support::Received]| {
        requests
            .iter()
            .any(|request| request.data()["status"] == "last")
    };

    scene.receiver.wait_until("the last status", ended).await;

    // In the order of the WAL, each event starts in the state in which the one before ended; only
    // the repaired one skips states.
    let statement = "select coalesce(data->>'previous_status', ''), data->>'status', repaired from walhook.event
         where (data->>'distro_queue_id')::bigint = $1 and kind = 'distribution.outlet.status_changed'
         order by commit_lsn, ordinal";
    let store = app.store().await;
    let stored = || async {
        let rows = store.query(statement, &[&entry]).await.unwrap();
        rows.last()
            .is_some_and(|row| row.get::<_, &str>(1) == "last")
            .then_some(rows)
    };

    let rows = eventually("the last status in the store", stored).await;
    let mut at = "";

    for row in &rows {
        let (from, to, repaired): (&str, &str, bool) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(from, at);

        let step = |status: &str| CYCLE.iter().position(|known| *known == status);
        if let (Some(from), Some(to), false) = (step(from), step(to), repaired) {
            assert_eq!(
                (from + 1) % CYCLE.len(),
                to,
                "a transition is missing or repeated"
            );
        }

        at = to;
    }

    assert_eq!(at, "last");
    assert_eq!(rows.iter().filter(|row| row.get(2)).count(), 1);
}

#[tokio::test]
async fn a_slot_that_was_advanced_by_others_is_reported() {
    let mut app = TestApp::start().await;
    let scene = Scene::new(&mut app).await;

    // Acknowledgements are sent every second: wait for one after everything was stored.
    let client = app.source().await;
    let confirmed =
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = $1";
    let first: String = client
        .query_one(confirmed, &[&app.name])
        .await
        .unwrap()
        .get(0);

    eventually("an acknowledgement", async || {
        let now: String = client
            .query_one(confirmed, &[&app.name])
            .await
            .unwrap()
            .get(0);
        (now != first).then_some(())
    })
    .await;

    app.restart().await;
    assert_eq!(
        open_gaps(&app).await,
        [""; 0],
        "Walhook's own acknowledgements are no gap"
    );
    stop(&mut app).await;
    scene
        .platform
        .set_distribution_status(scene.entries[0], "complete")
        .await;

    let advance = format!(
        "select pg_replication_slot_advance('{}', pg_current_wal_lsn())",
        app.name
    );
    run_sql(&client, &advance).await;

    let mut sidecar = app.spawn(&[]);
    wait_for_gap(&sidecar, "slot_ahead").await;

    let check = app.walhook(&["check"]).await;
    let check = String::from_utf8_lossy(&check.stdout).into_owned();

    assert!(
        check.contains("gap slot_ahead: ") && check.contains("run `walhook repair`"),
        "{check}"
    );
    let report = app.walhook_ok(&["repair"]).await;

    assert_eq!(
        reported(&report),
        counts([
            ("delivery.completed", 1),
            ("distribution.outlet.status_changed", 1)
        ]),
        "{report}"
    );

    sidecar.wait_until_ready().await;
    scene.receiver.wait_for(1).await;
    sidecar.stop().await;
}

#[tokio::test]
async fn a_slot_that_the_server_invalidated_is_reported_and_repaired() {
    let settings = [
        ("max_slot_wal_keep_size", "1MB"),
        ("min_wal_size", "32MB"),
        ("max_wal_size", "32MB"),
    ];
    let mut app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    app.setup().await;
    app.run().await;

    let scene = Scene::new(&mut app).await;
    assert!(app.stop().await.success());
    scene.change_rows_in_the_gap().await;

    eventually("the slot to be invalidated", async || {
        let fill =
            "insert into app_user (id, email) select n, repeat('x', 1000) from generate_series(100000, 140000) n;
                    delete from app_user where id >= 100000; checkpoint";
        run_sql(&scene.platform.client, fill).await;
        let lost = "select from pg_replication_slots where wal_status = 'lost'";
        scene.platform.client.query_opt(lost, &[]).await.unwrap()
    })
    .await;

    let setup = app.walhook(&["setup"]).await;
    let error = String::from_utf8_lossy(&setup.stderr);

    assert!(
        !setup.status.success()
            && error.contains("was invalidated")
            && error.contains("walhook repair"),
        "{error}"
    );

    let mut sidecar = app.spawn(&[]);
    wait_for_gap(&sidecar, "slot_invalidated").await;

    let report = app.walhook_ok(&["repair"]).await;
    assert_eq!(reported(&report), missed_events(), "{report}");
    sidecar.wait_until_ready().await;
    scene.receiver.wait_for(6).await;
    sidecar.stop().await;
}

#[tokio::test]
async fn without_the_ledger_only_distributions_are_found_and_inactive_webhooks_can_recover_them() {
    let mut app = TestApp::start_with(|app| app.set("source.ledger", "false")).await;

    let scene = Scene::new(&mut app).await;
    scene
        .api
        .patch(
            &format!("/webhooks/{}", scene.webhook),
            serde_json::json!({ "active": false }),
        )
        .await
        .expect(200);

    app.drop_slot().await;
    wait_for_gap(app.sidecar(), "slot_missing").await;
    scene.change_rows_in_the_gap().await;

    // The ledger is switched on and empty: it is filled, and no events are invented.
    app.set("source.ledger", "true");
    let report = app.walhook_ok(&["repair"]).await;

    assert_eq!(
        reported(&report),
        counts([("release.distributed", 2)]),
        "{report}"
    );
    assert!(
        report.contains("during the gap cannot be determined")
            && report.contains("2 kept for inactive"),
        "{report}"
    );

    let missed: i64 = one(
        &app.store().await,
        "select count(*) from walhook.missed_event",
    )
    .await;

    assert_eq!((missed, scene.receiver.requests().len()), (2, 0));
    app.kill().await;
    app.run().await;

    // Now the ledger has every row.
    app.drop_slot().await;
    wait_for_gap(app.sidecar(), "slot_missing").await;
    scene
        .platform
        .set_distribution_status(scene.entries[3], "fault")
        .await;

    let report = app.walhook_ok(&["repair", "--dry-run"]).await;
    assert_eq!(
        reported(&report),
        counts([
            ("delivery.failed", 1),
            ("distribution.outlet.status_changed", 1)
        ]),
        "{report}"
    );

    assert!(!report.contains("cannot be determined"), "{report}");
}

#[tokio::test]
async fn a_store_restored_from_a_backup_finds_later_transitions() {
    let mut app = TestApp::start().await;
    let scene = Scene::new(&mut app).await;

    // As in a backup of a running store.
    app.kill().await;
    let backup = format!("{}_backup", app.name);
    let copy = format!("create database {backup} template {}_store", app.name);
    let admin = app.source().await;

    eventually("the store to be copied", async || {
        admin.batch_execute(&copy).await.ok()
    })
    .await;
    app.run().await;
    scene
        .platform
        .set_delivery_status(scene.releases[1], "distributed")
        .await;
    scene
        .platform
        .set_distribution_status(scene.entries[0], "complete")
        .await;
    scene.receiver.wait_for(2).await;
    stop(&mut app).await;

    app.store_url = app.server.url(&backup);
    let url = app.store_url.clone();

    app.set("store.url", &url);
    let report = app.walhook_ok(&["repair", "--force"]).await;
    let missed = [
        ("release.distributed", 1),
        ("delivery.completed", 1),
        ("distribution.outlet.status_changed", 1),
    ];

    assert_eq!(reported(&report), counts(missed), "{report}");
    app.run().await;

    // The webhook subscribes to two of the three.
    scene.receiver.wait_for(4).await;
    scene
        .platform
        .set_distribution_status(scene.entries[1], "complete")
        .await;

    let received = scene.receiver.wait_for(5).await;
    assert_eq!(received.len(), 5, "{received:?}");
}

/// The new slot waits for a transaction of the platform's, and a transaction on the store waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_takes_longer_than_the_store_lets_transactions_last() {
    let Some(programs) = versions::since(17) else {
        return;
    };

    let options = Options {
        programs: Some(&programs),
        ..Options::default()
    };
    let app = TestApp::prepare_alone(options).await;
    app.setup().await;
    let platform = app.platform().await;
    app.drop_slot().await;
    let writer = app.source().await;
    run_sql(&writer, "begin; insert into outlet values (77, 'O')").await;
    let limit = format!(
        "alter database {}_store set transaction_timeout = '2s'",
        app.name
    );
    run_sql(&platform.client, &limit).await;

    let others = async {
        eventually("the new slot to wait", async || {
            let waits = "select from pg_stat_activity where query like 'CREATE_REPLICATION_SLOT%' and wait_event_type = 'Lock'";
            platform.client.query_opt(waits, &[]).await.unwrap()
        })
        .await;

        // A transaction that begins later exceeds the limit.
        let store = app.store().await;
        let ended = store.batch_execute("begin; select pg_sleep(60)").await;
        ended.expect_err("the limit applies");
        run_sql(&writer, "commit").await;
    };

    tokio::join!(app.walhook_ok(&["repair"]), others);
    assert_eq!(open_gaps(&app).await, Vec::<String>::new());
}

/// As numbers, 9 is before 10; as texts, after it.
#[tokio::test]
async fn a_repair_compares_ids_of_different_lengths_in_their_order_as_numbers() {
    let mut app = TestApp::prepare().await;
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let pay = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         select id, $1, '', 1, 1, 'ready' from unnest($2::bigint[]) id";

    platform
        .execute(pay, &[&user, &vec![-10_i64, -9, 9, 10, 99, 100, 1000]])
        .await;
    app.wait_for_events(7).await;
    stop(&mut app).await;
    app.drop_slot().await;
    platform.execute(pay, &[&user, &vec![11_i64]]).await;

    let report = app.walhook_ok(&["repair"]).await;

    assert_eq!(
        reported(&report),
        counts([("payment.statement_ready", 1)]),
        "{report}"
    );
    assert_eq!(
        repaired(&app.store().await).await,
        counts([("payment.statement_ready", 1)])
    );
}
