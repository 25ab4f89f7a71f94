//! Deliveries as receivers and API clients see them: attempts, signatures, the delivery log, and
//! isolation of users.

use std::collections::HashSet;

use crate::support::{Answer, Platform, Received, Receiver, TestApp, one};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::Sha256;

/// The signature of Standard Webhooks, computed from the documentation alone.
fn standard_signature(secret: &str, received: &Received) -> String {
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap())
        .unwrap();
    let mac = Hmac::<Sha256>::new_from_slice(&key)
        .unwrap()
        .chain_update(received.header("webhook-id"))
        .chain_update(".")
        .chain_update(received.header("webhook-timestamp"))
        .chain_update(".")
        .chain_update(&received.body);

    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// Starts a sidecar that makes all attempts of a delivery within a second.
async fn with_fast_retries() -> TestApp {
    TestApp::start_with(|app| app.set_fast_retries()).await
}

#[tokio::test]
async fn a_test_updates_last_triggered_at_and_no_counter() {
    let app = with_fast_retries().await;
    let receiver = Receiver::start().await;
    let api = app.api("7").await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/hook"), &["payment.statement_ready"])
        .await;

    assert!(api.webhook(&webhook).await["last_triggered_at"].is_null());

    for status in [200, 500] {
        receiver.answer_status(status);
        api.post(&format!("/webhooks/{webhook}/test"), json!({}))
            .await
            .expect(200);

        let logs = api.logs(&webhook).await;
        let called = api.webhook(&webhook).await;
        assert_eq!(
            called["last_triggered_at"], logs[0]["timestamp"],
            "{called}"
        );

        for counter in ["success_count", "failure_count", "consecutive_failures"] {
            assert_eq!(called[counter], 0, "{counter}");
        }
    }
}

#[tokio::test]
async fn ten_attempts_have_ten_fresh_timestamps_and_one_delivery_id() {
    let app = with_fast_retries().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;

    receiver.answer_status(500);
    let api = app.api(&user.to_string()).await;
    let (webhook, secret) = api
        .create_webhook(&receiver.url("/hook"), &["payment.statement_ready"])
        .await;

    platform.payment(user, "ready").await;

    let ends = |logs: &[serde_json::Value]| logs.len() == 10;
    let logs = api.wait_for_logs(&webhook, "ten attempts", ends).await;
    let received = receiver.requests();

    assert_eq!(received.len(), 10);
    let distinct = |header: &str| {
        received
            .iter()
            .map(|request| request.header(header).to_owned())
            .collect::<HashSet<_>>()
    };

    for request in &received {
        request.assert_sound(&secret);
        assert_eq!(
            request.header("webhook-signature"),
            standard_signature(&secret, request)
        );
        assert_eq!(request.header("webhook-id"), request.delivery());
    }

    assert_eq!(distinct("x-webhook-timestamp").len(), 10);
    assert_eq!(distinct("x-webhook-delivery").len(), 1);
    assert_eq!(distinct("x-webhook-event-id").len(), 1);
    assert_eq!(distinct("x-webhook-occurred-at").len(), 1);

    let attempts: Vec<u32> = received.iter().map(Received::attempt).collect();
    assert_eq!(attempts, (1..=10).collect::<Vec<_>>());

    // Newest first. The last attempt is final.
    for (index, log) in logs.iter().rev().enumerate() {
        assert_eq!(log["attempt"], index + 1);
        assert_eq!(log["round"], 1);
        assert_eq!(log["response_status"], 500);
        assert_eq!(log["event_type"], "payment.statement_ready");
        assert_eq!(log["delivery_id"], received[0].delivery());
        assert_eq!(log["error"]["kind"], "http_status");

        assert_eq!(
            log["outcome"],
            if index == 9 {
                "permanently_failed"
            } else {
                "failed"
            }
        );

        assert_eq!(
            log["timestamp"],
            received[index].header("x-webhook-timestamp")
        );
        assert!(log["duration_ms"].is_u64(), "{log}");
    }

    let webhook = api.webhook(&webhook).await;
    assert_eq!(webhook["failure_count"], 10);
    assert_eq!(webhook["success_count"], 0);
    assert_eq!(webhook["last_triggered_at"], logs[0]["timestamp"]);

    let store = app.store().await;
    let left: i64 = one(&store, "select count(*) from walhook.pending").await;
    assert_eq!(
        left, 0,
        "finished deliveries are removed from the table of pending ones"
    );
}

#[tokio::test]
async fn a_receiver_that_recovers_gets_the_event_once_and_consecutive_failures_are_reset() {
    let app = with_fast_retries().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;

    receiver.answer_in_turn(&[Answer::Reset, Answer::Status(301), Answer::Status(204)]);
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/hook"), &["payment.statement_ready"])
        .await;

    platform.payment(user, "ready").await;
    let logs = api
        .wait_for_logs(&webhook, "a success", |logs| {
            logs.iter().any(|log| log["outcome"] == "delivered")
        })
        .await;
    let attempts: Vec<(&str, Option<&str>)> = logs
        .iter()
        .rev()
        .map(|log| {
            (
                log["outcome"].as_str().unwrap(),
                log["error"]["kind"].as_str(),
            )
        })
        .collect();

    assert_eq!(
        attempts,
        [
            ("failed", Some("connection_reset")),
            ("failed", Some("http_status")),
            ("delivered", None)
        ]
    );

    let webhook = api.webhook(&webhook).await;
    assert_eq!(
        (&webhook["success_count"], &webhook["failure_count"]),
        (&1.into(), &2.into())
    );
    assert_eq!(webhook["consecutive_failures"], 0);
}

#[tokio::test]
async fn a_hanging_receiver_does_not_delay_others() {
    let app = TestApp::start_with(|app| app.set("delivery.timeout", "120s")).await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let hanging = Receiver::start().await;
    let quick = Receiver::start().await;

    hanging.answer(|_| Answer::Hang);
    let api = app.api(&user.to_string()).await;

    api.create_webhook(&hanging.url("/"), &["payment.statement_ready"])
        .await;
    api.create_webhook(&quick.url("/"), &["payment.statement_ready"])
        .await;

    for _ in 0..200 {
        platform.payment(user, "ready").await;
    }

    quick.wait_for(200).await;

    // The hanging receiver never had more requests in flight than the limit of one webhook.
    let cap = walhook::config::Delivery::default().per_webhook_concurrency;
    assert!(
        hanging.requests().len() <= cap,
        "{}",
        hanging.requests().len()
    );
}

/// The process caches webhooks, and must never use an outdated one.
#[tokio::test]
async fn a_change_to_a_webhook_applies_to_the_next_event() {
    const READY: &str = "payment.statement_ready";
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let store = app.store().await;
    let receiver = Receiver::start().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;

    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;

    let (webhook, _) = api.create_webhook(&receiver.url("/first"), &[READY]).await;
    let path = format!("/webhooks/{webhook}");

    // A change, and the path to which the next event is delivered.
    let changes = [
        (json!({ "name": "the same" }), Some("/first")),
        (json!({ "url": receiver.url("/second") }), Some("/second")),
        (json!({ "events": ["release.review.status_changed"] }), None),
        (json!({ "events": [READY] }), Some("/second")),
        (json!({ "active": false }), None),
        (json!({ "active": true }), Some("/second")),
    ];

    let mut stored = 1;
    let mut expected = Vec::new();

    for (change, goes_to) in changes {
        api.patch(&path, change).await.expect(200);
        platform.payment(user, "ready").await;
        stored += 1;
        app.wait_for_events(stored).await;
        expected.extend(goes_to);

        // Otherwise the next change could overtake an attempt that is not recorded yet: a
        // deactivation cancels it, and the log gets an entry for the cancellation and one for the
        // attempt.
        api.wait_for_logs(&webhook, "every attempt", |logs| {
            logs.len() == expected.len()
        })
        .await;
    }

    let missed: i64 = one(&store, "select count(*) from walhook.missed_event").await;
    assert_eq!(missed, 1, "the event that occurred while it was inactive");
    api.delete(&path).await.expect(204);
    platform.payment(user, "ready").await;
    app.wait_for_events(stored + 1).await;

    let pending: i64 = one(&store, "select count(*) from walhook.pending").await;
    assert_eq!(pending, 0, "nothing is pending for a deleted webhook");

    let received = receiver.requests();
    let paths: Vec<&str> = received.iter().map(|request| &*request.path).collect();
    assert_eq!(paths, expected);
}

/// Raises an event, an unrouted event, an add-on and two ledger states in one transaction. Returns
/// how many of each were stored in the transaction of the event.
async fn stored_together(app: &TestApp, platform: &Platform, user: i64, nobodys: i64) -> Vec<i64> {
    let store = app.store().await;
    let before: i64 = one(&store, "select count(*) from walhook.event").await;
    let release = platform.release(nobodys).await;
    let payment = platform.payment(user, "draft").await;
    let other = platform.user(&[]).await;

    platform
        .transaction(&format!(
            "update payment set status = 'ready' where id = {payment};
             update release set review_status = 'to_review' where id = {release};
             insert into user_addon (user_id, addon) values ({other}, 'preflight_qc')"
        ))
        .await;

    app.wait_for_events(before as usize + 1).await;
    let newest = "select xmin::text from walhook.event order by id desc limit 1";
    let newest: String = one(&store, newest).await;
    let together = "select (select count(*) from walhook.event where xmin::text = $1),
        (select count(*) from walhook.unrouted_event where xmin::text = $1),
        (select count(*) from walhook.user_addon where xmin::text = $1),
        (select count(*) from walhook.last_seen where xmin::text = $1)";
    let row = store.query_one(together, &[&newest]).await.unwrap();

    (0..4).map(|column| row.get(column)).collect()
}

/// All rows of a batch must be written in one transaction, even on a connection that has no
/// prepared statements yet.
#[tokio::test]
async fn a_batch_is_stored_in_one_transaction() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let nobodys = platform.label(user).await;

    platform
        .execute("update label set user_id = null where id = $1", &[&nobodys])
        .await;
    let mut found = Vec::new();

    // A slow server sends a transaction in several batches. Not in each of these.
    for _ in 0..5 {
        found = vec![
            stored_together(&app, &platform, user, nobodys).await,
            stored_together(&app, &platform, user, nobodys).await,
        ];

        if found == [[1, 1, 1, 2], [1, 1, 1, 2]] {
            return;
        }

        app.restart().await;
    }

    panic!(
        "expected one event, one unrouted event, one add-on and two ledger states, found {found:?}"
    );
}
