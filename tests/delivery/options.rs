//! Custom headers on requests, and filters at fan-out.

use serde_json::{Value, json};

use crate::support::{Api, Platform, Received, Receiver, TestApp};

const FAILED: &str = "delivery.failed";
const PAYMENT: &str = "payment.statement_ready";

struct Scene {
    app: TestApp,
    platform: Platform,
    receiver: Receiver,
    api: Api,
    user: i64,
}

impl Scene {
    async fn start() -> Scene {
        let app = TestApp::start_with(|app| app.set_fast_retries()).await;

        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let api = app.api(&user.to_string()).await;

        Scene {
            app,
            platform,
            receiver: Receiver::start().await,
            api,
            user,
        }
    }

    async fn webhook(&self, events: &[&str], options: Value) -> String {
        let mut body = json!({ "name": "x", "url": self.receiver.url("/in"), "events": events });
        body.as_object_mut()
            .unwrap()
            .extend(options.as_object().unwrap().clone());

        self.api.post("/webhooks", body).await.expect(201).json()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Waits for a payment statement, which no filter excludes: every earlier event has been fanned
    /// out then.
    async fn wait_for_payment(&self) -> Vec<Received> {
        self.platform.payment(self.user, "ready").await;
        let arrived =
            |requests: &[Received]| requests.iter().any(|request| request.event() == PAYMENT);
        self.receiver.wait_until("the payment", arrived).await
    }
}

#[tokio::test]
async fn custom_headers_are_sent_with_every_attempt_and_test() {
    let scene = Scene::start().await;
    let headers = json!({ "Authorization": "Bearer abc", "x-zone": "eu 1", "Cookie": "a=b; c=d" });
    let webhook = scene
        .webhook(&[PAYMENT], json!({ "headers": headers }))
        .await;

    scene.receiver.answer_in_turn(&[
        crate::support::Answer::Status(500),
        crate::support::Answer::Status(200),
    ]);
    scene.platform.payment(scene.user, "ready").await;

    let attempts = scene.receiver.wait_for(2).await;
    for request in &attempts {
        let sent = ["authorization", "x-zone", "cookie"].map(|name| request.header(name));
        assert_eq!(sent, ["Bearer abc", "eu 1", "a=b; c=d"]);
        assert_eq!(request.header("content-type"), "application/json");
    }

    let path = format!("/webhooks/{webhook}");

    // The current values apply to the next request.
    scene
        .api
        .patch(
            &path,
            json!({ "headers": { "Authorization": "Bearer new", "X-Zone": "***" } }),
        )
        .await
        .expect(200);

    scene
        .api
        .post(&format!("{path}/test"), json!({}))
        .await
        .expect(200);
    let test = scene.receiver.wait_for(3).await.pop().unwrap();

    assert_eq!(
        (test.header("authorization"), test.header("x-zone")),
        ("Bearer new", "eu 1")
    );
    assert!(!test.headers.contains_key("cookie"));

    let logs = scene
        .api
        .wait_for_logs(&webhook, "all attempts", |logs| logs.len() == 3)
        .await;
    for entry in &logs {
        let detail = scene
            .api
            .get(&format!("{path}/logs/{}", entry["id"].as_str().unwrap()))
            .await
            .expect(200);
        assert!(!detail.body.contains("Bearer"), "{detail:?}");

        let shown = &detail.json()["request_headers"];

        // Headers that have changed since an attempt are not shown: its request may have had
        // others.
        let expected = if entry["test"] == true {
            json!("***")
        } else {
            Value::Null
        };

        assert_eq!(
            (&shown["Authorization"], &shown["X-Zone"]),
            (&expected, &expected),
            "{shown}"
        );
    }

    scene
        .api
        .patch(&path, json!({ "headers": {} }))
        .await
        .expect(200);
    scene.platform.payment(scene.user, "ready").await;

    let last = scene.receiver.wait_for(4).await.pop().unwrap();
    assert!(!last.headers.contains_key("authorization") && !last.headers.contains_key("x-zone"));
}

#[tokio::test]
async fn only_events_that_match_the_filter_are_delivered() {
    let scene = Scene::start().await;
    let Scene { platform, .. } = &scene;
    let mine = platform.label(scene.user).await;
    let other = platform.label(scene.user).await;
    let shop = platform.outlet("Shop").await;
    let radio = platform.outlet("Radio").await;
    let filters = [
        json!({ "label_ids": [mine] }),
        json!({ "outlet_ids": [shop] }),
        json!({ "statuses": ["rejected"] }),
        json!({ "label_ids": [mine], "outlet_ids": [shop], "statuses": ["rejected", "fault"] }),
    ];

    let mut webhooks = vec![scene.webhook(&[FAILED, PAYMENT], json!({})).await];

    for filter in filters {
        webhooks.push(
            scene
                .webhook(&[FAILED, PAYMENT], json!({ "filter": filter }))
                .await,
        );
    }

    let at_mine = platform.release(mine).await;
    let at_other = platform.release(other).await;
    let entries = [
        platform.distribution(at_mine, shop, "rejected").await,
        platform.distribution(at_mine, shop, "error").await,
        platform.distribution(at_mine, radio, "rejected").await,
        platform.distribution(at_other, shop, "rejected").await,
    ];

    platform.payment(scene.user, "ready").await;

    let expected = [
        vec![0, 1, 2, 3],
        vec![0, 1, 2],
        vec![0, 1, 3],
        vec![0, 2, 3],
        vec![0],
    ];

    let count = expected.iter().map(|events| events.len() + 1).sum();
    let received = scene.receiver.wait_for(count).await;

    for (webhook, expected) in webhooks.iter().zip(expected) {
        let to: Vec<&Received> = received
            .iter()
            .filter(|request| request.header("x-webhook-id") == webhook)
            .collect();
        assert_eq!(
            to.iter()
                .filter(|request| request.event() == PAYMENT)
                .count(),
            1,
            "it has none of these values"
        );

        let failed = to.iter().filter(|request| request.event() == FAILED);
        let index = |request: &&&Received| {
            entries
                .iter()
                .position(|id| request.data()["distro_queue_id"] == *id)
                .unwrap()
        };

        let mut found: Vec<usize> = failed.map(|request| index(&request)).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{webhook}");
    }
}

#[tokio::test]
async fn an_event_that_a_filter_excludes_is_not_missed() {
    let scene = Scene::start().await;
    let Scene { platform, .. } = &scene;
    let mine = platform.label(scene.user).await;
    let other = platform.label(scene.user).await;
    let outlet = platform.outlet("Shop").await;
    let inactive = json!({ "filter": { "label_ids": [mine] }, "active": false });
    let webhook = scene.webhook(&[FAILED], inactive).await;

    scene.webhook(&[PAYMENT], json!({})).await;
    let wanted = platform
        .distribution(platform.release(mine).await, outlet, "error")
        .await;

    platform
        .distribution(platform.release(other).await, outlet, "error")
        .await;
    scene.wait_for_payment().await;

    scene
        .app
        .wait_for_count("select count(*) from walhook.missed_event", 1)
        .await;

    let path = format!("/webhooks/{webhook}");
    scene
        .api
        .patch(&path, json!({ "active": true }))
        .await
        .expect(200);

    let recovered = scene
        .api
        .post(
            &format!("{path}/recover"),
            json!({ "since": "2026-01-01T00:00:00Z" }),
        )
        .await;

    assert_eq!(recovered.expect(202).json()["count"], 1);
    let received = scene.receiver.wait_for(2).await;
    assert_eq!(received[1].data()["distro_queue_id"], wanted);
}

#[tokio::test]
async fn a_replay_counts_only_events_that_pass_the_filter() {
    let scene = Scene::start().await;
    let Scene { platform, .. } = &scene;
    let mine = platform.label(scene.user).await;
    let other = platform.label(scene.user).await;
    let shop = platform.outlet("Shop").await;
    let radio = platform.outlet("Radio").await;
    let wanted = platform
        .distribution(platform.release(mine).await, shop, "error")
        .await;

    platform
        .distribution(platform.release(mine).await, radio, "error")
        .await;
    platform
        .distribution(platform.release(mine).await, shop, "rejected")
        .await;
    platform
        .distribution(platform.release(other).await, shop, "error")
        .await;

    scene
        .app
        .wait_for_count(
            "select count(*) from walhook.event where kind = 'delivery.failed'",
            4,
        )
        .await;

    let filter = json!({ "label_ids": [mine], "outlet_ids": [shop], "statuses": ["error"] });
    let webhook = scene.webhook(&[FAILED], json!({ "filter": filter })).await;

    let replay = async |dry_run: bool| {
        let body = json!({ "since": "2026-01-01T00:00:00Z", "dry_run": dry_run });
        let answer = scene
            .api
            .post(&format!("/webhooks/{webhook}/replay"), body)
            .await;
        answer.expect(if dry_run { 200 } else { 202 }).json()
    };

    let preview = replay(true).await;
    assert_eq!(
        (&preview["count"], &preview["exact"]),
        (&json!(1), &json!(true)),
        "one of four passes the filter"
    );

    let job = replay(false).await["job_id"].as_str().unwrap().to_owned();
    let received = scene.receiver.wait_for(1).await;

    assert_eq!(received[0].data()["distro_queue_id"], wanted);

    scene
        .app
        .wait_for_count(
            "select count(*) from walhook.recovery where finished_at is null",
            0,
        )
        .await;

    let job = scene
        .api
        .get(&format!("/webhooks/{webhook}/jobs/{job}"))
        .await
        .expect(200)
        .json();

    assert_eq!((&job["done"], &job["total"]), (&json!(1), &json!(1)));
    assert_eq!(replay(true).await["count"], 0, "the webhook has had it");
}
