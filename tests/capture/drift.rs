//! The platform changes its schema under a running stream: the change is reported, and no event is
//! skipped.

use crate::support::{Platform, Receiver, TestApp, run_sql};
use crate::wait_until_unready;

struct Drifting {
    app: TestApp,
    platform: Platform,
    user: i64,
    receiver: Receiver,
}

async fn start() -> Drifting {
    let app = TestApp::start_with(|app| app.set("source.heartbeat", "200ms")).await;

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

    async fn alter(&self, statements: &str) {
        run_sql(&self.platform.client, statements).await;
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

    /// Waits until the attempts are recorded: what a kill leaves unrecorded is sent again.
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

#[tokio::test]
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
