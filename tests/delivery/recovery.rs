//! Redelivery on request, recovery after an inactive time and under kill -9, and the statistics of what was delivered.

use std::collections::{HashMap, HashSet};

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp, eventually, next_id};
use serde_json::{Value, json};

const EVENTS: &[&str] = &["payment.statement_ready"];

struct Subscribed {
    platform: Platform,
    user: i64,
    receiver: Receiver,
    api: Api,
    webhook: String,
    secret: String,
}

async fn subscribe(app: &TestApp) -> Subscribed {
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, secret) = api.create_webhook(&receiver.url("/"), EVENTS).await;
    Subscribed { platform, user, receiver, api, webhook, secret }
}

impl Subscribed {
    async fn set_active(&self, active: bool) {
        self.api.patch(&format!("/webhooks/{}", self.webhook), json!({ "active": active })).await.expect(200);
    }

    async fn recover(&self, api: &Api, dry_run: bool) -> Value {
        let body = json!({ "since": "2026-01-01T00:00:00Z", "dry_run": dry_run });
        api.post(&format!("/webhooks/{}/recover", self.webhook), body).await.expect(202).json()
    }

    async fn stats(&self) -> Value {
        self.api.get(&format!("/webhooks/{}/stats", self.webhook)).await.expect(200).json()
    }

    async fn redeliver(&self, log: &Value) -> Value {
        let path = format!("/webhooks/{}/logs/{}/redeliver", self.webhook, log["id"].as_str().unwrap());
        self.api.send("POST", &path, &[], None).await.expect(202).json()
    }

    /// Commits `count` payments in one transaction.
    async fn payments(&self, count: usize) -> Vec<i64> {
        let ids: Vec<i64> = (0..count).map(|_| next_id()).collect();
        let insert = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
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
    let it = subscribe(&app).await;
    it.receiver.answer_status(500);
    it.payments(1).await;
    let ended = |count: usize| {
        move |logs: &[Value]| logs.iter().filter(|log| log["outcome"] == "permanently_failed").count() == count
    };
    let logs = it.api.wait_for_logs(&it.webhook, "the end", ended(1)).await;
    assert_eq!(rounds(&logs), HashMap::from([(1, 10)]));
    let regenerated = it.api.send("POST", &format!("/webhooks/{}/regenerate-secret", it.webhook), &[], None).await;
    let secret = regenerated.expect(200).json()["secret"].as_str().unwrap().to_owned();
    assert_ne!(secret, it.secret);
    it.receiver.clear();
    let begun = it.redeliver(&logs[0]).await;
    assert_eq!(begun, json!({ "delivery_id": logs[0]["delivery_id"], "round": 2 }));
    let logs = it.api.wait_for_logs(&it.webhook, "another end", ended(2)).await;
    assert_eq!(rounds(&logs), HashMap::from([(1, 10), (2, 10)]));
    assert!(logs.iter().all(|log| log["delivery_id"] == begun["delivery_id"]));
    let requests = it.receiver.requests();
    assert_eq!(requests.iter().map(Received::attempt).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    for request in &requests {
        assert_eq!(request.delivery(), begun["delivery_id"]);
        request.assert_sound(&secret);
    }
    it.receiver.answer_status(204);
    assert_eq!(it.redeliver(&logs[15]).await["round"], 3);
    let logs = it.api.wait_for_logs(&it.webhook, "a success", |logs| logs[0]["outcome"] == "delivered").await;
    assert_eq!((&logs[0]["round"], &logs[0]["attempt"]), (&json!(3), &json!(1)));
}

#[tokio::test]
async fn a_redelivery_replaces_a_pending_retry_and_an_attempt_in_flight() {
    let mut app = TestApp::start().await;
    let it = subscribe(&app).await;
    // The first request fails, so that a retry is pending; the next hangs until the one after it was answered.
    it.receiver.answer_in_turn(&[
        Answer::Status(500),
        Answer::After(std::time::Duration::from_secs(3), 200),
        Answer::Status(201),
    ]);
    it.payments(1).await;
    let logs = it.api.wait_for_logs(&it.webhook, "the first failure", |logs| logs.len() == 1).await;
    assert_eq!(it.redeliver(&logs[0]).await["round"], 2);
    it.receiver.wait_for(2).await;
    assert_eq!(it.redeliver(&logs[0]).await["round"], 3);
    it.receiver.wait_for(3).await;
    app.wait_for_count("select count(*) from walhook.delivery", 0).await;
    let sidecar = app.sidecar();
    eventually("the late answer", || async {
        sidecar.metric("walhook_deliveries_in_flight").await.filter(|requests| *requests == 0.0).map(drop)
    })
    .await;
    // Attempts are recorded in the order of their answers: when this one is recorded, the late one was before.
    it.payments(1).await;
    let logs = it.api.wait_for_logs(&it.webhook, "the second payment", |logs| logs.len() >= 4).await;
    let told = |log: &Value| (log["round"].as_i64().unwrap(), log["response_status"].as_i64().unwrap());
    let told: Vec<(i64, i64)> = logs.iter().rev().map(told).collect();
    assert_eq!(told, [(1, 500), (2, 200), (3, 201), (1, 201)], "the late answer of round 2 is logged");
    // It changes nothing else.
    assert_eq!(it.api.webhook(&it.webhook).await["success_count"], 2);
}

#[tokio::test]
async fn events_missed_while_inactive_are_delivered_once() {
    let app = TestApp::start().await;
    let it = subscribe(&app).await;
    it.receiver.answer(|_| Answer::Hang);
    let cancelled = it.payments(3).await;
    app.wait_for_count("select count(*) from walhook.delivery", 3).await;
    it.set_active(false).await;
    let missed = it.payments(2).await;
    app.wait_for_count("select count(*) from walhook.missed_event", 2).await;
    assert_eq!(it.recover(&it.api, true).await["count"], 5, "a dry run works for an inactive webhook");
    it.receiver.clear();
    it.receiver.answer_status(200);
    it.set_active(true).await;
    let later = it.payments(1).await;
    it.receiver.wait_for(1).await;
    assert_eq!(it.recover(&it.api, true).await["count"], 5);
    assert_eq!(it.recover(&it.api, false).await["count"], 5);
    it.receiver.wait_for(6).await;
    app.wait_for_count("select count(*) from walhook.attempt where outcome = 'delivered'", 6).await;
    assert_eq!(it.recover(&it.api, false).await["count"], 0);
    app.wait_for_count("select count(*) from walhook.recovery where finished_at is null", 0).await;
    let mut told: Vec<i64> =
        it.receiver.requests().iter().map(|request| request.data()["payment_request_id"].as_i64().unwrap()).collect();
    told.sort_unstable();
    let wanted: Vec<i64> = [cancelled, missed, later].concat();
    assert_eq!(told, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_during_a_recovery_loses_and_repeats_nothing() {
    let mut app = TestApp::prepare().await;
    app.set("delivery.timeout", "1s");
    app.setup().await;
    app.run().await;
    let it = subscribe(&app).await;
    it.receiver.answer(|_| Answer::Hang);
    let mut payments = it.payments(1_000).await;
    app.wait_for_count("select count(*) from walhook.delivery", 1_000).await;
    it.set_active(false).await;
    payments.extend(it.payments(1_000).await);
    app.wait_for_count("select count(*) from walhook.missed_event", 1_000).await;
    it.set_active(true).await;
    it.receiver.clear();
    it.receiver.answer_status(200);
    let begun = it.recover(&it.api, false).await;
    assert_eq!(begun["count"], 2_000);
    it.receiver.wait_for(100).await;
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
            ids.entry(payment).or_default().insert(request.delivery().to_owned());
        }
        ids
    };
    let arrived = ids(&it.receiver.wait_for_deliveries(2_000).await);
    assert!(payments.iter().all(|payment| arrived[payment].len() == 1), "one delivery id each");
    app.wait_for_count("select count(*) from walhook.recovery where finished_at is null", 0).await;
    app.wait_for_count("select count(*) from walhook.delivery", 0).await;
    let one = |query: &'static str| {
        let store = &store;
        async move { store.query_one(query, &[]).await.unwrap().get::<_, i64>(0) }
    };
    assert_eq!(one("select recovered from walhook.recovery").await, 2_000, "each was redelivered once");
    // A request of the first round may still be sent after the webhook was reactivated: its delivery is logged as cancelled and
    // delivered.
    let repeated =
        "select count(*) - count(distinct (delivery_id, round)) from walhook.attempt where outcome = 'delivered'";
    let different = "select count(distinct delivery_id) from walhook.attempt where outcome = 'delivered'";
    assert_eq!((one(repeated).await, one(different).await), (0, 2_000));
}

#[tokio::test]
async fn statistics_count_what_was_delivered() {
    let mut app = TestApp::prepare().await;
    app.set_fast_retries();
    app.setup().await;
    app.run().await;
    let it = subscribe(&app).await;
    it.api.send("POST", &format!("/webhooks/{}/test", it.webhook), &[], None).await.expect(200);
    it.payments(20).await;
    it.receiver.wait_for(21).await;
    app.wait_for_count("select count(*) from walhook.delivery", 0).await;
    it.receiver.answer_status(500);
    it.payments(1).await;
    app.wait_for_count("select count(*) from walhook.attempt where outcome = 'permanently_failed'", 1).await;
    it.receiver.answer(|_| Answer::Hang);
    it.payments(2).await;
    app.wait_for_count("select count(*) from walhook.delivery", 2).await;
    it.set_active(false).await;
    let stats = it.stats().await;
    for part in ["last_24h", "last_30d"] {
        let Value::Object(part) = &stats[part] else { panic!("{stats}") };
        let counts =
            ["delivered", "failed", "permanently_failed", "cancelled"].map(|name| part[name].as_u64().unwrap());
        assert_eq!(counts, [20, 9, 1, 2]);
        assert!((part["success_rate"].as_f64().unwrap() - 20.0 / 30.0).abs() < 1e-9);
        let percentile = |name: &str| part["duration_ms"][name].as_u64().unwrap();
        assert!(percentile("p50") <= percentile("p95"), "{stats}");
    }
    let hours = stats["hours"].as_array().unwrap();
    assert_eq!(hours.iter().map(|hour| hour["delivered"].as_u64().unwrap()).sum::<u64>(), 20);
    assert!(hours.len() <= 2, "this hour, and perhaps the one before it: {stats}");
}
