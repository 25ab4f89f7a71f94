//! Requests are sent after the transaction that stores their deliveries has committed, and only if
//! it has.

use crate::support::{Api, Receiver, TestApp, eventually, one, run_sql};
use tokio_postgres::Client;

const READY: &str = "payment.statement_ready";

/// An installation that has delivered one event.
struct Running {
    app: TestApp,
    store: Client,
    receiver: Receiver,
    api: Api,
    user: i64,
    webhook: String,
}

impl Running {
    async fn start() -> Running {
        let app = TestApp::start().await;
        let platform = app.platform().await;
        let store = app.store().await;
        let receiver = Receiver::start().await;
        let user = platform.user(&[]).await;
        let api = app.api(&user.to_string()).await;
        let (webhook, _) = api.create_webhook(&receiver.url("/"), &[READY]).await;

        platform.payment(user, "ready").await;
        api.wait_for_logs(&webhook, "the first event", |logs| logs.len() == 1)
            .await;

        Running {
            app,
            store,
            receiver,
            api,
            user,
            webhook,
        }
    }

    /// Has every transaction that hands off deliveries execute this when it commits.
    async fn at_commit(&self, what: &str) {
        let sql = format!(
            "create sequence public.commits;
             create function public.at_commit() returns trigger language plpgsql as $$ begin {what}; return null; end $$;
             create constraint trigger at_commit after insert on walhook.handoff
             deferrable initially deferred for each row execute function public.at_commit()"
        );
        run_sql(&self.store, &sql).await;
    }

    async fn events(&self) -> i64 {
        one(&self.store, "select count(*) from walhook.event").await
    }

    /// Waits for `count` entries in the delivery log and asserts that each is a first attempt that
    /// was accepted.
    async fn assert_delivered(&self, count: usize) {
        let logs = self
            .api
            .wait_for_logs(&self.webhook, "all log entries", |logs| logs.len() == count)
            .await;
        assert!(
            logs.iter()
                .all(|line| line["attempt"] == 1 && line["outcome"] == "delivered"),
            "{logs:?}"
        );
        assert_eq!(
            self.api.webhook(&self.webhook).await["success_count"],
            count
        );
    }
}

#[tokio::test]
async fn a_request_is_sent_after_the_commit_that_stores_its_delivery() {
    let running = Running::start().await;
    let holder = running.app.store().await;

    run_sql(&holder, "select pg_advisory_lock(7)").await;
    running.at_commit("perform pg_advisory_xact_lock(7)").await;

    running
        .app
        .platform()
        .await
        .payment(running.user, "ready")
        .await;

    eventually("the commit to wait", async || {
        let waits =
            "select exists (select from pg_locks where locktype = 'advisory' and not granted)";
        let row = running.store.query_one(waits, &[]).await.unwrap();
        row.get::<_, bool>(0).then_some(())
    })
    .await;

    assert_eq!(running.receiver.requests().len(), 1, "the first event's");

    run_sql(&holder, "select pg_advisory_unlock(7)").await;
    running.assert_delivered(2).await;
    assert_eq!(running.events().await, 2);
}

#[tokio::test]
async fn a_failed_commit_sends_nothing() {
    let running = Running::start().await;
    running
        .at_commit(
            "if nextval('public.commits') <= 3 then raise exception 'the disk is full'; end if",
        )
        .await;

    running
        .app
        .platform()
        .await
        .payment(running.user, "ready")
        .await;
    running.assert_delivered(2).await;

    assert_eq!(running.events().await, 2);
    assert_eq!(running.receiver.requests().len(), 2);

    let commits: i64 = one(&running.store, "select last_value from public.commits").await;
    assert_eq!(commits, 4);
}

#[tokio::test]
async fn a_delivery_that_is_accepted_at_once_has_no_row_and_one_that_fails_has() {
    let running = Running::start().await;
    let refuse = "create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'a row'; end $$;
                  create trigger refuse before insert on walhook.delivery execute function public.refuse()";
    run_sql(&running.store, refuse).await;

    let platform = running.app.platform().await;
    platform.payments(running.user, 20).await;
    running.assert_delivered(21).await;

    run_sql(&running.store, "drop trigger refuse on walhook.delivery").await;
    running.receiver.answer_status(500);
    platform.payment(running.user, "ready").await;
    running
        .app
        .wait_for_count(
            "select count(*) from walhook.delivery where attempt = 2 and lease is null",
            1,
        )
        .await;
    let left: i64 = one(&running.store, "select count(*) from walhook.handoff").await;
    assert_eq!(left, 0);
}
