//! Replicas that freeze, shut down or are killed during a request: another replica takes over their
//! deliveries, once.

use std::sync::Arc;
use std::time::Duration;

use crate::scene::Scene;
use crate::support::{Answer, eventually, one, run_sql};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Notify;

impl Scene {
    /// Attempt and outcome of each entry of the attempt log, the oldest first.
    async fn log(&self) -> Vec<(i16, String)> {
        let lines = "select attempt, outcome from walhook.attempt order by id";
        let rows = self.app.store().await.query(lines, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The next attempt of each pending delivery, and whether it is leased.
    async fn pending(&self) -> Vec<(i16, bool)> {
        let pending = "select attempt, lease is not null from walhook.pending";
        let rows = self.app.store().await.query(pending, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn end_leases(&self) {
        let end =
            "update walhook.handoff set due_at = now(); update walhook.delivery set due_at = now()";
        run_sql(&self.app.store().await, end).await;
    }
}

fn counts(webhook: &Value) -> (Value, Value) {
    (
        webhook["success_count"].clone(),
        webhook["failure_count"].clone(),
    )
}

#[tokio::test]
async fn a_frozen_replicas_late_answer_changes_nothing() {
    let mut scene = Scene::begin(&[("delivery.timeout", "5s")]).await;
    let other = scene.app.replica(&[]).await;
    let gate = Arc::new(Notify::new());

    scene
        .receiver
        .answer_in_turn(&[Answer::When(gate.clone(), 500), Answer::Status(200)]);
    scene.payment().await;
    scene.receiver.wait_for(1).await;
    scene.app.sidecar().signal(Signal::STOP);

    // When the lease ends, the other replica makes the attempt.
    let requests = scene.receiver.wait_for(2).await;
    assert_eq!(
        (requests[0].delivery(), requests[0].attempt()),
        (requests[1].delivery(), requests[1].attempt())
    );

    let waited = requests[1].at.duration_since(requests[0].at).unwrap();
    assert!(
        waited > Duration::from_secs(5),
        "not while the first might still answer: {waited:?}"
    );

    let api = scene.api.at(&other.api_url);
    api.wait_for_logs(&scene.webhook, "an entry", |logs| logs.len() == 1)
        .await;
    gate.notify_one();
    scene.app.sidecar().signal(Signal::CONT);

    // When it has ended, its remaining answers have been recorded.
    assert!(scene.app.stop().await.success());
    assert_eq!(
        scene.log().await,
        [(1, "failed".to_owned()), (1, "delivered".to_owned())],
        "both requests are logged"
    );
    assert_eq!(
        counts(&api.webhook(&scene.webhook).await),
        (json!(1), json!(0))
    );
    assert!(scene.pending().await.is_empty());
    assert!(other.stop().await.success());
}

#[tokio::test]
async fn a_killed_replicas_delivery_is_taken_over_at_the_same_attempt() {
    let mut scene = Scene::begin(&[("delivery.timeout", "5s")]).await;
    scene
        .receiver
        .answer_in_turn(&[Answer::Hang, Answer::Status(200)]);
    scene.payment().await;
    scene.receiver.wait_for(1).await;
    scene.app.kill().await;

    let left = "select extract(epoch from due_at - now())::float8 from walhook.pending";
    let left: f64 = one(&scene.app.store().await, left).await;

    assert!(left <= 15.0, "within the timeout and ten seconds: {left}");
    scene.app.run().await;

    let requests = scene.receiver.wait_for(2).await;
    assert_eq!(
        (requests[0].delivery(), requests[1].attempt()),
        (requests[1].delivery(), 1)
    );
    assert!(scene.app.stop().await.success());
    assert_eq!(scene.log().await, [(1, "delivered".to_owned())]);
}

#[tokio::test]
async fn shutdown_waits_for_requests_within_the_drain_time() {
    let settings = [
        ("shutdown.drain", "30s"),
        ("delivery.timeout", "60s"),
        ("delivery.per_webhook_concurrency", "1"),
    ];
    let mut scene = Scene::begin(&settings).await;
    let gate = Arc::new(Notify::new());

    scene
        .receiver
        .answer_in_turn(&[Answer::When(gate.clone(), 200), Answer::Hang]);

    // The second waits, as the webhook has one permit. Its lease is released at once, and no
    // attempt is used up.
    scene.payment().await;
    scene.receiver.wait_for(1).await;
    scene.payment().await;
    eventually("both to be leased", || async {
        (scene.pending().await == [(1, true); 2]).then_some(())
    })
    .await;
    scene.app.sidecar().signal(Signal::TERM);

    let released = || async { scene.pending().await.contains(&(1, false)).then_some(()) };
    eventually("the waiting one to be released", released).await;
    gate.notify_one();
    assert!(scene.app.stop_signalled().await.success());
    assert_eq!(
        (scene.log().await, scene.pending().await),
        (vec![(1, "delivered".to_owned())], vec![(1, false)])
    );

    // Longer than the drain time: the request is aborted, and no attempt is used up.
    scene.app.set("shutdown.drain", "200ms");
    scene.app.run().await;
    scene.receiver.wait_for(2).await;
    assert!(scene.app.stop().await.success());
    assert_eq!(
        (scene.log().await.len(), scene.pending().await),
        (1, vec![(1, true)])
    );

    // A second signal ends the process at once, even with requests in flight.
    scene.app.set("shutdown.drain", "1h");
    scene.end_leases().await;
    scene.app.run().await;
    scene.receiver.wait_for(3).await;
    scene.app.sidecar().signal(Signal::TERM);
    scene.app.sidecar().wait_until_not_ready().await;
    scene.app.sidecar().signal(Signal::INT);
    assert_eq!(scene.app.stop_signalled().await.code(), Some(1));
    assert_eq!(
        (scene.log().await.len(), scene.pending().await),
        (1, vec![(1, true)])
    );

    scene.receiver.answer_status(200);
    scene.end_leases().await;
    scene.app.run().await;
    eventually("its delivery", || async {
        (scene.log().await.len() == 2).then_some(())
    })
    .await;
    assert!(scene.app.stop().await.success());
    assert_eq!(
        scene.log().await,
        [(1, "delivered".to_owned()), (1, "delivered".to_owned())]
    );

    assert_eq!(
        scene
            .receiver
            .requests()
            .iter()
            .map(|request| request.attempt())
            .max(),
        Some(1)
    );
}
