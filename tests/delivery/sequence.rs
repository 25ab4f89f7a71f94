//! `X-Webhook-Sequence`: each webhook's deliveries are numbered without gaps, in the order of the
//! events' commits.

use std::collections::BTreeMap;

use crate::support::{Answer, Api, Received, Receiver, TestApp, next_id};
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

#[tokio::test]
async fn a_delivery_has_its_number_in_every_attempt_and_in_the_log_and_a_recovered_event_gets_the_next()
 {
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
    assert_eq!(
        requests
            .iter()
            .map(|request| (sequence(request), request.attempt()))
            .collect::<Vec<_>>(),
        [(1, 1), (1, 2), (1, 3)]
    );
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
    // A test has none.
    let tested = api
        .post(&format!("/webhooks/{second}/test"), json!({}))
        .await
        .expect(200)
        .json();
    let request = &other.wait_for(2).await[1];
    assert_eq!(
        (
            request.header("x-webhook-test"),
            request.headers.get("x-webhook-sequence")
        ),
        ("true", None)
    );
    let entry = api
        .get(&format!(
            "/webhooks/{second}/logs/{}",
            tested["log_id"].as_str().unwrap()
        ))
        .await
        .expect(200)
        .json();
    assert_eq!(entry["sequence"], Value::Null);
    log(&api, &webhook, 4).await;
    log(&api, &second, 2).await;
    // Missed events take no number until they are recovered. A redelivery keeps its number.
    api.patch(&format!("/webhooks/{webhook}"), json!({ "active": false }))
        .await
        .expect(200);
    platform
        .transaction(&format!(
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         select id, {user}, 'M' || id, 1, 1, 'ready' from unnest(array[{}, {}, {}]) as id",
            next_id(),
            next_id(),
            next_id()
        ))
        .await;
    app.wait_for_count("select count(*) from walhook.missed_event", 3)
        .await;
    api.patch(&format!("/webhooks/{webhook}"), json!({ "active": true }))
        .await
        .expect(200);
    platform.payment(user, "ready").await;
    assert_eq!(sequence(&receiver.wait_for(5).await[4]), 3);
    let body = json!({ "since": "2026-01-01T00:00:00Z" });
    api.post(&format!("/webhooks/{webhook}/recover"), body)
        .await
        .expect(202);
    let recovered: BTreeMap<i64, String> = receiver.wait_for(8).await[5..]
        .iter()
        .map(|request| {
            (
                sequence(request),
                request.data()["invoice_number"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            )
        })
        .collect();
    assert_eq!(recovered.keys().copied().collect::<Vec<_>>(), [4, 5, 6]);
    assert!(
        recovered.values().is_sorted(),
        "in the order of the changes: {recovered:?}"
    );
    let path = format!(
        "/webhooks/{webhook}/logs/{}/redeliver",
        logs[0]["id"].as_str().unwrap()
    );
    api.send("POST", &path, &[], None).await.expect(202);
    let again = &receiver.wait_for(9).await[8];
    assert_eq!(
        (sequence(again), again.delivery()),
        (1, requests[0].delivery())
    );
    let entry = api
        .get(&format!(
            "/webhooks/{webhook}/logs/{}",
            logs[0]["id"].as_str().unwrap()
        ))
        .await
        .expect(200)
        .json();
    assert_eq!(entry["request_headers"]["X-Webhook-Sequence"], "1");
}
