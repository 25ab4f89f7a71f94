//! A rolling upgrade: two replicas are replaced by those of the next build, one by one, with
//! migrations in between and one rollback, while the platform commits and users call the API
//! through a balancer. The next build is compiled from the same sources.

mod balancer;
mod load;
mod log;
mod migrations;
mod next_build;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use self::balancer::Balancer;
use self::load::{Clients, EVENTS, Load, describe};
use self::next_build::NextBuild;
use crate::support::{
    Answer, Api, Received, Receiver, Sidecar, TestApp, are_installed, eventually,
};
use rustix::process::Signal;

/// Much shorter than the time after which the server notices that a reader has disappeared
/// (`wal_sender_timeout`, a minute).
const LONGEST_TAKEOVER: Duration = Duration::from_secs(30);

struct Rollout {
    app: TestApp,
    /// The oldest first.
    replicas: Vec<Sidecar>,
    balancer: Balancer,
    receiver: Receiver,
    load: Load,
    clients: Clients,
    /// The receiver of test deliveries, which must outlive the clients.
    _tested: Receiver,
}

impl Rollout {
    async fn begin() -> Rollout {
        let mut app = TestApp::prepare().await;

        // The balancer checks ten times a second.
        app.set("shutdown.delay", "10s");
        app.setup().await;

        let replicas = vec![app.replica(&[]).await, app.replica(&[]).await];
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;
        let tested = Receiver::start().await;

        // Slow requests are in flight at any time.
        tested.answer(|_| Answer::After(Duration::from_millis(200), 200));
        let balancer = Balancer::start(&replicas).await;
        let owner = Api::new(&balancer.api_url, &app.token(&user.to_string()).await);

        owner.create_webhook(&receiver.url("/"), &EVENTS).await;
        let tokens = [
            app.token("x").await,
            app.token("y").await,
            app.token("z").await,
        ];
        let load = Load::start(platform, user);
        let clients = Clients::start(&balancer.api_url, tokens.into(), &tested.url("/"));

        Rollout {
            app,
            replicas,
            balancer,
            receiver,
            load,
            clients,
            _tested: tested,
        }
    }

    /// Waits until a commit after this call was delivered and every API user has completed a round.
    async fn work(&self) {
        self.clients.wait_for_round().await;
        let enough = self.load.committed();
        self.receiver.wait_for(enough).await;
    }

    /// Starts a new replica, and stops the oldest when the new one is ready.
    async fn exchange_one(&mut self, build: &Path) {
        self.app.set_program(build);
        let replica = self.app.replica(&[]).await;

        self.balancer.add(&replica);
        self.replicas.push(replica);
        let status = self.replicas.remove(0).stop().await;
        assert!(status.success(), "a replica ended with {status}");
        self.work().await;
    }

    /// Runs the next build's setup while a long transaction reads a table that it changes. Replicas
    /// do not wait for it.
    async fn migrate(&mut self, next: &NextBuild) {
        let store = self.app.store().await;
        store
            .batch_execute("begin; select from walhook.delivery limit 1")
            .await
            .expect("a reader");
        self.app.set_program(&next.program);

        let setup = self.app.command(&["setup"]).output();
        let meanwhile = async {
            let waiting =
                "select from pg_locks where relation = 'walhook.delivery'::regclass and not granted
                           and mode = 'AccessExclusiveLock'";
            let monitor = self.app.store().await;
            let blocked = || async {
                (!monitor.query(waiting, &[]).await.expect("locks").is_empty()).then_some(())
            };

            eventually("the migration to wait for the table", blocked).await;
            self.work().await;
            store.batch_execute("commit").await.expect("a reader's end");
        };

        let (output, ()) = tokio::join!(setup, meanwhile);
        let output = output.expect("setup");
        let printed = String::from_utf8_lossy(&output.stdout);

        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(printed.contains(&next.migrations.join(", ")), "{printed}");
    }

    /// Stops everything, and compares what the platform committed with what the receiver and the
    /// API's users recorded.
    async fn end(self) {
        let Rollout {
            app,
            replicas,
            balancer,
            receiver,
            load,
            clients,
            ..
        } = self;

        let mut committed = load.stop().await;
        let (requests, failures) = clients.stop().await;
        let received = receiver.wait_for(committed.len()).await;
        let ends = futures_util::future::join_all(replicas.into_iter().map(Sidecar::stop)).await;

        assert!(ends.iter().all(ExitStatus::success), "{ends:?}");
        let mut arrived: Vec<String> = receiver.requests().iter().map(describe).collect();

        committed.sort();
        arrived.sort();
        assert_eq!(arrived, committed, "each transition is delivered once");

        let slowest = received
            .iter()
            .filter_map(since_commit)
            .max()
            .expect("receptions");
        assert!(
            slowest < LONGEST_TAKEOVER,
            "a transition was delivered {slowest:?} after its commit"
        );

        let some: Vec<&String> = failures.iter().take(5).collect();
        assert!(
            failures.is_empty(),
            "{} of {requests} requests failed: {some:#?}\n{}",
            failures.len(),
            balancer.errors()
        );

        println!(
            "{} transitions, the slowest delivered after {slowest:?}; {requests} requests",
            committed.len()
        );
        refuses_a_schema_that_is_too_new(&app).await;
    }
}

/// The time from the commit to the receiver.
fn since_commit(received: &Received) -> Option<Duration> {
    let committed: jiff::Timestamp = received
        .header("x-webhook-occurred-at")
        .parse()
        .expect("a time");
    received.at.duration_since(committed.into()).ok()
}

/// The build refuses to run after a migration that removed something it uses.
async fn refuses_a_schema_that_is_too_new(app: &TestApp) {
    let history = "insert into walhook.refinery_schema_history values (1000, 'drop_contact_needs_999', '2026-01-01T00:00:00Z', '0')";
    app.store()
        .await
        .execute(history, &[])
        .await
        .expect("a history");

    for command in ["run", "setup", "check"] {
        let output = app.walhook(&[command]).await;
        let printed = [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat();
        assert_eq!(output.status.code(), Some(1), "{command}: {printed}");
        assert!(
            printed.contains("know version 999 or later")
                && printed.contains("start the newer build"),
            "{command}: {printed}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_under_load_loses_nothing_and_fails_no_request() {
    if !are_installed(&["nginx"]) {
        return;
    }

    let next = tokio::task::spawn_blocking(NextBuild::make)
        .await
        .expect("the next build");
    let this = PathBuf::from(env!("CARGO_BIN_EXE_walhook"));
    let mut rollout = Rollout::begin().await;

    rollout.work().await;

    rollout.migrate(&next).await;
    rollout.exchange_one(&next.program).await;

    // A rollback: this build works on the later build's schema, even after another setup.
    rollout.app.set_program(&this);
    let checked = rollout.app.walhook_ok(&["check"]).await;

    assert!(checked.contains("of a later build"), "{checked}");

    assert!(
        rollout
            .app
            .walhook_ok(&["setup"])
            .await
            .contains("everything is set up")
    );

    rollout.exchange_one(&this).await;
    rollout.exchange_one(&next.program).await;
    rollout.exchange_one(&next.program).await;

    for replica in &rollout.replicas {
        let program =
            std::fs::read_link(format!("/proc/{}/exe", replica.pid())).expect("a process");
        assert_eq!(program, next.program);
    }

    rollout.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_shuts_down_is_unready_first_and_answers_until_it_closes() {
    let mut app = TestApp::prepare().await;
    app.set("shutdown.delay", "1h");
    app.setup().await;

    let mut first = app.replica(&[]).await;
    let second = app.replica(&[]).await;
    let api = Api::new(&first.api_url, &app.token("x").await);

    assert_eq!(
        api.get("/webhooks").await.expect(200).header("connection"),
        None
    );
    first.signal(Signal::TERM);

    let announced = || async { first.readiness().await.filter(|(status, _)| *status == 503) };
    let (_, reasons) = eventually("the end to be announced", announced).await;

    assert!(reasons.contains("shutdown: shutting down"), "{reasons}");
    let taken_over =
        || async { (second.metric("walhook_capture_connected").await == Some(1.0)).then_some(()) };

    eventually("the other to capture", taken_over).await;

    // A client that keeps the connection learns that it is closed after this answer.
    assert_eq!(
        api.get("/webhooks").await.expect(200).header("connection"),
        Some("close")
    );
    first.signal(Signal::TERM);
    assert_eq!(
        first.ended().await.code(),
        Some(1),
        "a second signal waits for nothing"
    );
}
