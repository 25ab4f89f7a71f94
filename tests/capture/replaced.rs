//! A primary that was replaced by a standby and still accepts sessions, under a URL that names it
//! first.

use std::collections::HashSet;

use postgres_types::PgLsn;
use tokio_postgres::Client;
use walhook::config::Source;
use walhook::events::LookupKey;
use walhook::lookup::{LookupError, Lookups};
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};
use walhook::store::Store;

use crate::chaos::Scenario;
use crate::failover::{Pair, pair, promote, until_caught_up, with_slot_on_standby};
use crate::support::{Platform, Sidecar, TestApp, eventually, next_id, one, run_sql, server};
use crate::visibility::{HELD_BACK, commit_unseen, is_visible, payment};
use crate::wait_until_unready;

const REASON: &str = "replaced by a failover";
/// How often a replica must have connected to the replaced primary: it retries with growing waits.
const SESSIONS: i64 = 4;

/// A primary that runs although its standby was promoted.
struct Replaced {
    scenario: Scenario,
    new: PrivatePostgres,
    /// To the platform's database on the replaced primary.
    old: Client,
    /// Names both servers, the replaced one first.
    both: String,
}

impl Replaced {
    /// Promotes the standby while the primary runs. The sidecar of the scenario is stopped.
    async fn by(mut scenario: Scenario, standby: PrivatePostgres) -> Replaced {
        assert!(scenario.app.stop().await.success());
        let old = scenario.app.source().await;

        until_caught_up(&old, &standby).await;
        promote(&standby).await;

        let url = standby.url(&format!("{}_platform", scenario.app.name));
        scenario.platform = Platform::new(postgres::connect(&url).await.unwrap());

        let both = scenario.app.setting("source.url").to_owned();
        scenario.app.set("source.url", &url);

        Replaced {
            scenario,
            new: standby,
            old,
            both,
        }
    }

    /// Starts a replica on the new primary alone, and waits until it has delivered payments that
    /// are beyond the end of the old WAL.
    async fn capture_from_new(&mut self) {
        self.scenario.app.run().await;
        fill(&self.scenario.platform.client, 4_000_000).await;
        self.scenario.pay(2).await;
        self.scenario.assert_delivered().await;
        assert_eq!(self.timeline().await, 2);
    }

    /// Captures from the new primary, and then starts a replica, with failpoints, whose URL names
    /// both servers: the old one runs again only after the replica has connected to the new one.
    async fn run_connected_to_new(&mut self, failpoints: &str) {
        self.run_without_old(failpoints).await;
        self.start_old().await;
    }

    /// Captures from the new primary, stops the old one, and starts a replica, with failpoints,
    /// whose URL names both.
    async fn run_without_old(&mut self, failpoints: &str) {
        self.capture_from_new().await;
        let app = &mut self.scenario.app;

        assert!(app.stop().await.success());
        app.server.stop(StopMode::Immediate).await.unwrap();
        app.set("source.url", &self.both)
            .set_environment("FAILPOINTS", failpoints)
            .run()
            .await;
    }

    async fn start_old(&mut self) {
        let app = &mut self.scenario.app;
        app.server.start_again().await.unwrap();
        self.old = app.source().await;
    }

    async fn timeline(&self) -> i32 {
        let store = self.scenario.app.store().await;
        one(&store, "select timeline from walhook.checkpoint").await
    }

    /// Starts a replica whose URL names both servers, without waiting for it.
    fn spawn_with_both(&mut self) -> Sidecar {
        let new = self.scenario.app.setting("source.url").to_owned();
        let replica = self.scenario.app.set("source.url", &self.both).spawn(&[]);
        self.scenario.app.set("source.url", &new);
        replica
    }

    /// Waits until more sessions have reached the replaced primary.
    async fn until_sessions(&self) {
        let sessions = "select sessions from pg_stat_database where datname = current_database()";
        let count = async || one::<i64>(&self.old, sessions).await;

        let before = count().await;
        eventually("sessions on the replaced primary", async || {
            (count().await >= before + SESSIONS).then_some(())
        })
        .await;
    }

    /// Asserts that no gap was ever recorded.
    async fn assert_no_gap(&self) {
        let store = self.scenario.app.store().await;
        let found: Vec<String> = store
            .query("select reason from walhook.gap", &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();

        assert_eq!(found, [""; 0], "a replaced primary is no gap");
    }

    /// Runs a command with the URL of both servers, which must fail and name the replaced primary.
    async fn assert_refused(&mut self, arguments: &[&str]) {
        let new = self.scenario.app.setting("source.url").to_owned();
        let output = self
            .scenario
            .app
            .set("source.url", &self.both)
            .walhook(arguments)
            .await;

        self.scenario.app.set("source.url", &new);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            !output.status.success() && text.contains(REASON),
            "`walhook {arguments:?}`: {text}"
        );
        assert!(
            text.contains("walhook repair --force"),
            "the remedy after a restore: {text}"
        );
    }
}

async fn fill(client: &Client, bytes: usize) {
    let filler = format!("select pg_logical_emit_message(true, 'filler', repeat('x', {bytes}))");
    run_sql(client, &filler).await;
}

async fn end_of_wal(client: &Client) -> PgLsn {
    one(client, "select pg_current_wal_flush_lsn()").await
}

#[tokio::test]
async fn a_standby_replica_that_reaches_a_replaced_primary_records_no_gap() {
    let store = server(Options::default()).await;
    let Some((scenario, standby)) = with_slot_on_standby(&store, None).await else {
        return;
    };

    let mut replaced = Replaced::by(scenario, standby).await;
    replaced.capture_from_new().await;

    let at: PgLsn = end_of_wal(&replaced.scenario.platform.client).await;
    assert!(
        end_of_wal(&replaced.old).await < at,
        "the old WAL ends before the checkpoint"
    );

    let mut other = replaced.spawn_with_both();
    wait_until_unready(&other, REASON).await;
    replaced.until_sessions().await;
    replaced.assert_no_gap().await;

    // Now the old WAL ends after the checkpoint.
    fill(&replaced.old, 12_000_000).await;
    assert!(end_of_wal(&replaced.old).await > at);
    replaced.until_sessions().await;
    replaced.assert_no_gap().await;

    // As a callback of Patroni does.
    let name = replaced.scenario.app.name.clone();
    replaced
        .old
        .execute("select pg_drop_replication_slot($1)", &[&name])
        .await
        .unwrap();
    replaced.until_sessions().await;
    wait_until_unready(&other, REASON).await;

    for command in ["check", "setup", "repair"] {
        replaced.assert_refused(&[command]).await;
    }

    replaced.assert_no_gap().await;
    assert_eq!(
        replaced.scenario.app.sidecar().readiness().await.unwrap().0,
        200,
        "the replica that captures"
    );
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;

    replaced
        .scenario
        .app
        .server
        .stop(StopMode::Immediate)
        .await
        .unwrap();

    other.wait_until_ready().await;
    assert!(replaced.scenario.app.stop().await.success());
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    replaced.assert_no_gap().await;
    assert_eq!(replaced.timeline().await, 2);
    drop((other, replaced.new));
}

/// A primary that was restored to a time before a failover cannot be distinguished from a replaced
/// one.
#[tokio::test]
async fn a_primary_restored_to_before_a_failover_is_repaired_with_force() {
    let store = server(Options::default()).await;
    let Some((scenario, standby)) = with_slot_on_standby(&store, None).await else {
        return;
    };

    let mut replaced = Replaced::by(scenario, standby).await;
    replaced.capture_from_new().await;

    let mut restored = replaced.spawn_with_both();
    wait_until_unready(&restored, REASON).await;
    assert!(replaced.scenario.app.stop().await.success());
    replaced.new.stop(StopMode::Immediate).await.unwrap();
    replaced.scenario.platform = Platform::new(replaced.scenario.app.source().await);

    // Nothing has read this when the repair compares the rows.
    replaced.scenario.pay(1).await;
    replaced.assert_refused(&["repair"]).await;

    let both = replaced.both.clone();
    replaced
        .scenario
        .app
        .set("source.url", &both)
        .walhook_ok(&["repair", "--force"])
        .await;

    restored.wait_until_ready().await;
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    assert_eq!(replaced.timeline().await, 1);

    replaced
        .scenario
        .app
        .wait_for_count(
            "select count(*) from walhook.gap where repaired_at is null",
            0,
        )
        .await;
}

/// As above, with trigger capture. The process must not run during the repair.
#[tokio::test]
async fn an_outbox_restored_to_before_a_failover_is_repaired_with_force() {
    let store = server(Options::default()).await;
    let (scenario, standby) = by_triggers(&store).await;
    let mut replaced = Replaced::by(scenario, standby).await;

    replaced.capture_from_new().await;
    assert!(replaced.scenario.app.stop().await.success());
    replaced.new.stop(StopMode::Immediate).await.unwrap();
    replaced.scenario.platform = Platform::new(replaced.scenario.app.source().await);
    replaced.scenario.pay(1).await;
    replaced.assert_refused(&["repair"]).await;

    let both = replaced.both.clone();
    replaced
        .scenario
        .app
        .set("source.url", &both)
        .walhook_ok(&["repair", "--force"])
        .await;

    replaced.scenario.app.run().await;
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    assert_eq!(replaced.timeline().await, 1);
    replaced.assert_no_gap().await;
}

/// Heartbeats, over a connection of their own, reach the replaced primary, whose commits wait for
/// no standby. Those of the stream do.
#[tokio::test]
async fn a_replaced_primary_does_not_end_the_wait_for_a_synchronous_standby() {
    let store = server(Options::default()).await;
    let Some((scenario, standby)) = with_slot_on_standby(&store, None).await else {
        return;
    };

    let mut replaced = Replaced::by(scenario, standby).await;
    replaced.run_without_old("").await;

    // All connections but those of heartbeats stay with the new primary, also those that are opened
    // for the first event.
    replaced.scenario.pay(1).await;
    replaced.scenario.assert_delivered().await;
    replaced.start_old().await;

    let synchronous = "alter system set synchronous_standby_names = 'absent'";
    run_sql(&replaced.scenario.platform.client, synchronous).await;

    run_sql(
        &replaced.scenario.platform.client,
        "select pg_reload_conf()",
    )
    .await;

    let cut = "select pg_terminate_backend(pid) from pg_stat_activity
         where wait_event = 'SyncRep' and query like '%pg_logical_emit_message%'";
    let beat = async || {
        replaced
            .scenario
            .platform
            .client
            .query_opt(cut, &[])
            .await
            .unwrap()
    };

    eventually("a heartbeat that waits, to cut its connection", beat).await;
    replaced.until_sessions().await;

    let unseen = next_id();
    let url = replaced
        .new
        .url(&format!("{}_platform", replaced.scenario.app.name));
    let writer = postgres::connect(&url).await.unwrap();
    let statement = payment(unseen, replaced.scenario.user);
    let committing = commit_unseen(&replaced.scenario, writer, statement).await;
    let events = replaced.scenario.app.store().await;
    let event = "select from walhook.event where (data ->> 'payment_request_id')::bigint = $1";
    let sidecar = replaced.scenario.app.sidecar();

    eventually("the event to be held back, or stored", async || {
        let held_back = sidecar
            .readiness()
            .await
            .filter(|(_, text)| text.contains(HELD_BACK));
        held_back
            .map(drop)
            .or(events.query_opt(event, &[&unseen]).await.unwrap().map(drop))
    })
    .await;

    assert!(!is_visible(&replaced.scenario.platform.client, unseen).await);
    replaced.scenario.assert_delivered().await;

    let asynchronous = "alter system reset synchronous_standby_names";
    run_sql(&replaced.scenario.platform.client, asynchronous).await;

    run_sql(
        &replaced.scenario.platform.client,
        "select pg_reload_conf()",
    )
    .await;

    assert!(committing.await.unwrap());
    replaced.scenario.payments.insert(unseen);
    replaced.scenario.assert_delivered().await;
    replaced.assert_no_gap().await;
}

async fn by_triggers(store: &PrivatePostgres) -> (Scenario, PrivatePostgres) {
    let Pair { mut app, standby } = pair(None, &[], store).await;
    app.set("source.capture", "trigger")
        .set("source.poll_interval", "20ms");

    let mut scenario = Scenario::start(app).await;
    scenario.pay(3).await;
    scenario.assert_delivered().await;

    // All tests start with an outbox whose rows are deleted.
    until_outbox_is_empty(&scenario.platform.client).await;
    (scenario, standby)
}

async fn until_outbox_is_empty(client: &Client) {
    let row = "select from walhook_capture.outbox limit 1";
    eventually("the outbox to be empty", async || {
        client
            .query_opt(row, &[])
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn capture_by_triggers_waits_while_it_reaches_a_replaced_primary() {
    let store = server(Options::default()).await;
    let (scenario, standby) = by_triggers(&store).await;
    let mut replaced = Replaced::by(scenario, standby).await;

    replaced.capture_from_new().await;
    let mut other = replaced.spawn_with_both();

    // It stands by, without a connection to the primary, while the first one reads.
    other.wait_until_ready().await;
    assert!(replaced.scenario.app.stop().await.success());
    wait_until_unready(&other, REASON).await;
    replaced.until_sessions().await;
    replaced.assert_no_gap().await;

    for command in ["check", "setup"] {
        replaced.assert_refused(&[command]).await;
    }

    // A replica that reaches the new primary takes over: the other one does not keep the lease.
    replaced.scenario.app.run().await;
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    replaced.assert_no_gap().await;

    replaced
        .scenario
        .app
        .server
        .stop(StopMode::Immediate)
        .await
        .unwrap();

    other.wait_until_ready().await;
    assert!(replaced.scenario.app.stop().await.success());
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    replaced.assert_no_gap().await;
    assert_eq!(replaced.timeline().await, 2);
    drop((other, replaced.new));
}

/// Rows are deleted from the outbox after their events are stored. If the connection is lost in
/// between, the next one must not delete anything on another server.
#[tokio::test]
async fn a_reader_of_the_outbox_that_reaches_a_replaced_primary_deletes_nothing_there() {
    let store = server(Options::default()).await;
    let (scenario, standby) = by_triggers(&store).await;
    let mut replaced = Replaced::by(scenario, standby).await;

    replaced
        .run_connected_to_new("outbox_rows_stored_not_deleted=1*return(fail)")
        .await;
    let cleared = "select number, seq from walhook_capture.progress";
    let cleared = async |client: &Client| {
        let row = client.query_one(cleared, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };

    let before = cleared(&replaced.old).await;

    // The failpoint ends the connection when the event is stored.
    replaced.scenario.pay(1).await;
    wait_until_unready(replaced.scenario.app.sidecar(), REASON).await;
    replaced.until_sessions().await;
    assert_eq!(cleared(&replaced.old).await, before);

    replaced
        .scenario
        .app
        .server
        .stop(StopMode::Immediate)
        .await
        .unwrap();

    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    replaced.scenario.app.sidecar().wait_until_ready().await;
    replaced.assert_no_gap().await;
    until_outbox_is_empty(&replaced.scenario.platform.client).await;
}

/// The removal of capture from the WAL opens its own connections, beside the one of the reader.
#[tokio::test]
async fn what_capture_from_the_wal_has_left_is_not_removed_on_a_replaced_primary() {
    let store = server(Options::default()).await;
    let (scenario, standby) = by_triggers(&store).await;
    let mut replaced = Replaced::by(scenario, standby).await;

    replaced.scenario.app.set("source.heartbeat", "300ms");

    // Each removal fails, and is tried again.
    replaced
        .run_connected_to_new("publication_dropped_identities_not_restored=return(fail)")
        .await;
    let publication = format!("create publication \"{}\"", replaced.scenario.app.name);

    run_sql(&replaced.old, &publication).await;
    replaced.until_sessions().await;

    let publications = replaced
        .old
        .query("select from pg_publication", &[])
        .await
        .unwrap();
    assert_eq!(
        publications.len(),
        1,
        "the reader is connected to the new primary"
    );
    replaced.scenario.pay(2).await;
    replaced.scenario.assert_delivered().await;
    assert_eq!(
        replaced.scenario.app.sidecar().readiness().await.unwrap().0,
        200
    );
    replaced.assert_no_gap().await;
}

/// The owners that it knows may be those of before the failover.
#[tokio::test]
async fn a_replaced_primary_answers_no_lookups() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let platform = app.platform().await;
    let label = platform.label(platform.user(&[]).await).await;
    let store = Store::open(&app.store_url, 1).unwrap();
    let mut lookups = Lookups::for_repair(&app.source_url, &Source::default(), store);

    lookups.warm_up().await.unwrap();
    let keys = HashSet::from([LookupKey::Label(label)]);

    lookups.begin(&[], 2).await.unwrap();
    let error = lookups.fetch(&keys, None).await.unwrap_err();

    assert!(
        matches!(error, LookupError::Replaced { found: 1, known: 2 }),
        "{error}"
    );
    lookups.begin(&[], 1).await.unwrap();
    lookups.fetch(&keys, None).await.unwrap();
}
