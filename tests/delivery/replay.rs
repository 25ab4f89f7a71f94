//! Replays of stored events to a new webhook: behind fresh deliveries, and under kill -9.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp};

const EVENTS: &[&str] = &["payment.statement_ready"];

/// A user with events from before the webhook was created.
struct Scene {
    platform: Platform,
    user: i64,
    receiver: Receiver,
    api: Api,
    webhook: String,
    payments: Vec<i64>,
}

impl Scene {
    async fn start(app: &TestApp, count: usize) -> Scene {
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let payments = platform.payments(user, count).await;

        app.wait_for_events(count).await;
        let receiver = Receiver::start().await;
        let api = app.api(&user.to_string()).await;
        let (webhook, _) = api.create_webhook(&receiver.url("/"), EVENTS).await;

        Scene {
            platform,
            user,
            receiver,
            api,
            webhook,
            payments,
        }
    }

    async fn replay(&self) -> String {
        let body = json!({ "since": "2026-01-01T00:00:00Z" });
        let started = self
            .api
            .post(&format!("/webhooks/{}/replay", self.webhook), body)
            .await
            .expect(202)
            .json();

        assert_eq!(
            (&started["count"], &started["exact"]),
            (&json!(self.payments.len()), &json!(true))
        );
        started["job_id"].as_str().unwrap().to_owned()
    }
}

fn payment(request: &Received) -> i64 {
    request.data()["payment_request_id"].as_i64().unwrap()
}

#[tokio::test]
async fn a_fresh_event_overtakes_a_running_replay() {
    let app = TestApp::start_with(|app| app.set("delivery.per_webhook_concurrency", "1")).await;

    let scene = Scene::start(&app, 300).await;

    // Every request waits for the one before it: replayed deliveries that were queued would delay a
    // fresh one. One of them lasts until the fresh event is stored.
    let gate = Arc::new(Notify::new());
    let mut answered = 0;
    let held = gate.clone();

    scene.receiver.answer(move |_| {
        answered += 1;

        if answered == 20 {
            Answer::When(held.clone(), 200)
        } else {
            Answer::After(Duration::from_millis(10), 200)
        }
    });

    let job = scene.replay().await;
    scene.receiver.wait_for(20).await;

    let fresh = scene.platform.payments(scene.user, 1).await[0];
    app.wait_for_events(301).await;
    gate.notify_one();

    let requests = scene
        .receiver
        .wait_until("the fresh event", |all| {
            all.iter().any(|one| payment(one) == fresh)
        })
        .await;

    let shown = scene
        .api
        .get(&format!("/webhooks/{}/jobs/{job}", scene.webhook))
        .await
        .expect(200)
        .json();

    assert_eq!(shown["state"], "running", "{shown}");
    let before = requests
        .iter()
        .position(|request| payment(request) == fresh)
        .unwrap();

    assert!(before < 250, "{before} replayed deliveries came first");
    let all = scene.receiver.wait_for_deliveries(301).await;
    let different: HashSet<i64> = all.iter().map(payment).collect();
    assert_eq!(
        (all.len(), different.len()),
        (301, 301),
        "each arrives once"
    );
}
