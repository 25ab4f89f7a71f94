//! Commits that are not visible yet, because a synchronous standby lags and the application waits
//! for it.

use postgres_types::PgLsn;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::chaos::Scenario;
use crate::failover::{Pair, pair, promote, until_caught_up, until_slot_is_synchronized};
use crate::support::versions;
use crate::support::{Platform, TestApp, eventually, next_id, one, run_sql, server};
use crate::wait_until_unready;

pub const HELD_BACK: &str = "visibility: committed transactions are not visible on the primary";

/// Makes commits wait for the standby.
pub async fn make_synchronous(client: &Client) {
    run_sql(
        client,
        "alter system set synchronous_standby_names = 'walreceiver'",
    )
    .await;
    run_sql(client, "select pg_reload_conf()").await;
    eventually("the standby to be synchronous", async || {
        let standby =
            "select from pg_stat_replication where sync_state = 'sync' and state = 'streaming'";
        client.query_opt(standby, &[]).await.unwrap()
    })
    .await;
}

/// The standby's WAL receiver, stopped until it is resumed.
pub struct Stopped(Pid);

impl Stopped {
    pub async fn receiver_of(standby: &PrivatePostgres) -> Stopped {
        let client = postgres::connect(&standby.url("postgres")).await.unwrap();
        let pid: i32 = one(&client, "select pid from pg_stat_wal_receiver").await;
        let pid = Pid::from_raw(pid).expect("a process id");

        kill_process(pid, Signal::STOP).expect("a process can be stopped");
        Stopped(pid)
    }

    fn resume(self) {
        kill_process(self.0, Signal::CONT).expect("a stopped process can be resumed");
    }
}

/// Starts a commit that waits for the standby. Returns when the walsender has sent it to the
/// sidecar.
pub async fn commit_unseen(
    scenario: &Scenario,
    client: Client,
    statement: String,
) -> JoinHandle<bool> {
    let pid: i32 = one(&client, "select pg_backend_pid()").await;
    let committing = tokio::spawn(async move { client.batch_execute(&statement).await.is_ok() });
    let watching = &scenario.platform.client;

    eventually("the commit to wait for the standby", async || {
        let waits = "select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep'";
        watching.query_opt(waits, &[&pid]).await.unwrap()
    })
    .await;
    let flushed: PgLsn = one(watching, "select pg_current_wal_flush_lsn()").await;
    eventually("the commit to be sent", async || {
        let sent =
            "select from pg_replication_slots slot join pg_stat_replication sender on sender.pid = slot.active_pid
             where slot.slot_name = $1 and sender.sent_lsn >= $2";
        watching.query_opt(sent, &[&scenario.app.name, &flushed]).await.unwrap()
    })
    .await;

    committing
}

/// Starts a commit without captured changes that waits for the standby, and asserts that it is
/// received and not acknowledged.
async fn commit_unacknowledged(scenario: &Scenario) -> JoinHandle<bool> {
    let message = "select pg_logical_emit_message(true, 'other', 'x')".to_owned();
    let committing = commit_unseen(scenario, scenario.app.source().await, message).await;
    let watching = &scenario.platform.client;
    let end: PgLsn = one(watching, "select pg_current_wal_flush_lsn()").await;

    let replied = async |after: f64| {
        let reply = "select extract(epoch from reply_time)::float8 from pg_stat_replication
             join pg_replication_slots on pid = active_pid
             where slot_name = $1 and write_lsn >= $2 and extract(epoch from reply_time)::float8 > $3";
        let what = "feedback after the commit was received";

        eventually(what, async || {
            watching
                .query_opt(reply, &[&scenario.app.name, &end, &after])
                .await
                .unwrap()
        })
        .await
        .get::<_, f64>(0)
    };

    // The sidecar acknowledges once per second what it had received by then.
    let mut reply = 0.0;

    for _ in 0..3 {
        reply = replied(reply + 1.0).await;
    }

    let slot = "select confirmed_flush_lsn from pg_replication_slots where slot_name = $1";
    let acknowledged: PgLsn = watching
        .query_one(slot, &[&scenario.app.name])
        .await
        .unwrap()
        .get(0);
    assert!(
        acknowledged < end,
        "{acknowledged} is acknowledged, and a failover would undo the commit before {end}"
    );

    committing
}

pub fn payment(id: i64, user: i64) -> String {
    format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         values ({id}, {user}, 'INV', 1, 1, 'ready')"
    )
}

pub async fn is_visible(client: &Client, payment: i64) -> bool {
    client
        .query_opt("select from payment where id = $1", &[&payment])
        .await
        .unwrap()
        .is_some()
}

/// Starts a scenario with a primary whose commits wait for a standby.
async fn synchronous_scenario(
    settings: &[(&str, &str)],
    store: &PrivatePostgres,
) -> (Scenario, PrivatePostgres) {
    let Pair { mut app, standby } = pair(None, &[], store).await;

    for (key, value) in settings {
        app.set(key, value);
    }

    make_synchronous(&app.source().await).await;
    let mut scenario = Scenario::start(app).await;

    scenario.pay(2).await;
    scenario.assert_delivered().await;

    (scenario, standby)
}

#[tokio::test]
async fn an_event_waits_until_its_transaction_is_visible() {
    let store = server(Options::default()).await;
    let (mut scenario, standby) = synchronous_scenario(&[], &store).await;
    let receiver = Stopped::receiver_of(&standby).await;
    let unacknowledged = commit_unacknowledged(&scenario).await;
    let unseen = next_id();
    let committing = commit_unseen(
        &scenario,
        scenario.app.source().await,
        payment(unseen, scenario.user),
    )
    .await;

    wait_until_unready(scenario.app.sidecar(), HELD_BACK).await;
    assert!(!is_visible(&scenario.platform.client, unseen).await);

    // The event is neither stored nor delivered.
    scenario.assert_delivered().await;
    receiver.resume();
    assert!(committing.await.unwrap() && unacknowledged.await.unwrap());
    scenario.payments.insert(unseen);
    scenario.pay(1).await;
    scenario.assert_delivered().await;
    scenario.app.sidecar().wait_until_ready().await;
}

/// The server keeps the connection of a commit that waits for a standby, also after its client has
/// closed it.
#[tokio::test]
async fn at_most_one_heartbeat_waits_for_a_standby() {
    let store = server(Options::default()).await;
    let (mut scenario, standby) = synchronous_scenario(&[], &store).await;
    let receiver = Stopped::receiver_of(&standby).await;
    let waiting = async |client: &Client| -> i64 {
        let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
        one(client, waiting).await
    };

    eventually("a heartbeat to wait", async || {
        (waiting(&scenario.platform.client).await == 1).then_some(())
    })
    .await;
    scenario.app.kill().await;

    let mut second = scenario.app.spawn(&[]);
    let log = scenario.app.log_file();

    eventually("the second process to send a heartbeat", async || {
        let logged = std::fs::read_to_string(&log).unwrap();
        let sent = logged.contains("an earlier heartbeat waits for a synchronous standby");
        (sent || waiting(&scenario.platform.client).await > 1).then_some(())
    })
    .await;

    assert_eq!(waiting(&scenario.platform.client).await, 1);
    receiver.resume();
    scenario.pay(1).await;
    scenario.assert_delivered().await;
    second.wait_until_ready().await;
}

#[tokio::test]
async fn without_waiting_events_are_sent_early_and_a_lookup_waits_up_to_its_limit() {
    let store = server(Options::default()).await;

    // Of the looked-up rows, only those with computed columns are read from the primary.
    let settings = [
        ("source.await_visibility", "never"),
        ("source.tables.release.computed.title", "upper(this.title)"),
    ];
    let (mut scenario, standby) = synchronous_scenario(&settings, &store).await;
    let checked = String::from_utf8(scenario.app.walhook(&["check"]).await.stdout).unwrap();

    assert!(
        checked.contains("warn  source.await_visibility: never"),
        "{checked}"
    );
    let label = scenario.platform.label(scenario.user).await;
    let release = scenario.platform.release(label).await;
    let receiver = Stopped::receiver_of(&standby).await;
    let early = next_id();
    let committing = commit_unseen(
        &scenario,
        scenario.app.source().await,
        payment(early, scenario.user),
    )
    .await;

    scenario.payments.insert(early);
    scenario.assert_delivered().await;
    assert!(!is_visible(&scenario.platform.client, early).await);

    let review = format!("update release set review_status = 'to_review' where id = {release}");
    let reviewing = commit_unseen(&scenario, scenario.app.source().await, review).await;

    wait_until_unready(
        scenario.app.sidecar(),
        "enqueue: the primary does not show a committed transaction",
    )
    .await;
    receiver.resume();
    assert!(committing.await.unwrap() && reviewing.await.unwrap());
    scenario
        .app
        .wait_for_events(scenario.payments.len() + 1)
        .await;
    scenario.app.sidecar().wait_until_ready().await;
}

#[tokio::test]
async fn a_failover_undoes_nothing_that_was_sent_and_leaves_no_gap() {
    let Some(programs) = versions::since(17) else {
        return;
    };

    let store = server(Options::default()).await;
    let settings = [
        ("sync_replication_slots", "on"),
        ("hot_standby_feedback", "on"),
    ];
    let Pair { app, standby } = pair(Some(programs), &settings, &store).await;

    make_synchronous(&app.source().await).await;
    let mut scenario = Scenario::start(app).await;

    scenario.pay(3).await;
    scenario.assert_delivered().await;
    until_slot_is_synchronized(&scenario, &standby).await;
    until_caught_up(&scenario.platform.client, &standby).await;

    let checked = String::from_utf8(scenario.app.walhook(&["check"]).await.stdout).unwrap();
    let waits =
        "ok    synchronized_standby_slots: empty: events wait until a standby has their commits";

    assert!(checked.contains(waits), "{checked}");
    let _receiver = Stopped::receiver_of(&standby).await;
    let undone = next_id();
    let committing = commit_unseen(
        &scenario,
        scenario.app.source().await,
        payment(undone, scenario.user),
    )
    .await;

    wait_until_unready(scenario.app.sidecar(), HELD_BACK).await;
    scenario.app.server.stop(StopMode::Immediate).await.unwrap();
    assert!(!committing.await.unwrap());

    // The stopped receiver loses what it has not written.
    standby.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    promote(&standby).await;

    let url = standby.url(&format!("{}_platform", scenario.app.name));
    scenario.platform = Platform::new(postgres::connect(&url).await.unwrap());
    assert!(
        !is_visible(&scenario.platform.client, undone).await,
        "the failover undoes it"
    );
    scenario.pay(3).await;
    scenario.assert_delivered().await;

    let gaps = "select count(*) from walhook.gap";
    assert_eq!(one::<i64>(&scenario.app.store().await, gaps).await, 0);

    scenario.app.sidecar().wait_until_ready().await;
}

#[tokio::test]
async fn visibility_is_queried_over_one_connection_and_only_if_capture_waits_for_it() {
    const CHECKING: &str = "select count(*) from pg_stat_activity
        where query like '-- The current snapshot and the server%' and pid <> pg_backend_pid()";
    let mut scenario = Scenario::start(TestApp::prepare_alone(Options::default()).await).await;
    let sessions =
        async |scenario: &Scenario| -> i64 { one(&scenario.platform.client, CHECKING).await };

    scenario.pay(5).await;
    scenario.assert_delivered().await;
    assert_eq!(sessions(&scenario).await, 0);

    let checked = scenario.app.walhook_ok(&["check"]).await;
    assert!(
        checked.contains("ok    source.await_visibility: auto"),
        "{checked}"
    );
    scenario.app.set("source.await_visibility", "always");
    scenario.app.restart().await;
    scenario.pay(5).await;
    scenario.assert_delivered().await;

    // The publication is verified over the same connection. After a heartbeat, the visibility was
    // queried last.
    eventually("a query for visibility", async || {
        (sessions(&scenario).await == 1).then_some(())
    })
    .await;

    // Idle WAL is acknowledged up to the last visible heartbeat.
    let end: PgLsn = one(&scenario.platform.client, "select pg_current_wal_lsn()").await;

    let slot = "select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn > $2";
    eventually("idle WAL to be acknowledged", async || {
        scenario
            .platform
            .client
            .query_opt(slot, &[&scenario.app.name, &end])
            .await
            .unwrap()
    })
    .await;

    // The server shuts down although the last records are not acknowledged.
    scenario.app.server.restart(StopMode::Fast).await.unwrap();
    scenario.platform = scenario.app.platform().await;
    scenario.pay(5).await;
    scenario.assert_delivered().await;
}

/// `*` also matches the connection that reads the slot: commits would wait for the store, and
/// capture for the commits to become visible.
#[tokio::test]
async fn capture_waits_while_its_own_connection_would_count_as_a_synchronous_standby() {
    let store = server(Options::default()).await;
    let mut app = TestApp::prepare_alone(Options::default()).await;

    store.create_database(&app.name).await.unwrap();
    app.store_url = store.url(&app.name);

    let url = app.store_url.clone();
    app.set("store.url", &url);

    let mut scenario = Scenario::start(app).await;
    scenario.pay(2).await;
    scenario.assert_delivered().await;

    let client = scenario.app.source().await;

    for names in ["*", "first 1 (standby, \"Walhook\")"] {
        run_sql(
            &client,
            &format!("alter system set synchronous_standby_names = '{names}'"),
        )
        .await;

        run_sql(&client, "select pg_reload_conf()").await;
        wait_until_unready(scenario.app.sidecar(), "includes Walhook's own connection").await;

        let reader =
            "select from pg_replication_slots where slot_name = $1 and active_pid is not null";
        let is_gone = async || {
            client
                .query_opt(reader, &[&scenario.app.name])
                .await
                .unwrap()
                .is_none()
                .then_some(())
        };

        eventually("the end of the stream", is_gone).await;
        let checked = scenario.app.walhook(&["check"]).await;
        let checked = String::from_utf8_lossy(&checked.stdout).into_owned();

        assert!(
            checked.contains("fail  synchronous_standby_names: includes Walhook's own connection"),
            "{checked}"
        );
        run_sql(&client, "alter system reset synchronous_standby_names").await;
        run_sql(&client, "select pg_reload_conf()").await;
        scenario.app.sidecar().wait_until_ready().await;
        scenario.pay(2).await;
        scenario.assert_delivered().await;
    }
}
