//! The platform changes its schema under a running stream: the change is reported, and no event is
//! skipped.

use crate::support::{Platform, Receiver, TestApp, eventually};
use crate::{wait_until_reading, wait_until_unready};

struct Drifting {
    app: TestApp,
    platform: Platform,
    user: i64,
    receiver: Receiver,
}

async fn start() -> Drifting {
    let mut app = TestApp::prepare().await;
    app.set("source.heartbeat", "200ms");
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let events = ["payment.statement_ready", "delivery.completed"];

    app.api(&user.to_string())
        .await
        .create_webhook(&receiver.url("/"), &events)
        .await;
    let drifting = Drifting {
        app,
        platform,
        user,
        receiver,
    };

    drifting.platform.payment(user, "ready").await;
    drifting.receiver.wait_for(1).await;
    drifting.recorded(1).await;

    drifting
}

impl Drifting {
    async fn unready(&mut self, reason: &str) {
        wait_until_unready(self.app.sidecar(), reason).await;
    }

    async fn ready(&mut self) {
        self.app.sidecar().wait_until_ready().await;
    }

    async fn reading(&mut self) {
        wait_until_reading(self.app.sidecar()).await;
    }

    async fn alter(&self, statements: &str) {
        self.platform
            .client
            .batch_execute(statements)
            .await
            .unwrap();
    }

    /// Waits for the events of `payments`, and asserts that each arrived once.
    async fn received(&self, payments: &[i64]) {
        let received = self.receiver.wait_for(payments.len() + 1).await;
        let mut delivered: Vec<i64> = received[1..]
            .iter()
            .map(|request| request.data()["payment_request_id"].as_i64().unwrap())
            .collect();

        delivered.sort_unstable();
        assert_eq!(delivered, payments);
        self.app.wait_for_events(received.len()).await;
        self.recorded(received.len()).await;
    }

    /// Waits until the attempts are recorded: what a kill leaves unrecorded is sent again. A
    /// request can be sent before its event is visible in the store, so no pending delivery is no
    /// proof.
    async fn recorded(&self, attempts: usize) {
        self.app
            .wait_for_count("select count(*) from walhook.attempt", attempts)
            .await;
    }

    async fn insert(&self, columns: &str, id: i64) -> i64 {
        let statement = format!(
            "insert into {columns} values ({id}, {}, 'INV', 1, 1, 'ready')",
            self.user
        );
        self.alter(&statement).await;

        id
    }
}

const RENAMED: &str = "payment (id, user_id, invoice_number, amount, total_due_usd, state)";
const USUAL: &str = "payment (id, user_id, invoice_number, amount, total_due_usd, status)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_column_is_reported_and_changes_committed_meanwhile_arrive() {
    let mut drifting = start().await;
    drifting.alter("alter table payment add column note text; alter table payment rename column status to state").await;

    let first = drifting.insert(RENAMED, 1).await;
    drifting
        .unready("column status of public.payment is gone: ")
        .await;

    // The configuration names the new column, as the unread WAL does.
    drifting.app.kill().await;
    drifting
        .app
        .set("source.tables.payment.columns.status", "state");
    drifting.app.run().await;

    let second = drifting.insert(RENAMED, 2).await;
    drifting.received(&[first, second]).await;

    // Renamed back, while the configuration has the other name.
    drifting
        .alter("alter table payment rename column state to status")
        .await;
    let third = drifting.insert(USUAL, 3).await;

    drifting
        .unready("column state of public.payment is gone: ")
        .await;
    drifting.app.kill().await;
    drifting
        .app
        .set("source.tables.payment.columns.status", "status");
    drifting
        .app
        .set("source.tables.payment.formerly.status", "state");
    drifting.app.run().await;

    let fourth = drifting.insert(USUAL, 4).await;
    drifting.received(&[first, second, third, fourth]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_table_is_reported_and_capture_continues_under_its_old_name() {
    let mut drifting = start().await;
    drifting
        .alter("alter table payment rename to statement")
        .await;

    let first = drifting
        .insert(
            &RENAMED
                .replace("payment (", "statement (")
                .replace("state)", "status)"),
            1,
        )
        .await;

    drifting.unready("table public.payment: missing; ").await;
    let second = drifting
        .insert(&USUAL.replace("payment (", "statement ("), 2)
        .await;

    drifting
        .alter("alter table statement rename to payment")
        .await;
    drifting.ready().await;

    let third = drifting.insert(USUAL, 3).await;
    drifting.received(&[first, second, third]).await;

    // Moved to another schema; the configuration follows.
    drifting
        .alter("create schema billing; alter table payment set schema billing")
        .await;
    let fourth = drifting.insert(&format!("billing.{USUAL}"), 4).await;

    drifting.unready("table public.payment: missing; ").await;
    drifting.app.kill().await;
    drifting
        .app
        .set("source.tables.payment.table", "billing.payment");
    drifting.app.run().await;
    drifting.received(&[first, second, third, fourth]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_table_is_reported_until_setup_runs() {
    let mut drifting = start().await;
    drifting
        .alter(
            "create table fresh (like payment including all); drop table payment; alter table fresh rename to payment",
        )
        .await;
    drifting
        .unready(": lacks public.payment; run `walhook setup`")
        .await;

    let output = drifting.app.walhook_ok(&["setup"]).await;
    assert!(output.contains(r#"added "public"."payment""#), "{output}");
    drifting.reading().await;

    let first = drifting.insert(USUAL, 1).await;
    drifting.received(&[first]).await;

    let partitioned = "alter table payment rename to old_payment;
         create table payment (like old_payment, primary key (id)) partition by range (id);
         create table payment_low partition of payment for values from (0) to (100)";
    drifting.alter(partitioned).await;
    drifting
        .unready(": lacks public.payment; run `walhook setup`")
        .await;
    drifting.app.setup().await;
    drifting.reading().await;

    let second = drifting.insert(USUAL, 2).await;
    drifting
        .alter("create table payment_high partition of payment for values from (100) to (1000000)")
        .await;

    let identity = "select from pg_class where relname = 'payment_high' and relreplident = 'f'";
    let client = &drifting.platform.client;

    eventually("the new partition's replica identity", async || {
        client.query_opt(identity, &[]).await.unwrap()
    })
    .await;
    let third = drifting
        .insert(&USUAL.replace("payment (", "payment_high ("), 103)
        .await;
    drifting.received(&[first, second, third]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retyped_columns_work_and_a_renamed_looked_up_column_is_reported_when_it_is_written() {
    let mut drifting = start().await;

    // An enumeration has text values; a number needs a value map.
    drifting.alter("create type stage as enum ('draft', 'ready'); alter table payment alter column status type stage using status::stage").await;
    let first = drifting.insert(USUAL, 1).await;

    drifting.received(&[first]).await;
    drifting.app.kill().await;
    drifting
        .app
        .set("source.tables.payment.values.status.7", "ready");
    drifting.app.run().await;
    drifting
        .alter("alter table payment alter column status type int using 7")
        .await;
    drifting
        .alter(&format!(
            "insert into {USUAL} values (2, {}, 'INV', 1, 1, 7)",
            drifting.user
        ))
        .await;

    drifting.received(&[first, 2]).await;
    let label = drifting.platform.label(drifting.user).await;
    let release = drifting.platform.release(label).await;
    let outlet = drifting.platform.outlet("O").await;
    let entry = drifting
        .platform
        .distribution(release, outlet, "batched")
        .await;
    let store = drifting.app.store().await;
    let stored = "select id from walhook.event where kind = 'distribution.outlet.status_changed'";

    eventually("the entry in the store", async || {
        store.query_opt(stored, &[]).await.unwrap()
    })
    .await;

    // After a restart, nothing is cached: rows are looked up in the store, whatever their columns
    // are called now.
    drifting.app.restart().await;
    drifting
        .alter("alter table label rename column user_id to owner_id")
        .await;
    drifting
        .platform
        .set_distribution_status(entry, "complete")
        .await;

    let received = drifting.receiver.wait_for(4).await;
    assert_eq!(received[3].data()["distro_queue_id"].as_i64(), Some(entry));
    drifting
        .alter(&format!(
            "update label set owner_id = owner_id where id = {label}"
        ))
        .await;
    drifting
        .unready("column user_id of public.label is gone: ")
        .await;
}
