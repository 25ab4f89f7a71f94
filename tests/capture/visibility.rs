//! Commits that no session sees yet: a synchronous standby lags, and the application waits for it.

use postgres_types::PgLsn;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use crate::chaos::Road;
use crate::failover::{Pair, pair, promote, until_caught_up, until_slot_is_carried_over};
use crate::support::{Platform, TestApp, eventually, next_id, skip};
use crate::versions::installed;

const HELD_BACK: &str = "visibility: committed transactions are not visible on the primary";

/// Commits wait for the standby from now on.
async fn make_synchronous(client: &Client) {
    client.batch_execute("alter system set synchronous_standby_names = '*'").await.unwrap();
    client.batch_execute("select pg_reload_conf()").await.unwrap();
    eventually("the standby to be synchronous", async || {
        let standby = "select from pg_stat_replication where sync_state = 'sync' and state = 'streaming'";
        client.query_opt(standby, &[]).await.unwrap()
    })
    .await;
}

/// The standby's WAL receiver, stopped until it is resumed.
struct Stopped(Pid);

impl Stopped {
    async fn receiver_of(standby: &PrivatePostgres) -> Stopped {
        let client = postgres::connect(&standby.url("postgres")).await.unwrap();
        let pid: i32 = client.query_one("select pid from pg_stat_wal_receiver", &[]).await.unwrap().get(0);
        let pid = Pid::from_raw(pid).expect("a process id");
        kill_process(pid, Signal::STOP).expect("a process can be stopped");
        Stopped(pid)
    }

    fn go_on(self) {
        kill_process(self.0, Signal::CONT).expect("a stopped process can go on");
    }
}

/// What cannot be committed before the standby has it; returns when the stream has been sent it all the same.
async fn commit_unseen(road: &Road, statement: String) -> JoinHandle<bool> {
    let client = road.app.source().await;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let committing = tokio::spawn(async move { client.batch_execute(&statement).await.is_ok() });
    let watching = &road.platform.client;
    eventually("the commit to wait for the standby", async || {
        let waits = "select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep'";
        watching.query_opt(waits, &[&pid]).await.unwrap()
    })
    .await;
    let flushed: PgLsn = watching.query_one("select pg_current_wal_flush_lsn()", &[]).await.unwrap().get(0);
    eventually("the commit to be sent", async || {
        let sent =
            "select from pg_replication_slots slot join pg_stat_replication sender on sender.pid = slot.active_pid
             where slot.slot_name = $1 and sender.sent_lsn >= $2";
        watching.query_opt(sent, &[&road.app.name, &flushed]).await.unwrap()
    })
    .await;
    committing
}

fn payment(id: i64, user: i64) -> String {
    format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         values ({id}, {user}, 'INV', 1, 1, 'ready')"
    )
}

async fn is_visible(client: &Client, payment: i64) -> bool {
    client.query_opt("select from payment where id = $1", &[&payment]).await.unwrap().is_some()
}

async fn until_unready(road: &mut Road, reason: &str) {
    let sidecar = road.app.sidecar();
    eventually(reason, async || {
        let (status, text) = sidecar.readiness().await?;
        (status == 503 && text.contains(reason)).then_some(())
    })
    .await;
}

/// A road over a primary whose commits wait for a standby.
async fn synchronous_road(settings: &[(&str, &str)], store: &PrivatePostgres) -> (Road, PrivatePostgres) {
    let Pair { mut app, standby } = pair(None, &[], store).await;
    for (key, value) in settings {
        app.set(key, value);
    }
    make_synchronous(&app.source().await).await;
    let mut road = Road::start(app).await;
    road.pay(2).await;
    road.assert_told().await;
    (road, standby)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_waits_until_its_transaction_is_visible() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let (mut road, standby) = synchronous_road(&[], &store).await;
    let receiver = Stopped::receiver_of(&standby).await;
    let unseen = next_id();
    let committing = commit_unseen(&road, payment(unseen, road.user)).await;
    until_unready(&mut road, HELD_BACK).await;
    assert!(!is_visible(&road.platform.client, unseen).await);
    // Neither stored nor sent.
    road.assert_told().await;
    receiver.go_on();
    assert!(committing.await.unwrap());
    road.wanted.insert(unseen);
    road.pay(1).await;
    road.assert_told().await;
    road.app.sidecar().wait_until_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_events_are_early_and_a_lookup_waits_for_no_more_than_its_limit() {
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let (mut road, standby) = synchronous_road(&[("source.await_visibility", "never")], &store).await;
    let checked = String::from_utf8(road.app.walhook(&["check"]).await.stdout).unwrap();
    assert!(checked.contains("warn  source.await_visibility: never"), "{checked}");
    let label = road.platform.label(road.user).await;
    let release = road.platform.release(label).await;
    // The stream has shown it, and what is stored behind it is not read again: only a new process has to ask.
    road.pay(1).await;
    road.assert_told().await;
    road.app.restart().await;
    let receiver = Stopped::receiver_of(&standby).await;
    let early = next_id();
    let committing = commit_unseen(&road, payment(early, road.user)).await;
    road.wanted.insert(early);
    road.assert_told().await;
    assert!(!is_visible(&road.platform.client, early).await);
    let review = format!("update release set review_status = 'to_review' where id = {release}");
    let reviewing = commit_unseen(&road, review).await;
    until_unready(&mut road, "enqueue: the primary does not show a committed transaction").await;
    receiver.go_on();
    assert!(committing.await.unwrap() && reviewing.await.unwrap());
    road.app.wait_for_events(road.wanted.len() + 1).await;
    road.app.sidecar().wait_until_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_undoes_nothing_that_was_sent_and_leaves_no_gap() {
    let Some(programs) = installed().into_iter().find(|(version, _)| *version >= 17).map(|(_, programs)| programs)
    else {
        skip("no PostgreSQL 17 or later: scripts/fetch-postgres 17 fetches one");
        return;
    };
    let store = PrivatePostgres::start(Options::default()).await.unwrap();
    let settings = [("sync_replication_slots", "on"), ("hot_standby_feedback", "on")];
    let Pair { app, standby } = pair(Some(programs), &settings, &store).await;
    make_synchronous(&app.source().await).await;
    let mut road = Road::start(app).await;
    road.pay(3).await;
    road.assert_told().await;
    until_slot_is_carried_over(&road, &standby).await;
    until_caught_up(&road.platform.client, &standby).await;
    let checked = String::from_utf8(road.app.walhook(&["check"]).await.stdout).unwrap();
    assert!(checked.contains("alter system set synchronized_standby_slots = 'standby'"), "{checked}");
    let _receiver = Stopped::receiver_of(&standby).await;
    let undone = next_id();
    let committing = commit_unseen(&road, payment(undone, road.user)).await;
    until_unready(&mut road, HELD_BACK).await;
    road.app.server.stop(StopMode::Immediate).await.unwrap();
    assert!(!committing.await.unwrap());
    // Killed with what it had not written yet.
    standby.stop(StopMode::Immediate).await.unwrap();
    standby.start_again().await.unwrap();
    promote(&standby).await;
    let url = standby.url(&format!("{}_platform", road.app.name));
    road.platform = Platform::new(postgres::connect(&url).await.unwrap());
    assert!(!is_visible(&road.platform.client, undone).await, "the failover undoes it");
    road.pay(3).await;
    road.assert_told().await;
    let gaps = "select count(*) from walhook.gap";
    assert_eq!(road.app.store().await.query_one(gaps, &[]).await.unwrap().get::<_, i64>(0), 0);
    road.app.sidecar().wait_until_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_costs_a_question_for_each_batch_and_nothing_where_it_is_not_needed() {
    const QUESTIONS: &str =
        "select count(*) from pg_stat_activity where query like '%pg_visible_in_snapshot%' and pid <> pg_backend_pid()";
    let mut road = Road::start(TestApp::prepare_alone(Options::default()).await).await;
    let questions = async |road: &Road| -> i64 { road.platform.client.query_one(QUESTIONS, &[]).await.unwrap().get(0) };
    road.pay(5).await;
    road.assert_told().await;
    assert_eq!(questions(&road).await, 0);
    let checked = road.app.walhook_ok(&["check"]).await;
    assert!(checked.contains("ok    source.await_visibility: auto"), "{checked}");
    road.app.set("source.await_visibility", "always");
    road.app.restart().await;
    road.pay(5).await;
    road.assert_told().await;
    assert_eq!(questions(&road).await, 1);
    // Idle WAL is acknowledged behind the heartbeats.
    let end: PgLsn = road.platform.client.query_one("select pg_current_wal_lsn()", &[]).await.unwrap().get(0);
    let slot = "select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn > $2";
    eventually("idle WAL to be acknowledged", async || {
        road.platform.client.query_opt(slot, &[&road.app.name, &end]).await.unwrap()
    })
    .await;
    // It goes down although the last records are not acknowledged.
    road.app.server.restart(StopMode::Fast).await.unwrap();
    road.platform = road.app.platform().await;
    road.pay(5).await;
    road.assert_told().await;
}
