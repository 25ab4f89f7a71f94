//! Edits of a webhook apply to pending deliveries on every replica: one process serves the API, two
//! others deliver.

use std::sync::Arc;

use crate::support::{Answer, Api, Received, Receiver, Sidecar, TestApp, eventually, one};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// First attempts in flight while the webhook is edited. All of them fail then.
const PENDING: usize = 20;

struct Scene {
    app: TestApp,
    _deliverers: [Sidecar; 2],
    api: Api,
    receiver: Receiver,
    gate: Arc<Notify>,
    user: i64,
    webhook: String,
    secret: String,
}

impl Scene {
    /// Starts with first attempts waiting at the receiver. Requests after `release` are answered
    /// 200.
    async fn begin() -> Scene {
        let mut app = TestApp::prepare().await;

        // The first attempts must not end before they are answered.
        app.set_fast_retries().set("delivery.timeout", "60s");
        app.setup().await;
        app.run_with(&["--roles", "capture,api"]).await;

        let deliverers = [
            app.replica(&["--roles", "deliver"]).await,
            app.replica(&["--roles", "deliver"]).await,
        ];
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;
        let gate = Arc::new(Notify::new());
        let held = gate.clone();

        receiver.answer(move |request| match request.attempt() {
            1 => Answer::When(held.clone(), 500),
            _ => Answer::Status(200),
        });
        let api = app.api(&user.to_string()).await;
        let (webhook, secret) = api
            .create_webhook(&receiver.url("/old"), &["payment.statement_ready"])
            .await;

        for _ in 0..PENDING {
            platform.payment(user, "ready").await;
        }

        receiver.wait_for(PENDING).await;

        Scene {
            app,
            _deliverers: deliverers,
            api,
            receiver,
            gate,
            user,
            webhook,
            secret,
        }
    }

    fn path(&self) -> String {
        format!("/webhooks/{}", self.webhook)
    }

    fn release(&self) {
        // One notification per waiting request: none is left for a later request.
        for _ in 0..PENDING {
            self.gate.notify_one();
        }
    }

    /// Waits for the second attempts.
    async fn retries(&self) -> Vec<Received> {
        let of = |requests: &[Received]| {
            requests
                .iter()
                .filter(|request| request.attempt() > 1)
                .cloned()
                .collect()
        };

        let all = |requests: &[Received]| Vec::<Received>::len(&of(requests)) >= PENDING;
        of(&self.receiver.wait_until("a retry of each", all).await)
    }

    async fn pending(&self) -> i64 {
        let store = self.app.store().await;
        one(&store, "select count(*) from walhook.pending").await
    }
}

#[tokio::test]
async fn a_new_url_and_a_new_secret_apply_to_pending_deliveries() {
    let scene = Scene::begin().await;
    let url = scene.receiver.url("/new");

    scene
        .api
        .patch(&scene.path(), json!({ "url": url }))
        .await
        .expect(200);

    let regenerate = format!("{}/regenerate-secret", scene.path());
    let answer = scene.api.post(&regenerate, json!({})).await.expect(200);
    let answer = answer.json();
    let secret = answer["secret"].as_str().unwrap();

    scene.release();

    for retry in scene.retries().await {
        assert_eq!((retry.path.as_str(), retry.attempt()), ("/new", 2));
        retry.assert_sound(secret);
        assert!(!retry.is_signed_with(&scene.secret));
    }

    assert_eq!(scene.receiver.requests().len(), 2 * PENDING);
}

#[tokio::test]
async fn a_deactivated_webhook_gets_no_requests_and_cancellations_are_logged() {
    let scene = Scene::begin().await;
    scene
        .api
        .patch(&scene.path(), json!({ "active": false }))
        .await
        .expect(200);
    scene.release();

    let cancelled = |logs: &[Value]| {
        logs.iter()
            .filter(|log| log["outcome"] == "cancelled")
            .count()
            == PENDING
    };

    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "a cancellation of each", cancelled)
        .await;
    for log in logs.iter().filter(|log| log["outcome"] == "cancelled") {
        assert_eq!(log["error"]["kind"], "webhook_inactive", "{log}");
    }

    eventually("nothing is pending", || async {
        (scene.pending().await == 0).then_some(())
    })
    .await;
    assert_eq!(scene.receiver.requests().len(), PENDING);

    scene.receiver.answer_status(200);
    scene
        .api
        .patch(&scene.path(), json!({ "active": true }))
        .await
        .expect(200);
    scene
        .api
        .post(&format!("{}/test", scene.path()), json!({}))
        .await
        .expect(200);
    assert_eq!(
        scene.receiver.requests().len(),
        PENDING + 1,
        "cancelled deliveries stay cancelled"
    );
}

#[tokio::test]
async fn a_deleted_webhook_gets_no_requests() {
    let scene = Scene::begin().await;
    scene.api.delete(&scene.path()).await.expect(204);
    scene.release();
    eventually("nothing is pending", || async {
        (scene.pending().await == 0).then_some(())
    })
    .await;
    scene
        .api
        .get(&format!("{}/logs", scene.path()))
        .await
        .expect(404);

    // A later event is delivered: by then a retry would have been made.
    scene.receiver.answer_status(500);
    scene
        .api
        .create_webhook(&scene.receiver.url("/later"), &["payment.statement_ready"])
        .await;
    scene
        .app
        .platform()
        .await
        .payment(scene.user, "ready")
        .await;

    let later = |requests: &[Received]| {
        requests
            .iter()
            .filter(|request| request.path == "/later")
            .count()
            == 10
    };

    let requests = scene
        .receiver
        .wait_until("ten attempts of the later one", later)
        .await;
    assert_eq!(requests.len(), PENDING + 10);
}
