//! The test operation, with a stand-in for what sends.

use serde_json::{Value, json};

use crate::fixture::Service;

const URL: &str = "https://receiver.example/in";

#[tokio::test]
async fn a_test_sends_the_event_asked_for_or_the_first_subscribed() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed", "payment.statement_ready"]).await;
    let path = format!("/webhooks/{id}/test");
    let first = api.send("POST", &path, &[], None).await.expect(200).json();
    assert_eq!(
        (&first["delivered"], &first["response_status"], &first["duration_ms"]),
        (&json!(false), &json!(500), &json!(31))
    );
    assert_eq!(first["error"], json!({ "kind": "http_status", "message": "it answered 500" }));
    assert!(first["log_id"].is_string());
    api.patch(&format!("/webhooks/{id}"), json!({ "active": false })).await.expect(200);
    let asked = api.post(&path, json!({ "event": "payment.statement_ready" })).await.expect(200).json();
    assert_eq!((&asked["delivered"], &asked["error"]), (&json!(true), &Value::Null));
    let events = service
        .sql
        .query("select kind, user_id, commit_lsn is null from walhook.event order by id", &[])
        .await
        .unwrap();
    let events: Vec<(&str, &str, bool)> = events.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(events, [("delivery.failed", "1", true), ("payment.statement_ready", "1", true)]);
}

#[tokio::test]
async fn a_test_that_cannot_be_made_says_why() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}/test");
    for body in [json!({ "event": "nothing.known" }), json!({ "events": [] }), json!({ "event": null })] {
        api.post(&path, body).await.expect(422);
    }
    api.send("POST", &path, &[("content-type", "text/plain")], Some(&json!("x"))).await.expect(415);
    let ours = api.post(&path, json!({ "event": "transcode.failed" })).await.expect(500);
    assert!(!ours.body.contains("vault"));
}
