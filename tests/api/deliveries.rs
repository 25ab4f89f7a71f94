//! Reading one delivery: its attempts, rounds, signature, timing and response.

use serde_json::{Value, json};

use crate::support::{Answer, Api, Receiver, TestApp, eventually};

const COMPLETED: &str = "delivery.completed";

/// A delivery of an account, read again and again.
struct Scene {
    api: Api,
    webhook: String,
    delivery: String,
}

impl Scene {
    fn path(&self, rest: &str) -> String {
        format!("/webhooks/{}{rest}", self.webhook)
    }

    async fn read(&self) -> Value {
        let path = self.path(&format!("/deliveries/{}", self.delivery));
        self.api.get(&path).await.expect(200).json()
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            let delivery = self.read().await;
            wanted(&delivery).then_some(delivery)
        })
        .await
    }

    async fn entry(&self, id: &Value) -> Value {
        let log = id.as_str().expect("an id");
        let path = self.path(&format!("/logs/{log}"));
        self.api.get(&path).await.expect(200).json()
    }

    async fn regenerate(&self, overlap: Value) {
        let path = self.path("/regenerate-secret");
        self.api.post(&path, overlap).await.expect(200);
    }
}

#[tokio::test]
async fn a_delivery_has_its_rounds_its_next_attempt_and_what_was_sent_and_answered() {
    let mut app = TestApp::prepare().await;
    app.set("delivery.retry_schedule", &["1h"; 9].join(","));
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let api = app.api(&user.to_string()).await;
    let receiver = Receiver::start().await;
    let headers = vec![
        ("x-trace", "abc".to_owned()),
        ("set-cookie", "session=secret".to_owned()),
    ];
    receiver.answer_in_turn(&[Answer::Full(500, headers, b"broken".to_vec())]);

    let (webhook, _) = api.create_webhook(&receiver.url("/in"), &[COMPLETED]).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("Example Music").await;
    platform.distribution(release, outlet, "complete").await;

    let sent = receiver.wait_for(1).await;
    let scene = Scene {
        api,
        webhook,
        delivery: sent[0].delivery().to_owned(),
    };

    let failed = scene
        .until("the first attempt", |delivery| {
            delivery["attempts"][0]["outcome"] == "failed"
        })
        .await;
    assert_eq!(failed["state"], "pending");
    assert_eq!(failed["event_type"], COMPLETED);
    assert_eq!(failed["event_id"], sent[0].header("x-webhook-event-id"));
    assert_eq!(
        failed["rounds"],
        json!([{ "round": 1, "started_by": "event" }])
    );
    assert_eq!(failed["next_attempt"]["attempt"], 2);
    assert_eq!(failed["next_attempt"]["in_flight"], false);
    assert!(failed["next_attempt"]["due_at"].is_string(), "{failed}");

    let about = failed["about"].as_str().expect("a text");
    assert!(about.ends_with(" · Example Music"), "{about}");

    let timing = &failed["attempts"][0]["timing"];
    assert!(timing["connect_ms"].is_number(), "{timing}");
    assert!(timing["wait_ms"].is_number(), "{timing}");
    assert!(
        timing["dns_ms"].is_null(),
        "the URL has an address: {timing}"
    );
    assert!(timing["tls_ms"].is_null(), "{timing}");

    let entry = scene.entry(&failed["attempts"][0]["id"]).await;
    assert_eq!(entry["response_headers"]["x-trace"], "abc");
    assert_eq!(entry["response_headers"]["set-cookie"], "***");
    assert_eq!(entry["response_body"], "broken");
    assert_eq!(entry["signed_with"], "current");

    scene.regenerate(json!({ "overlap": "1h" })).await;
    let entry = scene.entry(&failed["attempts"][0]["id"]).await;
    assert_eq!(entry["signed_with"], "previous");
    scene.regenerate(json!({})).await;
    let entry = scene.entry(&failed["attempts"][0]["id"]).await;
    assert_eq!(entry["signed_with"], Value::Null);

    // A redelivery and a recovery are rounds of their own.
    receiver.answer_in_turn(&[Answer::Status(410), Answer::Status(204)]);
    let redeliver = format!(
        "/logs/{}/redeliver",
        failed["attempts"][0]["id"].as_str().unwrap()
    );
    scene
        .api
        .post(&scene.path(&redeliver), json!({}))
        .await
        .expect(202);
    scene
        .until("the second round", |delivery| {
            delivery["attempts"][0]["round"] == 2 && delivery["next_attempt"]["attempt"] == 2
        })
        .await;

    let cancel = scene.path("");
    scene
        .api
        .patch(&cancel, json!({ "active": false }))
        .await
        .expect(200);
    scene
        .until("the cancellation", |delivery| {
            delivery["state"] == "cancelled"
        })
        .await;
    scene
        .api
        .patch(&cancel, json!({ "active": true }))
        .await
        .expect(200);
    let since = json!({ "since": "2026-01-01T00:00:00Z" });
    scene
        .api
        .post(&scene.path("/recover"), since)
        .await
        .expect(202);

    let delivered = scene
        .until("the third round", |delivery| {
            delivery["state"] == "delivered"
        })
        .await;
    let rounds: Vec<(i64, &str)> = delivered["rounds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|round| {
            (
                round["round"].as_i64().unwrap(),
                round["started_by"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(rounds, [(3, "recovery"), (2, "redelivery"), (1, "event")]);
    assert_eq!(delivered["next_attempt"], Value::Null);
    assert_eq!(delivered["attempts"][0]["response_status"], 204);

    // Deliveries of others, of other webhooks, and those that were never made.
    let stranger = app.api("stranger").await;
    let path = scene.path(&format!("/deliveries/{}", scene.delivery));
    stranger.get(&path).await.expect(404);
    let (own, _) = stranger
        .create_webhook(&receiver.url("/"), &[COMPLETED])
        .await;
    let of_another = format!("/webhooks/{own}/deliveries/{}", scene.delivery);
    stranger.get(&of_another).await.expect(404);

    for unknown in ["x", "019ca8a4-d2db-7986-8a64-a3049900d9b5"] {
        let unknown = scene.path(&format!("/deliveries/{unknown}"));
        let problem = scene.api.get(&unknown).await.expect(404).json();
        assert!(
            problem["detail"].as_str().unwrap().contains("delivery"),
            "{problem}"
        );
    }
}
