//! `ordering`: deliveries that wait for each other, with flaky receivers, several replicas and
//! kills.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Answer, Api, Platform, Received, Receiver, TestApp};
use serde_json::{Value, json};
use tokio::sync::Notify;

const PAYMENT: &str = "payment.statement_ready";
const REVIEW: &str = "release.review.status_changed";
const NOTHING_PENDING: &str = "select count(*) from walhook.pending";
const PARKED: &str = "select count(*) from walhook.delivery where due_at = 'infinity'";

struct Scene {
    platform: Platform,
    user: i64,
    api: Api,
    receiver: Receiver,
    webhook: String,
}

impl Scene {
    async fn new(app: &TestApp, ordering: &str, events: &[&str]) -> Scene {
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;
        let api = app.api(&user.to_string()).await;
        let body = json!({ "name": "ordered", "url": receiver.url("/"), "events": events, "ordering": ordering });
        let created = api.post("/webhooks", body).await.expect(201).json();

        assert_eq!(created["ordering"], ordering);
        let webhook = created["id"].as_str().unwrap().to_owned();
        Scene {
            platform,
            user,
            api,
            receiver,
            webhook,
        }
    }

    async fn set(&self, settings: Value) -> Value {
        self.api
            .patch(&format!("/webhooks/{}", self.webhook), settings)
            .await
            .expect(200)
            .json()
    }

    async fn logs(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.api.wait_for_logs(&self.webhook, what, wanted).await
    }
}

fn sequence(request: &Received) -> i64 {
    request
        .header("x-webhook-sequence")
        .parse()
        .expect("a number")
}

fn sequences(requests: &[Received]) -> Vec<i64> {
    requests.iter().map(sequence).collect()
}

async fn app_with(settings: &[(&str, &str)]) -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set_fast_retries();

    for (key, value) in settings {
        app.set(key, value);
    }

    app.setup().await;
    app.run().await;

    app
}

/// Half of the requests fail, as by chance but the same in every run.
fn flaky() -> impl FnMut(&Received) -> Answer + Send + 'static {
    let mut state = 1_u32;
    move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Answer::Status(if (state >> 16).is_multiple_of(2) {
            200
        } else {
            500
        })
    }
}

#[tokio::test]
async fn strict_deliveries_arrive_in_order_from_two_replicas_at_a_flaky_receiver() {
    const COUNT: usize = 60;
    let app = app_with(&[("disable.threshold", "100000")]).await;
    let other = app.replica(&[]).await;
    let scene = Scene::new(&app, "strict", &[PAYMENT]).await;

    scene.receiver.answer(flaky());

    for batch in [1, 1, 20, 2, 1, 15, 20] {
        scene.platform.payments(scene.user, batch).await;
    }

    app.wait_for_count("select last from walhook.webhook_sequence", COUNT)
        .await;
    app.wait_for_count(NOTHING_PENDING, 0).await;

    let arrived = sequences(&scene.receiver.requests());
    assert!(
        arrived.is_sorted(),
        "one delivery overtook another: {arrived:?}"
    );

    let mut delivered = arrived;
    delivered.dedup();
    assert_eq!(delivered, (1..=COUNT as i64).collect::<Vec<_>>());

    // Only deliveries that have ended let the next one start.
    let endings =
        "select count(*) from walhook.attempt where outcome in ('delivered', 'permanently_failed')";
    app.wait_for_count(endings, COUNT).await;

    let stranded = "deliveries waited for others that were no longer pending";
    let log = std::fs::read_to_string(app.log_file()).unwrap();
    assert!(
        !log.contains(stranded),
        "the search had to repair the order"
    );
    drop(other);
}

#[tokio::test]
async fn a_failing_release_blocks_only_itself_until_its_first_delivery_has_failed_permanently() {
    let app = app_with(&[("delivery.timeout", "60s")]).await;
    let scene = Scene::new(&app, "release", &[REVIEW, PAYMENT]).await;
    let label = scene.platform.label(scene.user).await;
    let releases = [
        scene.platform.release(label).await,
        scene.platform.release(label).await,
    ];
    let [failing, fine] = releases;
    let steps = ["to_review", "audit", "approved"];

    // The first attempt of the failing one lasts until the others have been seen to wait.
    let gate = Arc::new(Notify::new());
    let held = gate.clone();

    scene.receiver.answer(move |request| {
        let is_failing =
            request.data()["release_id"] == failing && request.data()["new_status"] == "to_review";
        match (is_failing, request.attempt()) {
            (false, _) => Answer::Status(200),
            (true, 1) if request.header("x-webhook-sequence") == "1" => {
                Answer::When(held.clone(), 500)
            }
            (true, _) => Answer::Status(500),
        }
    });

    for step in steps {
        for release in releases {
            scene.platform.set_review_status(release, step).await;
        }
    }

    scene.platform.payments(scene.user, 1).await;

    let of = |requests: &[Received], release: i64| -> Vec<String> {
        let of_release = requests
            .iter()
            .filter(|request| request.data()["release_id"] == release);
        of_release
            .map(|request| request.data()["new_status"].as_str().unwrap().to_owned())
            .collect()
    };

    let is_payment = |request: &Received| request.event() == PAYMENT;
    let others_arrived =
        |requests: &[Received]| of(requests, fine).len() == 3 && requests.iter().any(is_payment);
    let requests = scene
        .receiver
        .wait_until("the deliveries of the others", others_arrived)
        .await;

    assert_eq!(of(&requests, fine), steps);
    assert!(
        of(&requests, failing)
            .iter()
            .all(|step| step == "to_review"),
        "its other deliveries wait"
    );

    app.wait_for_count(PARKED, 2).await;
    gate.notify_one();
    app.wait_for_count(NOTHING_PENDING, 0).await;

    let expected = [vec!["to_review"; 10], vec!["audit", "approved"]].concat();
    assert_eq!(of(&scene.receiver.requests(), failing), expected);

    // Redelivered, it is outside the order: the same number again, at once.
    let logs = scene
        .logs("the failure", |logs| {
            logs.iter()
                .any(|log| log["outcome"] == "permanently_failed")
        })
        .await;

    let failure = logs
        .iter()
        .find(|log| log["outcome"] == "permanently_failed")
        .unwrap();
    let path = format!(
        "/webhooks/{}/logs/{}/redeliver",
        scene.webhook,
        failure["id"].as_str().unwrap()
    );
    let before = scene.receiver.requests().len();

    scene.api.send("POST", &path, &[], None).await.expect(202);
    let again = &scene.receiver.wait_for(before + 1).await[before];
    assert_eq!(json!(sequence(again)), failure["sequence"]);
}

#[tokio::test]
async fn waiting_deliveries_are_cancelled_and_recovered_and_a_new_ordering_applies_to_new_deliveries()
 {
    let app = app_with(&[("delivery.retry_schedule", &["1h"; 9].join(","))]).await;
    let scene = Scene::new(&app, "strict", &[PAYMENT]).await;
    scene.receiver.answer_status(500);
    scene.platform.payments(scene.user, 3).await;
    app.wait_for_count(PARKED, 2).await;
    scene
        .logs("the first failure", |logs| logs.len() == 1)
        .await;
    // Deliveries made from now on do not wait. Those that wait keep waiting.
    assert_eq!(
        scene.set(json!({ "ordering": "none" })).await["ordering"],
        "none"
    );
    scene.platform.payments(scene.user, 1).await;
    assert_eq!(sequences(&scene.receiver.wait_for(2).await), [1, 4]);
    app.wait_for_count(PARKED, 2).await;
    assert_eq!(
        scene.set(json!({ "ordering": "strict" })).await["ordering"],
        "strict"
    );
    scene.logs("both failures", |logs| logs.len() == 2).await;
    scene.set(json!({ "active": false })).await;
    app.wait_for_count(NOTHING_PENDING, 0).await;
    let logs = scene
        .logs("the cancellations", |logs| logs.len() == 6)
        .await;
    let mut cancelled: Vec<i64> = logs
        .iter()
        .filter(|log| log["outcome"] == "cancelled")
        .map(|log| log["sequence"].as_i64().unwrap())
        .collect();
    cancelled.sort_unstable();
    assert_eq!(cancelled, [1, 2, 3, 4]);
    // What it misses is delivered in order when it is recovered. What was cancelled is outside the
    // order, under its old numbers.
    scene.platform.payments(scene.user, 2).await;
    app.wait_for_count("select count(*) from walhook.missed_event", 2)
        .await;
    scene
        .receiver
        .answer(|_| Answer::After(Duration::from_millis(50), 200));
    scene.set(json!({ "active": true })).await;
    scene.receiver.clear();
    let body = json!({ "since": "2026-01-01T00:00:00Z" });
    scene
        .api
        .post(&format!("/webhooks/{}/recover", scene.webhook), body)
        .await
        .expect(202);
    let arrived = sequences(&scene.receiver.wait_for(6).await);
    let position: HashMap<i64, usize> = arrived
        .iter()
        .enumerate()
        .map(|(index, number)| (*number, index))
        .collect();
    assert_eq!(position.len(), 6, "{arrived:?}");
    assert!(position[&5] < position[&6], "{arrived:?}");
    app.wait_for_count(NOTHING_PENDING, 0).await;
    scene.platform.payments(scene.user, 1).await;
    assert_eq!(sequences(&scene.receiver.wait_for(7).await)[6], 7);
}

#[tokio::test]
async fn a_recovery_does_not_wait_for_deliveries_that_wait_for_others() {
    let app = app_with(&[("delivery.retry_schedule", &["1h"; 9].join(","))]).await;
    let scene = Scene::new(&app, "strict", &[PAYMENT]).await;

    scene.platform.payments(scene.user, 1).await;
    scene
        .logs("the first delivery", |logs| logs.len() == 1)
        .await;
    scene.receiver.answer_status(500);

    // More than a recovery lets be pending.
    scene.platform.payments(scene.user, 501).await;
    app.wait_for_count(PARKED, 500).await;
    scene
        .logs("the failure of the second", |logs| logs.len() == 2)
        .await;
    scene.receiver.answer_status(200);

    let body = json!({ "since": "2026-01-01T00:00:00Z", "outcome": "delivered" });
    let started = scene
        .api
        .post(&format!("/webhooks/{}/recover", scene.webhook), body)
        .await
        .expect(202)
        .json();

    assert_eq!(started["count"], 1);
    assert_eq!(sequences(&scene.receiver.wait_for(3).await), [1, 2, 1]);
    app.wait_for_count(
        "select count(*) from walhook.recovery where finished_at is null",
        0,
    )
    .await;
    app.wait_for_count(PARKED, 500).await;
}

#[tokio::test]
async fn an_unknown_ordering_is_refused_and_the_ordering_is_part_of_the_version() {
    let app = TestApp::start().await;
    let scene = Scene::new(&app, "none", &[PAYMENT]).await;
    let path = format!("/webhooks/{}", scene.webhook);
    let refused = scene
        .api
        .patch(&path, json!({ "ordering": "fifo" }))
        .await
        .expect(422)
        .json();

    assert_eq!(
        refused["errors"],
        json!([{ "pointer": "/ordering", "detail": "expected one of none, release, strict" }])
    );
    let before = scene.api.get(&path).await.expect(200);
    let tag = before.header("etag").unwrap().to_owned();

    scene.set(json!({ "ordering": "release" })).await;

    let stale = scene
        .api
        .send(
            "PATCH",
            &path,
            &[("if-match", &tag)],
            Some(&json!({ "name": "new" })),
        )
        .await;

    assert_eq!(stale.status, 412);
}
