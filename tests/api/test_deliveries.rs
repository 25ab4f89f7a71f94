//! The test operation, with a stand-in for the sending side.

use serde_json::{Value, json};

use crate::fixture::{PLAIN_URL, Service};
use crate::support::Api;

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

#[tokio::test]
async fn a_receiver_is_tested_before_its_webhook_is_saved_and_nothing_is_stored() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let test = async |body: Value| api.post("/webhooks/test", body).await;

    let failed = json!({ "url": URL, "event": "delivery.failed", "headers": { "X-Key": "v" } });
    assert_eq!(
        test(failed).await.expect(200).json(),
        json!({
            "delivered": false, "response_status": 500, "duration_ms": 31,
            "error": { "kind": "http_status", "message": "it answered 500" },
        })
    );
    let delivered = test(json!({ "url": URL })).await.expect(200).json();
    assert_eq!(delivered["delivered"], true);

    // The checks are those of a webhook's settings.
    for (body, pointer) in [
        (json!({}), "/url"),
        (json!({ "url": PLAIN_URL }), "/url"),
        (json!({ "url": "https://a b/" }), "/url"),
        (json!({ "url": URL, "event": "x" }), "/event"),
        (
            json!({ "url": URL, "headers": { "Host": "x" } }),
            "/headers/Host",
        ),
        (
            json!({ "url": URL, "headers": { "X-Key": "***" } }),
            "/headers/X-Key",
        ),
        (json!({ "url": URL, "name": "x" }), "/name"),
    ] {
        let problem = test(body.clone()).await.expect(422).json();
        assert_eq!(
            problem["errors"][0]["pointer"], pointer,
            "{body}: {problem}"
        );
    }

    assert!(api.webhooks().await.is_empty());
    let stored =
        "select (select count(*) from walhook.event) + (select count(*) from walhook.attempt)
                      + (select count(*) from walhook.webhook) + (select count(*) from walhook.audit
                         where action like 'webhook.%')";
    let stored = service.sql.query_one(stored, &[]).await.unwrap();
    assert_eq!(stored.get::<_, i64>(0), 0);
}

/// A token that may only read sends nothing.
#[tokio::test]
async fn tests_before_saving_share_the_budget_of_all_tests() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;

    let mut sent = 0;
    let rejected = loop {
        match api.post("/webhooks/test", json!({ "url": URL })).await {
            answer if answer.status == 200 => sent += 1,
            answer => break answer.expect(429),
        }

        assert!(sent < 130, "no limit");
    };

    assert!(rejected.header("retry-after").is_some());
    // On a slow machine, another one may have become free meanwhile.
    let path = format!("/webhooks/{id}/test");
    let answers = [
        api.post(&path, json!({})).await.status,
        api.post(&path, json!({})).await.status,
    ];
    assert!(answers.contains(&429), "{answers:?}");

    let read_only = json!({ "name": "x", "scope": "read_only" });
    let token = api.post("/tokens", read_only).await.expect(201).json();
    let reader = Api::new(&service.url, token["token"].as_str().unwrap());
    let refused = reader.post("/webhooks/test", json!({ "url": URL })).await;
    assert_eq!(refused.status, 403);
}
