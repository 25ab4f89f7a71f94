//! The test operation, with a stand-in for the sending side.

use serde_json::{Value, json};

use crate::fixture::Service;

const URL: &str = "https://receiver.example/in";

#[tokio::test]
async fn a_test_sends_the_requested_event_or_the_first_subscribed_one() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api
        .create_webhook(URL, &["delivery.failed", "payment.statement_ready"])
        .await;
    let path = format!("/webhooks/{id}/test");
    let first = api.send("POST", &path, &[], None).await.expect(200).json();

    assert_eq!(
        (
            &first["delivered"],
            &first["response_status"],
            &first["duration_ms"]
        ),
        (&json!(false), &json!(500), &json!(31))
    );

    assert_eq!(
        first["error"],
        json!({ "kind": "http_status", "message": "it answered 500" })
    );
    assert!(first["log_id"].is_string());
    api.patch(&format!("/webhooks/{id}"), json!({ "active": false }))
        .await
        .expect(200);

    let other = api
        .post(&path, json!({ "event": "payment.statement_ready" }))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&other["delivered"], &other["error"]),
        (&json!(true), &Value::Null)
    );

    let events = service
        .sql
        .query(
            "select kind, user_id, commit_lsn is null from walhook.event order by id",
            &[],
        )
        .await
        .unwrap();

    let events: Vec<(&str, &str, bool)> = events
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    assert_eq!(
        events,
        [
            ("delivery.failed", "1", true),
            ("payment.statement_ready", "1", true)
        ]
    );
}

#[tokio::test]
async fn a_test_that_cannot_be_sent_is_a_problem() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}/test");

    for body in [
        json!({ "event": "nothing.known" }),
        json!({ "events": [] }),
        json!({ "event": null }),
    ] {
        api.post(&path, body).await.expect(422);
    }

    api.send(
        "POST",
        &path,
        &[("content-type", "text/plain")],
        Some(&json!("x")),
    )
    .await
    .expect(415);

    let broken = api
        .post(&path, json!({ "event": "transcode.failed" }))
        .await
        .expect(500);
    assert!(
        !broken.body.contains("vault"),
        "internal texts are not shown: {broken:?}"
    );
}

#[tokio::test]
async fn a_user_may_send_a_hundred_tests_at_once_and_then_one_a_minute() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let other = service.api("2").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let (others, _) = other.create_webhook(URL, &["delivery.failed"]).await;

    // On a slow machine, minutes may pass meanwhile.
    let mut sent = 0;
    let rejected = loop {
        match api.post(&format!("/webhooks/{id}/test"), json!({})).await {
            answer if answer.status == 200 => sent += 1,
            answer => break answer.expect(429),
        }

        assert!(sent < 130, "no limit");
    };

    assert!(sent >= 100, "{sent}");
    assert_eq!(rejected.json()["type"], "/problems/rate-limited");

    let wait: u64 = rejected.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");

    let stored = service
        .sql
        .query_one("select count(*) from walhook.event", &[])
        .await
        .unwrap();
    assert_eq!(stored.get::<_, i64>(0), sent);
    other
        .post(&format!("/webhooks/{others}/test"), json!({}))
        .await
        .expect(200);
}
