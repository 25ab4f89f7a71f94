//! The log apart from the deliveries: one process captures into the log store, another reads the
//! log into a store of its own. Either store and either process dies, and afterwards every payment
//! is delivered once.

mod cells;

use std::collections::BTreeMap;

use serde_json::Value;
use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::support::{Receiver, TestApp, eventually, one, run_sql, server, standby, wal_end};

const PAYMENT: &str = "payment.statement_ready";

/// A primary, a log with the process that writes it, and a store that reads it.
struct World {
    /// Captures, and stores events in the log.
    relay: TestApp,
    /// Reads the log, and delivers.
    cell: TestApp,
    user: i64,
    receiver: Receiver,
    payments: Vec<i64>,
}

/// As docs/log.md recommends.
const WITHOUT_SEARCHES: &str = "drop index walhook.event_feed, walhook.event_release, walhook.event_catalogue, walhook.event_track";

impl World {
    /// Sets up both, with a webhook, and starts both. All databases are on one server.
    async fn start() -> World {
        let relay = TestApp::prepare().await;
        let cell = TestApp::prepare().await;
        World::start_with(relay, cell).await
    }

    /// Like [`World::start`] with other databases, which the apps name.
    async fn start_with(relay: TestApp, cell: TestApp) -> World {
        let mut world = World::prepare(relay, cell).await;
        world.cell.setup().await;
        world.cell.run().await;

        let api = world.cell.api(&world.user.to_string()).await;
        api.create_webhook(&world.receiver.url("/"), &[PAYMENT])
            .await;
        world
    }

    /// Starts the process that writes the log, and configures the store that reads it.
    async fn prepare(mut relay: TestApp, mut cell: TestApp) -> World {
        relay.setup().await;
        run_sql(&relay.store().await, WITHOUT_SEARCHES).await;
        relay.run_with(&["--roles", "capture"]).await;
        cell.set("source.url", &relay.source_url)
            .set("source.capture", "log")
            .set("source.log_url", relay.setting("store.url"))
            .set_fast_retries();

        World {
            user: relay.platform().await.user(&[]).await,
            receiver: Receiver::start().await,
            payments: Vec::new(),
            relay,
            cell,
        }
    }

    async fn pay(&mut self, count: usize) {
        let platform = self.relay.platform().await;
        self.payments
            .extend(platform.payments(self.user, count).await);
    }

    /// Waits until every payment is delivered and nothing is pending. Returns how many deliveries
    /// each has.
    async fn delivered(&self) -> BTreeMap<i64, usize> {
        self.cell.wait_for_events(self.payments.len()).await;
        self.all_delivered().await
    }

    /// Waits until nothing is pending, and each payment has a delivery.
    async fn all_delivered(&self) -> BTreeMap<i64, usize> {
        self.cell
            .wait_for_count("select count(*) from walhook.pending", 0)
            .await;

        let mut deliveries: BTreeMap<i64, usize> = BTreeMap::new();
        let mut seen = std::collections::HashSet::new();
        for request in self.receiver.requests() {
            if seen.insert(request.delivery().to_owned()) {
                let payment = request.data()["payment_request_id"].as_i64().unwrap();
                *deliveries.entry(payment).or_default() += 1;
            }
        }

        let missing: Vec<&i64> = self
            .payments
            .iter()
            .filter(|payment| !deliveries.contains_key(payment))
            .collect();
        assert!(missing.is_empty(), "not delivered: {missing:?}");
        deliveries
    }

    /// Waits until everything is delivered, and asserts that each payment was delivered once.
    async fn assert_delivered_once(&self) {
        let delivered = self.delivered().await;
        assert!(
            delivered.values().all(|count| *count == 1),
            "a payment has several deliveries: {delivered:?}"
        );
    }

    async fn log(&self) -> Client {
        self.relay.store().await
    }

    async fn wait_for_log(&self, events: usize) {
        self.relay.wait_for_events(events).await;
    }

    /// Waits until the log's process has acknowledged what the primary has written.
    async fn wait_for_acknowledgement(&self) {
        let primary = self.relay.source().await;
        let end = wal_end(&primary).await;
        self.relay.wait_for_acknowledgement(&primary, end).await;
    }

    /// Returns the reasons and texts of the open gaps.
    async fn gaps(&self) -> Vec<(String, String)> {
        let status = self.cell.walhook(&["status", "--json"]).await;
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let gaps = status["store"]["gaps"].as_array().unwrap().iter();
        let text = |gap: &Value, name: &str| gap[name].as_str().unwrap().to_owned();
        gaps.map(|gap| (text(gap, "reason"), text(gap, "detail")))
            .collect()
    }

    async fn wait_for_gap(&self, reason: &str) -> String {
        eventually(&format!("the gap {reason}"), async || {
            let gaps = self.gaps().await;
            let found = gaps.into_iter().find(|(found, _)| found == reason);
            found.map(|(_, detail)| detail)
        })
        .await
    }
}

/// The store's URL of an app on a server of its own.
async fn own_store(app: &mut TestApp) -> PrivatePostgres {
    let server = server(Options::default()).await;
    server.create_database("events").await.unwrap();
    use_store(app, &server.url("events"));
    server
}

fn use_store(app: &mut TestApp, url: &str) {
    app.store_url = url.to_owned();
    app.set("store.url", url);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_the_log_are_delivered_once_while_either_process_dies() {
    let mut world = World::start().await;
    world.pay(30).await;
    world.assert_delivered_once().await;

    let log_ids = "select array_agg(id order by sequence) from walhook.event";
    let ids: Vec<uuid::Uuid> = one(&world.log().await, log_ids).await;
    let read: Vec<uuid::Uuid> = one(&world.cell.store().await, log_ids).await;
    assert_eq!(ids, read, "ids and order are the log's");

    world.relay.kill().await;
    world.pay(10).await;
    world.relay.run_with(&["--roles", "capture"]).await;
    world.pay(10).await;

    world.cell.kill().await;
    world.pay(10).await;
    world.cell.run().await;
    world.pay(10).await;
    world.assert_delivered_once().await;

    // A second replica stands by, and takes over.
    let replica = world.cell.replica(&[]).await;
    world.cell.kill().await;
    world.pay(10).await;
    world.assert_delivered_once().await;
    replica.stop().await;
}

/// A page ends after a megabyte, and knows how many events are missing up to there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_events_are_read_in_several_pages() {
    let mut world = World::start().await;
    world.pay(1).await;
    world.assert_delivered_once().await;
    world.cell.kill().await;

    world.pay(60).await;
    world.wait_for_log(61).await;
    let lengthen = "update walhook.event set data = (data::jsonb || jsonb_build_object('note', repeat('x', 50000)))::json
        where sequence > 1;
        delete from walhook.event where sequence = 40";
    run_sql(&world.log().await, lengthen).await;
    world.payments.remove(39);

    let _sidecar = world.cell.spawn(&[]);
    let detail = world.wait_for_gap("log_expired").await;
    assert!(
        detail.contains("no longer has 1 events after event"),
        "{detail}"
    );
    world.assert_delivered_once().await;
    assert_eq!(world.gaps().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_store_holds_up_nobody_and_continues_at_its_checkpoint() {
    let relay = TestApp::prepare().await;
    let mut cell = TestApp::prepare().await;
    let store = own_store(&mut cell).await;
    let mut world = World::start_with(relay, cell).await;

    world.pay(20).await;
    world.assert_delivered_once().await;
    store.stop(StopMode::Immediate).await.unwrap();

    // More than one page.
    world.pay(2_500).await;
    world.wait_for_log(2_520).await;

    // The primary retains nothing for the dead store: the log's process has acknowledged.
    let primary = world.relay.source().await;
    world.wait_for_acknowledgement().await;
    let slots: i64 = one(
        &primary,
        &format!(
            "select count(*) from pg_replication_slots where slot_name = '{}'",
            world.cell.name
        ),
    )
    .await;
    assert_eq!(slots, 0, "a store that reads a log has no slot");

    store.start_again().await.unwrap();
    world.pay(10).await;
    world.assert_delivered_once().await;
    assert_eq!(world.gaps().await, []);
}

/// The process that writes the log dies between any two of its steps, and the log's server dies five
/// times.
#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_has_each_event_once_while_its_process_and_its_server_die() {
    const POINTS: [&str; 8] = [
        "slot_taken_limit_not_claimed",
        "changes_received_batch_not_sent",
        "batch_received_events_not_derived",
        "checkpoint_advanced_events_not_inserted",
        "events_inserted_commit_not_sent",
        "events_committed_answer_not_received",
        "events_committed_capture_not_notified",
        "events_stored_slot_not_acknowledged",
    ];

    let mut relay = TestApp::prepare().await;
    let server = own_store(&mut relay).await;
    relay.set("source.heartbeat", "500ms");
    let mut world = World::start_with(relay, TestApp::prepare().await).await;
    world.pay(3).await;
    world.assert_delivered_once().await;
    world.relay.kill().await;

    for (index, point) in POINTS.into_iter().enumerate() {
        let armed = format!("{point}=1*return(kill)");
        world.relay.set_environment("FAILPOINTS", &armed);
        let mut armed = world.relay.spawn(&["--roles", "capture"]);
        world.relay.set_environment("FAILPOINTS", "");
        world.pay(3).await;
        assert!(!armed.ended().await.success(), "{point}");
        let report = std::fs::read_to_string(world.relay.log_file()).unwrap();
        assert!(report.contains(&format!("failpoint {point}")), "{report}");

        if index < 5 {
            server.stop(StopMode::Immediate).await.unwrap();
            world.pay(3).await;
            server.start_again().await.unwrap();
        }
    }

    world.relay.run_with(&["--roles", "capture"]).await;
    world.pay(3).await;
    world.assert_delivered_once().await;

    let lost = "select last = count(*) and last = count(distinct event.id)
        from walhook.event_sequence, walhook.event group by last";
    assert!(one::<bool>(&world.log().await, lost).await);
    assert_eq!(world.gaps().await, []);
    world.relay.stop().await;
}

/// A server with an empty database for events, and its standby.
async fn server_with_standby() -> (PrivatePostgres, PrivatePostgres) {
    let first = server(Options::default()).await;
    first.create_database("events").await.unwrap();
    first.stop(StopMode::Fast).await.unwrap();
    let second = standby(&first, Options::default()).await;
    first.start_again().await.unwrap();

    (first, second)
}

/// A failover of the log to a standby that lacks the last commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_fails_over_without_its_last_commits_is_read_again_from_the_last_common_event() {
    let (first, second) = server_with_standby().await;

    let mut relay = TestApp::prepare().await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let url = format!(
        "postgres://postgres@{hosts}/events?target_session_attrs=read-write&sslmode=disable"
    );
    relay.set("source.heartbeat", "500ms");
    use_store(&mut relay, &url);

    let cell = TestApp::prepare().await;
    let mut world = World::start_with(relay, cell).await;
    world.pay(30).await;
    world.assert_delivered_once().await;

    let standby = second.url("events");
    eventually("the standby to have the events", async || {
        let client = postgres::connect(&standby).await.ok()?;
        let events = client
            .query_one("select last from walhook.event_sequence", &[])
            .await
            .ok()?;
        (events.get::<_, i64>(0) == 30).then_some(())
    })
    .await;
    second.stop(StopMode::Fast).await.unwrap();

    world.pay(7).await;
    world.assert_delivered_once().await;

    // Otherwise the slot would still have what the log loses.
    world.wait_for_acknowledgement().await;
    first.stop(StopMode::Immediate).await.unwrap();
    second.start_again().await.unwrap();
    let admin = postgres::connect(&second.url("postgres")).await.unwrap();
    run_sql(&admin, "select pg_promote()").await;

    world
        .cell
        .sidecar()
        .wait_for_metric("walhook_log_lost_events_total", 7.0)
        .await;

    // The process that writes the log finds that its slot is ahead, and is repaired as any store.
    world.pay(5).await;
    eventually("the gap of the log's process", async || {
        let open = "select reason from walhook.gap where repaired_at is null";
        let log = postgres::connect(&second.url("events")).await.ok()?;
        log.query_opt(open, &[]).await.ok()?
    })
    .await;
    world.relay.kill().await;
    let repaired = world.relay.walhook_ok(&["repair"]).await;
    world.relay.run_with(&["--roles", "capture"]).await;
    world.pay(5).await;

    world.cell.wait_for_events(30 + 7 + 7 + 5 + 5).await;
    let delivered = world.all_delivered().await;
    let again: Vec<i64> = delivered
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(payment, _)| *payment)
        .collect();

    assert_eq!(again, world.payments[30..37], "what the log had lost");
    assert!(
        repaired.contains(&format!("{PAYMENT:<40}{:>12}", 12)),
        "the repair reports the seven and the five that it raises: {repaired}"
    );
    assert_eq!(world.gaps().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_the_log_gets_again_under_their_ids_are_skipped() {
    let mut world = World::start().await;
    world.pay(20).await;
    world.assert_delivered_once().await;
    world.relay.kill().await;

    // The log loses eight events, and gets them again after another one.
    let log = world.log().await;
    run_sql(
        &log,
        "create table lost as select * from walhook.event where sequence > 12;
         delete from walhook.event where sequence > 12;
         update walhook.event_sequence set last = 12",
    )
    .await;
    let sidecar = world.cell.sidecar();
    sidecar
        .wait_for_metric("walhook_log_lost_events_total", 8.0)
        .await;

    run_sql(
        &log,
        "update lost set sequence = sequence + 1;
         insert into walhook.event select * from lost;
         insert into walhook.event (id, user_id, kind, occurred_at, sequence, ordinal, shard, data)
         select gen_random_uuid(), user_id, kind, occurred_at, 13, ordinal, shard,
             json_build_object('payment_request_id', 1, 'invoice_number', 'late')
         from lost limit 1;
         update walhook.event_sequence set last = 21",
    )
    .await;
    sidecar
        .wait_for_metric("walhook_log_repeated_events_total", 8.0)
        .await;

    world.relay.run_with(&["--roles", "capture"]).await;
    world.pay(5).await;
    world.payments.push(1);
    world.assert_delivered_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_dead_for_longer_than_the_retention_knows_how_many_events_it_missed() {
    let mut cell = TestApp::prepare().await;
    cell.set("source.heartbeat", "500ms");
    let mut world = World::start_with(TestApp::prepare().await, cell).await;
    world.pay(10).await;
    world.assert_delivered_once().await;
    world.cell.stop().await;

    world.pay(25).await;
    world.wait_for_log(35).await;
    run_sql(
        &world.log().await,
        "delete from walhook.event where sequence <= 28",
    )
    .await;

    // The payments 11 to 28 are lost.
    world.payments.drain(10..28);

    // Not ready while the gap is open, but events are read and delivered.
    let mut sidecar = world.cell.spawn(&[]);
    let detail = world.wait_for_gap("log_expired").await;
    assert!(
        detail.contains("no longer has 18 events after event 10"),
        "{detail}"
    );
    world.pay(5).await;
    world.assert_delivered_once().await;
    assert_eq!(sidecar.readiness().await.unwrap().0, 503);

    let closed = world.cell.walhook_ok(&["repair"]).await;
    assert!(closed.contains("gap log_expired closed"), "{closed}");
    assert_eq!(world.gaps().await, []);
    sidecar.wait_until_ready().await;
    world.pay(5).await;
    world.assert_delivered_once().await;
}

/// Adds an event to the log whose id is ten days older than its number, as that of an unrouted event
/// that is derived again, with the data of the last event and the payment $1.
const OLD_EVENT: &str = "
    with counter as (update walhook.event_sequence set last = last + 1 returning last)
    insert into walhook.event (id, user_id, kind, sequence, occurred_at, commit_lsn, ordinal, shard, data)
    select (lpad(to_hex((extract(epoch from now() - interval '10 days') * 1000)::bigint), 12, '0')
            || substr(replace(id::text, '-', ''), 13))::uuid,
        user_id, kind, last, occurred_at, commit_lsn, ordinal, shard,
        jsonb_set(data::jsonb, '{payment_request_id}', to_jsonb($1::bigint))::json
    from counter, (select * from walhook.event order by sequence desc limit 1) as newest";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_with_an_old_id_is_delivered_at_its_number() {
    let mut world = World::start().await;
    world.pay(5).await;
    world.assert_delivered_once().await;

    // As the last event.
    let first: i64 = 1_000_000;
    world
        .log()
        .await
        .execute(OLD_EVENT, &[&first])
        .await
        .unwrap();
    world.payments.push(first);
    world.assert_delivered_once().await;
    world.pay(5).await;
    world.assert_delivered_once().await;

    // Before others.
    world.cell.kill().await;
    let second = first + 1;
    world
        .log()
        .await
        .execute(OLD_EVENT, &[&second])
        .await
        .unwrap();
    world.payments.push(second);
    world.pay(5).await;
    world.wait_for_log(17).await;
    world.cell.run().await;
    world.assert_delivered_once().await;
    assert_eq!(world.gaps().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_another_installation_is_refused_until_an_operator_decides() {
    let mut world = World::start().await;
    world.pay(5).await;
    world.assert_delivered_once().await;
    world.cell.stop().await;

    let mut other = TestApp::start().await;
    let log_url = world.cell.setting("source.log_url").to_owned();
    world.cell.set("source.log_url", &other.store_url);
    let sidecar = world.cell.spawn(&[]);
    world.wait_for_gap("log_foreign").await;

    let failed = world.cell.walhook(&["check"]).await;
    let report = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(
        report.contains("log store: another installation's"),
        "{report}"
    );
    let refused = world.cell.walhook(&["setup"]).await;
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(reason.contains("run `walhook repair --force`"), "{reason}");
    sidecar.kill().await;

    // Pointed back, nothing was lost.
    world.cell.set("source.log_url", &log_url);
    world.cell.walhook_ok(&["repair"]).await;
    world.cell.run().await;
    world.pay(5).await;
    world.assert_delivered_once().await;
    other.stop().await;
}

/// A store that has captured from the WAL reads the log from the last event that both have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_captured_itself_continues_with_the_log() {
    let mut single = TestApp::start().await;
    let platform = single.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = single.api(&user.to_string()).await;
    api.create_webhook(&receiver.url("/"), &[PAYMENT]).await;
    let mut payments = platform.payments(user, 10).await;
    single.wait_for_events(10).await;

    // Its own slot, beside the one of the store.
    let mut relay = TestApp::prepare().await;
    relay
        .set("source.url", &single.source_url)
        .set("source.publication", &single.name);
    relay.source_url.clone_from(&single.source_url);
    relay.setup().await;
    relay.run_with(&["--roles", "capture"]).await;

    let url = relay.store_url.clone();
    let early = async |single: &mut TestApp| {
        single
            .set("source.capture", "log")
            .set("source.log_url", &url);
        single.walhook(&["setup"]).await
    };
    let refused = early(&mut single).await;
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        reason.contains("the log has no event that the store has too"),
        "{reason}"
    );

    payments.extend(platform.payments(user, 10).await);
    single.wait_for_events(20).await;
    relay.wait_for_events(10).await;
    single.stop().await;
    payments.extend(platform.payments(user, 10).await);

    single.walhook_ok(&["setup"]).await;
    single.run().await;
    payments.extend(platform.payments(user, 10).await);

    let world = World {
        relay,
        cell: single,
        user,
        receiver,
        payments,
    };
    world.assert_delivered_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_settings_of_the_log_are_refused_with_the_fix() {
    let mut app = TestApp::prepare().await;
    let refusal = async |app: &TestApp| {
        let refused = app.walhook(&["setup"]).await;
        assert!(!refused.status.success());
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };

    app.set("source.log_url", &app.store_url.clone());
    let reason = refusal(&app).await;
    assert!(reason.contains("source.capture is not \"log\""), "{reason}");

    app.set("source.capture", "log");
    let reason = refusal(&app).await;
    let missing = "the store has no schema yet: run `walhook setup` with the configuration of";
    assert!(reason.contains(missing), "{reason}");

    let log = TestApp::start().await;
    app.set("source.log_url", &log.store_url);
    use_store(&mut app, &log.store_url);
    let reason = refusal(&app).await;
    assert!(reason.contains("lead to the same database"), "{reason}");

    let started = app.walhook(&["run"]).await;
    let reason = String::from_utf8_lossy(&started.stderr).into_owned();
    let missing = "is not set up: run `walhook setup`";
    assert!(
        !started.status.success() && reason.contains(missing),
        "{reason}"
    );

    // Nothing that time could fix: no process waits.
    let mut cell = TestApp::prepare().await;
    cell.set("source.capture", "log")
        .set("source.log_url", &log.store_url);
    cell.setup().await;
    let without_authority = format!("{}?sslrootcert=/missing.pem", log.store_url);
    let without_schema = cell.source_url.clone();

    for (url, problem) in [
        ("", "not a Postgres URL"),
        (&*without_authority, "/missing.pem cannot be read"),
        (&*without_schema, "the store has no schema yet"),
    ] {
        cell.set("source.log_url", url);
        for command in [&["run"][..], &["setup"], &["check"], &["cells", "list"]] {
            let ended = cell.walhook(command).await;
            let printed =
                String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
            assert!(
                !ended.status.success()
                    && printed.contains("source.log_url")
                    && printed.contains(problem),
                "{command:?} with {url:?}: {printed}"
            );
        }
    }
}

/// `check` and `status` of a store that reads a log, and what teardown removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_know_that_the_store_reads_a_log() {
    let mut relay = TestApp::prepare().await;
    let log = own_store(&mut relay).await;
    let mut world = World::start_with(relay, TestApp::prepare().await).await;
    world.pay(5).await;
    world.assert_delivered_once().await;

    let report = world.cell.walhook_ok(&["check"]).await;
    assert!(
        report.contains("commits do not wait for a standby"),
        "{report}"
    );
    let status = world.cell.walhook_ok(&["status"]).await;
    assert!(
        status.contains("reads the log, 0 events behind") && status.contains("event 5 of the log"),
        "{status}"
    );

    world.cell.stop().await;
    world.pay(3).await;
    world.wait_for_log(8).await;
    let status = world.cell.walhook_ok(&["status"]).await;
    assert!(
        status.contains("8 events, 3 of them not read yet"),
        "{status}"
    );

    let before: i64 = one(
        &world.relay.source().await,
        "select count(*) from pg_replication_slots",
    )
    .await;
    world
        .cell
        .walhook_ok(&["teardown", "--store", "--yes"])
        .await;
    let after: i64 = one(
        &world.relay.source().await,
        "select count(*) from pg_replication_slots",
    )
    .await;
    assert_eq!(before, after, "nothing of the primary belongs to it");
    world.relay.stop().await;
    drop(log);
}

/// On the log's server, such as the primary's: the server lets one transaction at a time notify.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_standby_delays_no_notification_of_others() {
    let mut relay = TestApp::prepare().await;
    let server = own_store(&mut relay).await;
    relay.setup().await;
    relay.run_with(&["--roles", "capture"]).await;
    let user = relay.platform().await.user(&[]).await;
    relay.platform().await.payments(user, 1).await;
    relay.wait_for_events(1).await;

    let other = postgres::connect(&server.url("postgres")).await.unwrap();
    let standby = async |name: &str| {
        let set = format!("alter system set synchronous_standby_names = '{name}'");
        run_sql(&other, &set).await;
        run_sql(&other, "select pg_reload_conf()").await;
    };
    standby("absent").await;
    run_sql(&other, "set synchronous_commit = local").await;
    relay.platform().await.payments(user, 1).await;
    eventually("the commit to wait for the standby", async || {
        let waits = "select from pg_stat_activity where wait_event = 'SyncRep' limit 1";
        other.query_opt(waits, &[]).await.unwrap()
    })
    .await;

    run_sql(&other, "set lock_timeout = '10s'").await;
    run_sql(&other, "notify orders").await;

    standby("").await;
    relay.wait_for_events(2).await;
}

/// A clock that is ten minutes ahead: sessions call the function of the schema that they search first.
const OTHER_CLOCK: &str = "
    create schema ahead;
    create function ahead.clock_timestamp() returns timestamptz language sql as
        $$ select pg_catalog.clock_timestamp() + interval '10 minutes' $$;
    grant usage on schema ahead to public;
    do $$ begin
        execute format('alter database %I set search_path = ahead, pg_catalog, public', current_database());
    end $$";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_clock_is_minutes_off_is_not_read() {
    let mut world = World::start().await;
    world.pay(5).await;
    world.assert_delivered_once().await;
    world.cell.stop().await;

    run_sql(&world.log().await, OTHER_CLOCK).await;
    world.pay(5).await;
    let sidecar = world.cell.spawn(&[]);
    eventually("the reason is reported", async || {
        let (status, reasons) = sidecar.readiness().await?;
        let is_named = reasons.contains("the clock of the log store differs by");
        (status == 503 && is_named).then_some(())
    })
    .await;

    // Once the clocks agree, nothing was lost.
    run_sql(&world.log().await, "drop schema ahead cascade").await;
    world.assert_delivered_once().await;
    sidecar.kill().await;
}

/// A server that a failover has replaced still runs, and is reached before its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standbys_and_replaced_servers_are_not_read() {
    let (first, second) = server_with_standby().await;

    let mut relay = TestApp::prepare().await;
    use_store(&mut relay, &first.url("events"));
    let mut world = World::prepare(relay, TestApp::prepare().await).await;

    let standby = second.url("events");
    eventually("the standby to have the schema", async || {
        let client = postgres::connect(&standby).await.ok()?;
        let exists = "select from walhook.event_sequence";
        client.query_opt(exists, &[]).await.ok()?
    })
    .await;
    world.cell.set("source.log_url", &standby);
    let refused = world.cell.walhook(&["setup"]).await;
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        reason.contains("source.log_url leads to a standby"),
        "{reason}"
    );

    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let url = format!("postgres://postgres@{hosts}/events?target_session_attrs=read-write");
    world.cell.set("source.log_url", &url);
    world.cell.setup().await;
    world.cell.run().await;
    let api = world.cell.api(&world.user.to_string()).await;
    api.create_webhook(&world.receiver.url("/"), &[PAYMENT])
        .await;
    world.pay(3).await;
    world.assert_delivered_once().await;
    eventually("the standby to have the events", async || {
        let client = postgres::connect(&standby).await.ok()?;
        let complete = "select from walhook.event_sequence where last = 3";
        client.query_opt(complete, &[]).await.ok()?
    })
    .await;

    let admin = postgres::connect(&first.url("postgres")).await.unwrap();
    run_sql(&admin, "alter system set synchronous_standby_names = '*'").await;
    run_sql(&admin, "select pg_reload_conf()").await;
    eventually("the standby to count", async || {
        let report = world.cell.walhook_ok(&["check"]).await;
        let state = "log failover: commits wait for a standby";
        report.contains(state).then_some(())
    })
    .await;

    world.relay.kill().await;
    first.stop(StopMode::Immediate).await.unwrap();
    let admin = postgres::connect(&second.url("postgres")).await.unwrap();
    run_sql(&admin, "select pg_promote()").await;
    world
        .cell
        .wait_for_count("select timeline::bigint from walhook.checkpoint", 2)
        .await;

    drop(admin);
    second.stop(StopMode::Fast).await.unwrap();
    first.start_again().await.unwrap();
    let sidecar = world.cell.sidecar();
    eventually("the replaced server to be refused", async || {
        let (_, reasons) = sidecar.readiness().await?;
        let refused = "on timeline 1, and the log was read on the later timeline 2";
        reasons.contains(refused).then_some(())
    })
    .await;

    first.stop(StopMode::Fast).await.unwrap();
    second.start_again().await.unwrap();
    sidecar.wait_until_ready().await;
    use_store(&mut world.relay, &second.url("events"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_needs_only_the_rights_that_the_guide_names() {
    const GUIDE: &str = include_str!("../../../docs/log.md");
    let grants: Vec<&str> = GUIDE
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("grant "))
        .collect();
    assert_eq!(grants.len(), 2, "{grants:?}");

    let mut world = World::prepare(TestApp::prepare().await, TestApp::prepare().await).await;
    let log = world.log().await;
    let role = format!("reader_{}", world.relay.name);
    run_sql(&log, &format!("create role {role} login")).await;
    run_sql(&log, &grants.join("\n").replace("reader", &role)).await;

    let url = world
        .relay
        .store_url
        .replace("postgres@", &format!("{role}@"));
    world
        .cell
        .set("source.log_url", &url)
        .set("cells.name", "a");
    world.cell.setup().await;

    let refused = world.cell.walhook(&["cells", "add", "a"]).await;
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        reason.contains("permission denied for table cell"),
        "{reason}"
    );
    let owner = format!("source.log_url={}", world.relay.store_url);
    world
        .cell
        .walhook_ok(&["--set", &owner, "cells", "add", "a"])
        .await;
    world.cell.run().await;

    let api = world.cell.api(&world.user.to_string()).await;
    api.create_webhook(&world.receiver.url("/"), &[PAYMENT])
        .await;
    world.pay(5).await;
    world.assert_delivered_once().await;
    let report = world.cell.walhook_ok(&["check"]).await;
    for state in [
        "cell: a, shards 0-4095",
        "log failover: the log fails over together with the primary",
    ] {
        assert!(report.contains(state), "{report}");
    }

    // A process that starts without them delivers what is pending, and waits for them.
    world.cell.stop().await;
    world.cell.run_with(&["--roles", "capture"]).await;
    world.pay(3).await;
    world.cell.wait_for_events(8).await;
    world.cell.stop().await;
    run_sql(&log, &format!("revoke usage on schema walhook from {role}")).await;
    let mut sidecar = world.cell.spawn(&[]);
    world.all_delivered().await;
    assert_eq!(sidecar.readiness().await.unwrap().0, 503);

    run_sql(&log, &format!("grant usage on schema walhook to {role}")).await;
    sidecar.wait_until_ready().await;
    world.pay(2).await;
    world.assert_delivered_once().await;
    sidecar.kill().await;
}
