//! Redelivery on request, recovery after an inactive time and under kill -9, and the statistics of
//! what was delivered.

use std::collections::HashMap;
use std::sync::Arc;

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp};
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
    let app = TestApp::start_with(|app| app.set_fast_retries()).await;

    let scene = subscribe(&app).await;
    scene.receiver.answer_status(500);
    scene.platform.payments(scene.user, 1).await;

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
async fn a_recovery_leaves_out_what_was_delivered_although_it_was_cancelled() {
    let app = TestApp::start().await;
    let scene = subscribe(&app).await;
    let gate = Arc::new(Notify::new());

    scene.receiver.answer_in_turn(&[
        Answer::When(gate.clone(), 200),
        Answer::Hang,
        Answer::Status(200),
    ]);
    scene.platform.payments(scene.user, 1).await;
    scene.receiver.wait_for(1).await;
    scene.platform.payments(scene.user, 1).await;
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
async fn statistics_count_what_was_delivered() {
    let app = TestApp::start_with(|app| app.set_fast_retries()).await;

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

    scene.platform.payments(scene.user, 20).await;
    app.wait_for_count(
        "select count(*) from walhook.attempt where outcome = 'delivered' and not test",
        20,
    )
    .await;
    scene.receiver.answer_status(500);
    scene.platform.payments(scene.user, 1).await;
    app.wait_for_count(
        "select count(*) from walhook.attempt where outcome = 'permanently_failed'",
        1,
    )
    .await;
    scene.receiver.answer(|_| Answer::Hang);
    scene.platform.payments(scene.user, 2).await;
    app.wait_for_count("select count(*) from walhook.pending", 2)
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
