//! `X-Webhook-Sequence`: each webhook's deliveries are numbered without gaps, in the order of the
//! events' commits.

use std::collections::BTreeMap;

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp, next_id};
use serde_json::{Value, json};

const EVENTS: &[&str] = &["payment.statement_ready"];

fn sequence(request: &Received) -> i64 {
    request
        .header("x-webhook-sequence")
        .parse()
        .expect("a number")
}

async fn log(api: &Api, webhook: &str, count: usize) -> Vec<Value> {
    api.wait_for_logs(webhook, &format!("{count} entries"), |logs| {
        logs.len() >= count
    })
    .await
}

/// Returns the entry of the delivery log with this id.
async fn entry(api: &Api, webhook: &str, id: &Value) -> Value {
    let path = format!("/webhooks/{webhook}/logs/{}", id.as_str().unwrap());
    api.get(&path).await.expect(200).json()
}

/// Makes three payments ready in one transaction.
async fn pay_three(platform: &Platform, user: i64) {
    let [one, two, three] = [next_id(), next_id(), next_id()];
    let insert = format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         select id, {user}, 'M' || id, 1, 1, 'ready' from unnest(array[{one}, {two}, {three}]) as id"
    );

    platform.transaction(&insert).await;
}

#[tokio::test]
async fn a_delivery_has_its_number_in_every_attempt_and_in_the_log_and_a_test_has_none() {
    let app = TestApp::start_with(|app| app.set_fast_retries()).await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let other = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api.create_webhook(&receiver.url("/"), EVENTS).await;

    receiver.answer_in_turn(&[
        Answer::Status(500),
        Answer::Status(500),
        Answer::Status(200),
    ]);
    platform.payment(user, "ready").await;

    let requests = receiver.wait_for(3).await;
    let attempts = requests
        .iter()
        .map(|request| (sequence(request), request.attempt()));
    assert_eq!(attempts.collect::<Vec<_>>(), [(1, 1), (1, 2), (1, 3)]);

    let logs = log(&api, &webhook, 3).await;
    assert!(logs.iter().all(|entry| entry["sequence"] == 1), "{logs:?}");
    assert_eq!(
        logs[0]["event_id"],
        requests[0].header("x-webhook-event-id")
    );

    // Another webhook has numbers of its own, and an event that is not subscribed to takes none.
    let (second, _) = api.create_webhook(&other.url("/"), EVENTS).await;
    platform.payment(user, "draft").await;
    platform.payment(user, "ready").await;
    assert_eq!(sequence(&receiver.wait_for(4).await[3]), 2);
    assert_eq!(sequence(&other.wait_for(1).await[0]), 1);

    let tested = api
        .post(&format!("/webhooks/{second}/test"), json!({}))
        .await
        .expect(200)
        .json();
    let test = &other.wait_for(2).await[1];
    assert_eq!(test.header("x-webhook-test"), "true");
    assert_eq!(test.headers.get("x-webhook-sequence"), None);
    assert_eq!(
        entry(&api, &second, &tested["log_id"]).await["sequence"],
        Value::Null
    );
}

#[tokio::test]
async fn a_missed_event_gets_the_next_number_when_it_is_recovered_and_a_redelivery_keeps_its_own() {
    let app = TestApp::start_with(|app| app.set_fast_retries()).await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api.create_webhook(&receiver.url("/"), EVENTS).await;
    let path = format!("/webhooks/{webhook}");

    platform.payment(user, "ready").await;
    let first = receiver.wait_for(1).await.remove(0);
    let logs = log(&api, &webhook, 1).await;

    api.patch(&path, json!({ "active": false }))
        .await
        .expect(200);
    pay_three(&platform, user).await;
    app.wait_for_count("select count(*) from walhook.missed_event", 3)
        .await;

    api.patch(&path, json!({ "active": true }))
        .await
        .expect(200);
    platform.payment(user, "ready").await;
    assert_eq!(sequence(&receiver.wait_for(2).await[1]), 2);

    let body = json!({ "since": "2026-01-01T00:00:00Z" });
    api.post(&format!("{path}/recover"), body).await.expect(202);

    let received = receiver.wait_for(5).await;
    let recovered: BTreeMap<i64, String> = received[2..]
        .iter()
        .map(|request| {
            let invoice = request.data()["invoice_number"]
                .as_str()
                .unwrap()
                .to_owned();
            (sequence(request), invoice)
        })
        .collect();
    assert_eq!(recovered.keys().copied().collect::<Vec<_>>(), [3, 4, 5]);
    assert!(
        recovered.values().is_sorted(),
        "in the order of the changes: {recovered:?}"
    );

    let redeliver = format!("{path}/logs/{}/redeliver", logs[0]["id"].as_str().unwrap());
    api.send("POST", &redeliver, &[], None).await.expect(202);
    let again = &receiver.wait_for(6).await[5];
    assert_eq!((sequence(again), again.delivery()), (1, first.delivery()));

    let logged = entry(&api, &webhook, &logs[0]["id"]).await;
    assert_eq!(logged["request_headers"]["X-Webhook-Sequence"], "1");
}
