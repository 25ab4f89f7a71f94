//! Redelivery on request, recovery after an inactive time and under kill -9, and the statistics of
//! what was delivered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp, next_id};
use serde_json::{Value, json};
use tokio::sync::Notify;

const EVENTS: &[&str] = &["payment.statement_ready"];

struct Scene {
    platform: Platform,
    user: i64,
    receiver: Receiver,
    api: Api,
    webhook: String,
    secret: String,
}

async fn subscribe(app: &TestApp) -> Scene {
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, secret) = api.create_webhook(&receiver.url("/"), EVENTS).await;

    Scene {
        platform,
        user,
        receiver,
        api,
        webhook,
        secret,
    }
}

impl Scene {
    async fn set_active(&self, active: bool) {
        self.api
            .patch(
                &format!("/webhooks/{}", self.webhook),
                json!({ "active": active }),
            )
            .await
            .expect(200);
    }

    async fn recover(&self, api: &Api, dry_run: bool) -> Value {
        let body = json!({ "since": "2026-01-01T00:00:00Z", "dry_run": dry_run });
        api.post(&format!("/webhooks/{}/recover", self.webhook), body)
            .await
            .expect(if dry_run { 200 } else { 202 })
            .json()
    }

    async fn stats(&self) -> Value {
        self.api
            .get(&format!("/webhooks/{}/stats", self.webhook))
            .await
            .expect(200)
            .json()
    }

    async fn redeliver(&self, log: &Value) -> Value {
        let path = format!(
            "/webhooks/{}/logs/{}/redeliver",
            self.webhook,
            log["id"].as_str().unwrap()
        );
        self.api
            .send("POST", &path, &[], None)
            .await
            .expect(202)
            .json()
    }

    /// Commits `count` payments in one transaction.
    async fn payments(&self, count: usize) -> Vec<i64> {
        let ids: Vec<i64> = (0..count).map(|_| next_id()).collect();
        let insert =
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                      select id, $2, 'INV', 1, 1, 'ready' from unnest($1::bigint[]) as id";
        self.platform.execute(insert, &[&ids, &self.user]).await;

        ids
    }
}

fn rounds(logs: &[Value]) -> HashMap<i64, usize> {
    let mut rounds = HashMap::new();

    for log in logs {
        *rounds.entry(log["round"].as_i64().unwrap()).or_default() += 1;
    }

    rounds
}

#[tokio::test]
async fn a_redelivery_has_its_own_ten_attempts_under_the_same_id_and_the_new_secret() {
    let mut app = TestApp::prepare().await;
    app.set_fast_retries();
    app.setup().await;
    app.run().await;

    let scene = subscribe(&app).await;
    scene.receiver.answer_status(500);
    scene.payments(1).await;

    let ended = |count: usize| {
        move |logs: &[Value]| {
            logs.iter()
                .filter(|log| log["outcome"] == "permanently_failed")
                .count()
                == count
        }
    };

    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "the end", ended(1))
        .await;
    assert_eq!(rounds(&logs), HashMap::from([(1, 10)]));

    let regenerated = scene
        .api
        .send(
            "POST",
            &format!("/webhooks/{}/regenerate-secret", scene.webhook),
            &[],
            None,
        )
        .await;

    let secret = regenerated.expect(200).json()["secret"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_ne!(secret, scene.secret);
    scene.receiver.clear();

    let started = scene.redeliver(&logs[0]).await;
    assert_eq!(
        started,
        json!({ "delivery_id": logs[0]["delivery_id"], "round": 2 })
    );

    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "another end", ended(2))
        .await;
    assert_eq!(rounds(&logs), HashMap::from([(1, 10), (2, 10)]));
    assert!(
        logs.iter()
            .all(|log| log["delivery_id"] == started["delivery_id"])
    );

    let requests = scene.receiver.requests();
    assert_eq!(
        requests.iter().map(Received::attempt).collect::<Vec<_>>(),
        (1..=10).collect::<Vec<_>>()
    );

    for request in &requests {
        assert_eq!(request.delivery(), started["delivery_id"]);
        request.assert_sound(&secret);
    }

    scene.receiver.answer_status(204);
    assert_eq!(scene.redeliver(&logs[15]).await["round"], 3);

    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "a success", |logs| {
            logs[0]["outcome"] == "delivered"
        })
        .await;

    assert_eq!(
        (&logs[0]["round"], &logs[0]["attempt"]),
        (&json!(3), &json!(1))
    );
}

#[tokio::test]
async fn a_redelivery_replaces_a_pending_retry_and_an_attempt_in_flight() {
    let mut app = TestApp::start().await;
    let scene = subscribe(&app).await;

    // The first request fails, so that a retry is pending; the next is answered after the one that
    // follows it.
    let gate = Arc::new(Notify::new());
    scene.receiver.answer_in_turn(&[
        Answer::Status(500),
        Answer::When(gate.clone(), 200),
        Answer::Status(201),
    ]);
    scene.payments(1).await;

    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "the first failure", |logs| logs.len() == 1)
        .await;
    assert_eq!(scene.redeliver(&logs[0]).await["round"], 2);
    scene.receiver.wait_for(2).await;
    assert_eq!(scene.redeliver(&logs[0]).await["round"], 3);
    scene.receiver.wait_for(3).await;
    app.wait_for_count("select count(*) from walhook.delivery", 0)
        .await;
    gate.notify_one();
    app.sidecar()
        .wait_for_metric("walhook_deliveries_in_flight", 0.0)
        .await;

    // Attempts are recorded in the order of their answers: when this one is recorded, the late one
    // was before.
    scene.payments(1).await;
    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "the second payment", |logs| logs.len() >= 4)
        .await;
    let line = |log: &Value| {
        (
            log["round"].as_i64().unwrap(),
            log["response_status"].as_i64().unwrap(),
        )
    };

    let lines: Vec<(i64, i64)> = logs.iter().rev().map(line).collect();
    assert_eq!(
        lines,
        [(1, 500), (2, 200), (3, 201), (1, 201)],
        "the late answer of round 2 is logged"
    );

    // It changes nothing else.
    assert_eq!(scene.api.webhook(&scene.webhook).await["success_count"], 2);
}

#[tokio::test]
async fn a_recovery_leaves_out_what_was_delivered_although_it_was_cancelled() {
    let app = TestApp::start().await;
    let scene = subscribe(&app).await;
    let gate = Arc::new(Notify::new());

    scene.receiver.answer_in_turn(&[
        Answer::When(gate.clone(), 200),
        Answer::Hang,
        Answer::Status(200),
    ]);
    scene.payments(1).await;
    scene.receiver.wait_for(1).await;
    scene.payments(1).await;
    scene.receiver.wait_for(2).await;
    scene.set_active(false).await;
    gate.notify_one();

    let outcome =
        |logs: &[Value], name: &str| logs.iter().filter(|log| log["outcome"] == name).count();
    let both = |logs: &[Value]| outcome(logs, "delivered") == 1 && outcome(logs, "cancelled") == 2;
    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "a late success", both)
        .await;
    let delivered = logs
        .iter()
        .find(|log| log["outcome"] == "delivered")
        .unwrap();

    scene.set_active(true).await;
    assert_eq!(scene.recover(&scene.api, true).await["count"], 1);
    assert_eq!(scene.recover(&scene.api, false).await["count"], 1);
    scene.receiver.wait_for(3).await;

    let requests = scene.receiver.requests();
    let again = requests
        .iter()
        .filter(|request| request.delivery() == delivered["delivery_id"]);
    assert_eq!((requests.len(), again.count()), (3, 1));
}

#[tokio::test]
async fn a_recovery_delivers_cancelled_and_missed_events_once() {
    let app = TestApp::start().await;
    let scene = subscribe(&app).await;

    scene.receiver.answer(|_| Answer::Hang);
    let cancelled = scene.payments(3).await;

    app.wait_for_count("select count(*) from walhook.delivery", 3)
        .await;
    scene.set_active(false).await;

    let missed = scene.payments(2).await;
    app.wait_for_count("select count(*) from walhook.missed_event", 2)
        .await;
    assert_eq!(
        scene.recover(&scene.api, true).await["count"],
        5,
        "a dry run works for an inactive webhook"
    );
    scene.receiver.clear();
    scene.receiver.answer_status(200);
    scene.set_active(true).await;

    let later = scene.payments(1).await;
    scene.receiver.wait_for(1).await;
    assert_eq!(scene.recover(&scene.api, true).await["count"], 5);
    assert_eq!(scene.recover(&scene.api, false).await["count"], 5);
    scene.receiver.wait_for(6).await;
    app.wait_for_count(
        "select count(*) from walhook.attempt where outcome = 'delivered'",
        6,
    )
    .await;
    assert_eq!(scene.recover(&scene.api, false).await["count"], 0);
    app.wait_for_count(
        "select count(*) from walhook.recovery where finished_at is null",
        0,
    )
    .await;

    let mut delivered: Vec<i64> = scene
        .receiver
        .requests()
        .iter()
        .map(|request| request.data()["payment_request_id"].as_i64().unwrap())
        .collect();

    delivered.sort_unstable();
    let expected: Vec<i64> = [cancelled, missed, later].concat();
    assert_eq!(delivered, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_during_a_recovery_loses_and_repeats_nothing() {
    let mut app = TestApp::prepare().await;

    // Leases that the killed process held end after ten seconds more.
    app.set("delivery.timeout", "5s");
    app.setup().await;
    app.run().await;

    let scene = subscribe(&app).await;
    scene.receiver.answer(|_| Answer::Hang);

    let mut payments = scene.payments(1_000).await;
    app.wait_for_count("select count(*) from walhook.delivery", 1_000)
        .await;
    scene.set_active(false).await;
    payments.extend(scene.payments(1_000).await);
    app.wait_for_count("select count(*) from walhook.missed_event", 1_000)
        .await;
    scene.set_active(true).await;
    scene.receiver.clear();
    scene.receiver.answer_status(200);

    let started = scene.recover(&scene.api, false).await;
    assert_eq!(started["count"], 2_000);
    scene.receiver.wait_for(100).await;
    app.kill().await;

    let store = app.store().await;
    let open = "select count(*) from walhook.recovery where finished_at is null";
    let open: i64 = store.query_one(open, &[]).await.unwrap().get(0);

    assert_eq!(open, 1, "the recovery was running");
    app.run().await;

    let ids = |requests: &[Received]| {
        let mut ids: HashMap<i64, HashSet<String>> = HashMap::new();

        for request in requests {
            let payment = request.data()["payment_request_id"].as_i64().unwrap();
            ids.entry(payment)
                .or_default()
                .insert(request.delivery().to_owned());
        }

        ids
    };

    let arrived = ids(&scene.receiver.wait_for_deliveries(2_000).await);
    assert!(
        payments.iter().all(|payment| arrived[payment].len() == 1),
        "one delivery id each"
    );
    app.wait_for_count(
        "select count(*) from walhook.recovery where finished_at is null",
        0,
    )
    .await;
    app.wait_for_count("select count(*) from walhook.delivery", 0)
        .await;

    let one = |query: &'static str| {
        let store = &store;
        async move { store.query_one(query, &[]).await.unwrap().get::<_, i64>(0) }
    };

    assert_eq!(
        one("select recovered from walhook.recovery").await,
        2_000,
        "each was redelivered once"
    );

    // Not the rows of the log: first attempts that were queued when the webhook became inactive may
    // have been sent after it became active again. Such an attempt is logged, but it does not
    // count.
    let successes = "select success_count from walhook.webhook";
    let different =
        "select count(distinct delivery_id) from walhook.attempt where outcome = 'delivered'";
    assert_eq!((one(successes).await, one(different).await), (2_000, 2_000));
}

#[tokio::test]
async fn statistics_count_what_was_delivered() {
    let mut app = TestApp::prepare().await;
    app.set_fast_retries();
    app.setup().await;
    app.run().await;

    let scene = subscribe(&app).await;
    scene
        .api
        .send(
            "POST",
            &format!("/webhooks/{}/test", scene.webhook),
            &[],
            None,
        )
        .await
        .expect(200);

    scene.payments(20).await;
    app.wait_for_count(
        "select count(*) from walhook.attempt where outcome = 'delivered' and not test",
        20,
    )
    .await;
    scene.receiver.answer_status(500);
    scene.payments(1).await;
    app.wait_for_count(
        "select count(*) from walhook.attempt where outcome = 'permanently_failed'",
        1,
    )
    .await;
    scene.receiver.answer(|_| Answer::Hang);
    scene.payments(2).await;
    app.wait_for_count("select count(*) from walhook.delivery", 2)
        .await;
    scene.set_active(false).await;

    let stats = scene.stats().await;

    for part in ["last_24h", "last_30d"] {
        let Value::Object(part) = &stats[part] else {
            panic!("{stats}")
        };

        let counts = ["delivered", "failed", "permanently_failed", "cancelled"]
            .map(|name| part[name].as_u64().unwrap());
        assert_eq!(counts, [20, 9, 1, 2]);
        assert!((part["success_rate"].as_f64().unwrap() - 20.0 / 30.0).abs() < 1e-9);

        let percentile = |name: &str| part["duration_ms"][name].as_u64().unwrap();
        assert!(percentile("p50") <= percentile("p95"), "{stats}");
    }

    let hours = stats["hours"].as_array().unwrap();
    assert_eq!(
        hours
            .iter()
            .map(|hour| hour["delivered"].as_u64().unwrap())
            .sum::<u64>(),
        20
    );

    assert!(
        hours.len() <= 2,
        "this hour, and perhaps the one before it: {stats}"
    );
}
