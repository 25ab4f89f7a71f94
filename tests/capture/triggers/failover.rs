//! Failovers under synchronous replication. The deletion of stored rows does not wait for the
//! standby: the new primary can still have rows that were stored, deleted or not.

use std::collections::HashSet;
use std::sync::Arc;

use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use super::{by_triggers, number};
use crate::chaos::Scenario;
use crate::failover::{Pair, pair, promote, until_caught_up};
use crate::support::{Platform, Receiver, eventually, one, run_sql, server};
use crate::visibility::{Stopped, make_synchronous};

/// A scenario whose sidecar waits before it deletes rows that it has stored.
struct Held {
    scenario: Scenario,
    standby: PrivatePostgres,
    /// Holds the lock that the deletion waits for.
    holder: Client,
    _store: PrivatePostgres,
}

const WAITS: &str =
    "select from pg_locks where relation = 'walhook_capture.progress'::regclass and not granted";
const IS_EMPTY: &str =
    "select from (select count(*) as rows from walhook_capture.outbox) outbox where rows = 0";

impl Held {
    async fn start(synchronous: bool) -> Held {
        let store = server(Options::default()).await;

        // A test compares the ids of transactions on both servers.
        let Pair { mut app, standby } = pair(None, &[("autovacuum", "off")], &store).await;
        run_sql(&app.source().await, "alter system set autovacuum = off").await;
        run_sql(&app.source().await, "select pg_reload_conf()").await;
        by_triggers(&mut app);

        if synchronous {
            make_synchronous(&app.source().await).await;
        }

        let mut scenario = Scenario::start(app).await;
        scenario.pay(3).await;
        scenario.assert_delivered().await;

        let holder = scenario.app.source().await;
        eventually("an empty outbox", async || {
            holder.query_opt(IS_EMPTY, &[]).await.unwrap()
        })
        .await;
        until_caught_up(&holder, &standby).await;
        run_sql(
            &holder,
            "begin; lock table walhook_capture.progress in exclusive mode",
        )
        .await;

        Held {
            scenario,
            standby,
            holder,
            _store: store,
        }
    }

    /// Commits payments in one transaction, and waits until their events are delivered and the
    /// deletion of their rows waits.
    async fn pay(&mut self) {
        run_sql(&self.scenario.platform.client, "begin").await;

        self.scenario.pay(3).await;
        run_sql(&self.scenario.platform.client, "commit").await;

        self.scenario.assert_delivered().await;
        eventually("the deletion to wait", async || {
            self.holder.query_opt(WAITS, &[]).await.unwrap()
        })
        .await;
    }

    /// Stops the primary and promotes the standby.
    async fn fail_over(&mut self) {
        self.scenario
            .app
            .server
            .stop(StopMode::Immediate)
            .await
            .unwrap();

        promote(&self.standby).await;
        let url = self
            .standby
            .url(&format!("{}_platform", self.scenario.app.name));
        self.scenario.platform = Platform::new(postgres::connect(&url).await.unwrap());
    }

    /// Asserts that capture continues on the new primary: nothing is lost or repeated, and there is
    /// no gap.
    async fn assert_continued(&mut self) {
        self.scenario.pay(3).await;
        self.scenario.assert_delivered().await;
        self.scenario.app.sidecar().wait_until_ready().await;

        let store = self.scenario.app.store().await;
        assert_eq!(number(&store, "select count(*) from walhook.gap").await, 0);
        assert_eq!(
            number(&store, "select timeline::bigint from walhook.checkpoint").await,
            2
        );

        let new = &self.scenario.platform.client;
        eventually("an empty outbox", async || {
            new.query_opt(IS_EMPTY, &[]).await.unwrap()
        })
        .await;
    }

    /// Asserts that capture reports a fork.
    async fn assert_forked(&self) {
        let store = self.scenario.app.store().await;
        let open = "select reason from walhook.gap where repaired_at is null";
        let gap = eventually("the gap", async || {
            store.query_opt(open, &[]).await.unwrap()
        })
        .await;

        assert_eq!(gap.get::<_, &str>(0), "outbox_forked");
    }
}

/// The new primary has rows that are stored and that were not deleted anywhere.
async fn stored_rows_continue(restart: bool) {
    let mut held = Held::start(true).await;
    held.pay().await;

    if restart {
        held.scenario.app.kill().await;
    }

    held.fail_over().await;

    if restart {
        held.scenario.app.run().await;
    }

    held.assert_continued().await;
}

/// The old primary has deleted the rows, and the new one has not received that.
async fn deleted_rows_continue(restart: bool) {
    let mut held = Held::start(true).await;
    held.pay().await;

    let _receiver = Stopped::receiver_of(&held.standby).await;
    run_sql(&held.holder, "rollback").await;
    eventually("an empty outbox", async || {
        held.holder.query_opt(IS_EMPTY, &[]).await.unwrap()
    })
    .await;

    if restart {
        held.scenario.app.kill().await;
    }

    held.scenario
        .app
        .server
        .stop(StopMode::Immediate)
        .await
        .unwrap();

    // The stopped receiver loses what it has not written.
    held.standby.stop(StopMode::Immediate).await.unwrap();
    held.standby.start_again().await.unwrap();
    promote(&held.standby).await;

    let url = held
        .standby
        .url(&format!("{}_platform", held.scenario.app.name));
    held.scenario.platform = Platform::new(postgres::connect(&url).await.unwrap());

    let kept = number(
        &held.scenario.platform.client,
        "select count(*) from walhook_capture.outbox",
    )
    .await;
    assert_eq!(kept, 3, "the new primary has the rows");

    if restart {
        held.scenario.app.run().await;
    }

    held.assert_continued().await;
}

#[tokio::test]
async fn the_same_process_continues_with_stored_rows_on_the_new_primary() {
    stored_rows_continue(false).await;
}

#[tokio::test]
async fn another_process_continues_with_stored_rows_on_the_new_primary() {
    stored_rows_continue(true).await;
}

#[tokio::test]
async fn the_same_process_continues_although_a_deletion_was_undone() {
    deleted_rows_continue(false).await;
}

#[tokio::test]
async fn another_process_continues_although_a_deletion_was_undone() {
    deleted_rows_continue(true).await;
}

/// The process that switches to triggers is killed before it reads the outbox.
#[tokio::test]
async fn another_process_continues_with_an_outbox_that_was_not_read_before_the_failover() {
    let store = server(Options::default()).await;
    let Pair { mut app, standby } = pair(None, &[], &store).await;

    make_synchronous(&app.source().await).await;
    app.set_environment("FAILPOINTS", "switch_stored_outbox_not_read=return(kill)");

    let mut scenario = Scenario::start(app).await;
    scenario.pay(3).await;
    scenario.assert_delivered().await;
    by_triggers(&mut scenario.app);
    scenario.app.set_environment("FAILPOINTS", "");
    scenario.app.setup().await;
    scenario.app.sidecar().ended().await;
    scenario.app.kill().await;
    scenario.pay(3).await;

    let holder = scenario.app.source().await;
    let mut held = Held {
        scenario,
        standby,
        holder,
        _store: store,
    };

    held.fail_over().await;
    held.scenario.app.run().await;
    held.assert_continued().await;
}

/// Nothing has read the outbox since its setup.
#[tokio::test]
async fn another_process_continues_with_an_outbox_that_was_set_up_before_the_failover() {
    let store = server(Options::default()).await;
    let Pair { mut app, standby } = pair(None, &[], &store).await;

    by_triggers(&mut app);
    make_synchronous(&app.source().await).await;

    let platform = app.platform().await;
    let holder = app.source().await;
    let user = platform.user(&[]).await;

    platform.payment(user, "ready").await;
    app.setup().await;
    app.run_with(&["--roles", "deliver,api"]).await;

    let receiver = Arc::new(Receiver::start().await);
    app.api(&user.to_string())
        .await
        .create_webhook(&receiver.url("/"), &["payment.statement_ready"])
        .await;
    app.kill().await;

    let scenario = Scenario {
        app,
        platform,
        user,
        receiver,
        payments: HashSet::new(),
    };

    let mut held = Held {
        scenario,
        standby,
        holder,
        _store: store,
    };

    held.scenario.pay(3).await;
    held.fail_over().await;
    held.scenario.app.run().await;
    held.assert_continued().await;
}

/// Nothing has read the outbox since a repair.
#[tokio::test]
async fn another_process_continues_with_an_outbox_that_was_repaired_before_the_failover() {
    let mut held = Held::start(true).await;
    run_sql(&held.holder, "rollback").await;
    assert!(held.scenario.app.stop().await.success());
    held.scenario.app.walhook_ok(&["repair", "--force"]).await;
    held.scenario.pay(3).await;
    held.fail_over().await;
    held.scenario.app.run().await;
    held.assert_continued().await;
}

/// With asynchronous replication, the new primary lacks stored rows and gives their numbers and
/// their transaction's id to others.
#[tokio::test]
async fn another_process_reports_stored_rows_that_the_new_primary_lacks() {
    let mut held = Held::start(false).await;
    let from = "select last_value from walhook_capture.outbox_seq_seq";
    let from = number(&held.holder, from).await;

    held.standby.stop(StopMode::Fast).await.unwrap();
    held.pay().await;
    const ROWS: &str =
        "select array_agg(seq || ' ' || xid order by seq) from walhook_capture.outbox";

    let stored: Vec<String> = one(&held.holder, ROWS).await;
    held.scenario.app.kill().await;
    held.scenario
        .app
        .server
        .stop(StopMode::Immediate)
        .await
        .unwrap();

    held.standby.start_again().await.unwrap();
    promote(&held.standby).await;

    let url = held
        .standby
        .url(&format!("{}_platform", held.scenario.app.name));
    let new = Platform::new(postgres::connect(&url).await.unwrap());

    // A standby numbers rows after those that the primary had reserved: here it had none left.
    let restart = format!("select setval('walhook_capture.outbox_seq_seq', {from})");
    run_sql(&new.client, &format!("begin; {restart}")).await;

    for _ in 0..3 {
        new.payment(held.scenario.user, "ready").await;
    }

    run_sql(&new.client, "commit").await;
    let others: Vec<String> = one(&new.client, ROWS).await;

    assert_eq!(others, stored, "only the rows' times differ");
    let _sidecar = held.scenario.app.spawn(&[]);
    held.assert_forked().await;
}
