//! Replays of stored events to a new webhook: behind fresh deliveries, and under kill -9.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp, next_id};

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
        let payments = pay(&platform, user, count).await;

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

/// Commits `count` payments in one transaction.
async fn pay(platform: &Platform, user: i64, count: usize) -> Vec<i64> {
    let ids: Vec<i64> = (0..count).map(|_| next_id()).collect();
    let insert = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                  select id, $2, 'INV', 1, 1, 'ready' from unnest($1::bigint[]) as id";
    platform.execute(insert, &[&ids, &user]).await;
    ids
}

fn payment(request: &Received) -> i64 {
    request.data()["payment_request_id"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_during_a_replay_skips_nothing_and_changes_no_delivery_id() {
    let mut app = TestApp::prepare().await;

    // Leases that the killed process held end after ten seconds more.
    app.set("delivery.timeout", "5s");
    app.setup().await;
    app.run().await;

    let scene = Scene::start(&app, 2_000).await;
    let job = scene.replay().await;

    scene.receiver.wait_for(200).await;
    app.kill().await;

    let store = app.store().await;
    let open = "select count(*) from walhook.recovery where finished_at is null";
    let open: i64 = store.query_one(open, &[]).await.unwrap().get(0);

    assert_eq!(open, 1, "the replay was running");

    // Two replicas continue.
    let replica = app.replica(&["--roles", "deliver"]).await;
    app.run().await;

    let mut ids: HashMap<i64, HashSet<String>> = HashMap::new();

    for request in &scene.receiver.wait_for_deliveries(2_000).await {
        ids.entry(payment(request))
            .or_default()
            .insert(request.delivery().to_owned());
    }

    assert!(
        scene.payments.iter().all(|payment| ids[payment].len() == 1),
        "one delivery id each"
    );
    app.wait_for_count(
        "select count(*) from walhook.recovery where finished_at is null",
        0,
    )
    .await;
    app.wait_for_count("select count(*) from walhook.delivery", 0)
        .await;

    let api = scene.api.at(&app.sidecar().api_url);
    let shown = api
        .get(&format!("/webhooks/{}/jobs/{job}", scene.webhook))
        .await
        .expect(200)
        .json();

    assert_eq!(
        (&shown["state"], &shown["done"], &shown["total"]),
        (&json!("finished"), &json!(2_000), &json!(2_000))
    );
    assert_eq!(api.webhook(&scene.webhook).await["success_count"], 2_000);
    replica.kill().await;
}

#[tokio::test]
async fn a_fresh_event_overtakes_a_running_replay() {
    let mut app = TestApp::prepare().await;
    app.set("delivery.per_webhook_concurrency", "1");
    app.setup().await;
    app.run().await;

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

    let fresh = pay(&scene.platform, scene.user, 1).await[0];
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
