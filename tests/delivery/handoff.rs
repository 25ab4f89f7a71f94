//! Requests are sent before the transaction that stores their deliveries commits. However it ends,
//! nothing is lost, invented or counted twice.

use crate::support::{Api, Receiver, TestApp};
use serde_json::json;
use tokio_postgres::Client;

const READY: &str = "payment.statement_ready";

/// An installation that has delivered one event: until then, it hands deliveries off only after the
/// commit.
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

    /// Has every transaction that stores leased deliveries execute this when it commits.
    async fn at_commit(&self, what: &str) {
        let sql = format!(
            "create sequence public.commits;
             create function public.at_commit() returns trigger language plpgsql as $$ begin {what}; return null; end $$;
             create constraint trigger at_commit after insert on walhook.delivery
             deferrable initially deferred for each row when (new.lease is not null) execute function public.at_commit()"
        );
        self.store.batch_execute(&sql).await.unwrap();
    }

    async fn events(&self) -> i64 {
        self.store
            .query_one("select count(*) from walhook.event", &[])
            .await
            .unwrap()
            .get(0)
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

    async fn redeliver_first(&self) {
        let logs = self.api.logs(&self.webhook).await;
        let first = logs.last().expect("the first event's")["id"]
            .as_str()
            .expect("an id")
            .to_owned();

        self.api
            .post(
                &format!("/webhooks/{}/logs/{first}/redeliver", self.webhook),
                json!({}),
            )
            .await
            .expect(202);
    }
}

#[tokio::test]
async fn an_answer_before_the_commit_is_recorded_after_it_and_delays_no_other() {
    let running = Running::start().await;
    let holder = running.app.store().await;

    holder
        .batch_execute("select pg_advisory_lock(7)")
        .await
        .unwrap();
    running.at_commit("perform pg_advisory_xact_lock(7)").await;

    running
        .app
        .platform()
        .await
        .payment(running.user, "ready")
        .await;

    running.receiver.wait_for(2).await;

    // A later answer is recorded before it.
    running.redeliver_first().await;
    running.assert_delivered(2).await;
    assert_eq!(running.events().await, 1, "the second is not committed yet");

    holder
        .batch_execute("select pg_advisory_unlock(7)")
        .await
        .unwrap();
    running.assert_delivered(3).await;
    assert_eq!(running.events().await, 2);
    assert_eq!(
        running.receiver.requests().len(),
        3,
        "no request was repeated"
    );
}

#[tokio::test]
async fn an_answer_before_a_failed_commit_is_dropped_and_the_request_repeated_once_under_the_same_id()
 {
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
    let requests = running.receiver.requests();
    let [_, before, after] = requests.as_slice() else {
        panic!("{} requests", requests.len())
    };
    assert_eq!(before.delivery(), after.delivery());
    assert_eq!(
        before.header("x-webhook-event-id"),
        after.header("x-webhook-event-id")
    );
    assert_eq!(before.data(), after.data());
    let commits: i64 = running
        .store
        .query_one("select last_value from public.commits", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(commits, 4);
}
