//! Ten questions that people have: each is answered at most three clicks from the first page.

use std::cell::Cell;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::screenshots::HISTORY;
use crate::support::{Answer, TestApp};

const MAX_CLICKS: u32 = 3;

/// An account with one webhook that fails, one that works and one that is disabled.
pub struct Scene {
    pub stage: Stage,
    failing: String,
    working: String,
    disabled: String,
}

impl Scene {
    pub async fn start() -> Scene {
        let mut app = TestApp::prepare().await;
        app.set("limits.requests_per_second", "0")
            .set("delivery.retry_schedule", &["1h"; 9].join(","));
        let stage = Stage::start_with(app).await;

        let create = async |name: &str, path: &str, events: &[&str]| -> String {
            let url = stage.receiver.url(path);
            let body = json!({ "name": name, "url": url, "events": events });
            let created = stage.api.post("/webhooks", body).await.expect(201).json();
            created["id"].as_str().expect("an id").to_owned()
        };

        let failing = create(
            "Aurora Recordings",
            "/failing",
            &["delivery.completed", REVIEW],
        )
        .await;
        let working = create("Catalogue", "/working", &["delivery.completed"]).await;
        let disabled = create("Back office", "/disabled", &["payment.statement_ready"]).await;
        let scene = Scene {
            stage,
            failing,
            working,
            disabled,
        };

        scene.deliver().await;
        scene.change_settings().await;
        scene
    }

    /// A release is reviewed and reaches two outlets, of which the failing webhook hears nothing.
    async fn deliver(&self) {
        let Stage {
            platform,
            receiver,
            api,
            ..
        } = &self.stage;

        receiver.answer(|request| match &*request.path {
            "/failing" => Answer::Full(
                503,
                vec![("retry-after", "120".into())],
                b"{\"error\": \"maintenance\"}".to_vec(),
            ),
            _ => Answer::Full(200, Vec::new(), b"{\"received\": true}".to_vec()),
        });

        let release = platform.release(self.stage.label).await;
        let named = "update release set cat = 'CAT-001', title = 'First Light' where id = $1";
        platform.execute(named, &[&release]).await;
        platform.set_review_status(release, "to_review").await;
        platform.set_review_status(release, "approved").await;

        for outlet in ["Example Music", "Spotify"] {
            let outlet = platform.outlet(outlet).await;
            platform.distribution(release, outlet, "complete").await;
        }

        let wait = async |webhook: &str, count: usize| {
            let has_all = |logs: &[Value]| logs.len() >= count;
            api.wait_for_logs(webhook, "the deliveries", has_all).await;
        };
        wait(&self.failing, 4).await;
        wait(&self.working, 2).await;
    }

    async fn change_settings(&self) {
        let api = &self.stage.api;
        let failing: Uuid = self.failing.parse().unwrap();
        let working: Uuid = self.working.parse().unwrap();
        let store = self.stage.app.store().await;
        let webhook = |id: &str| format!("/webhooks/{id}");

        // The failures of yesterday have ended, so that they can be recovered.
        let fail = "update walhook.attempt set outcome = 'permanently_failed', attempt = 10
                    where webhook_id = $1 and event_kind = 'release.review.status_changed'";
        let end = "delete from walhook.delivery using walhook.event
                   where event.id = event_id and webhook_id = $1 and kind = 'release.review.status_changed'";

        for sql in [fail, end] {
            store.execute(sql, &[&failing]).await.unwrap();
        }

        let since =
            "update walhook.webhook set failing_since = now() - interval '3 hours' where id = $1";
        store.execute(since, &[&failing]).await.unwrap();
        store.execute(HISTORY, &[&working]).await.unwrap();
        let url = self.stage.receiver.url("/working/moved");
        api.patch(&webhook(&self.working), json!({ "url": url }))
            .await
            .expect(200);

        let overlap = json!({ "overlap": "24h" });
        let path = format!("{}/regenerate-secret", webhook(&self.working));
        api.post(&path, overlap).await.expect(200);

        let disable = "update walhook.webhook set active = false, disabled_at = now() - interval '3 hours', failure_count = 100,
                       disabled_reason = '100 failures in a row: no answer within 10 s' where id = $1";
        let disabled: Uuid = self.disabled.parse().unwrap();
        store.execute(disable, &[&disabled]).await.unwrap();
    }
}

/// A visitor with a question.
struct Visitor<'a> {
    browser: &'a Browser,
    clicks: Cell<u32>,
}

impl Visitor<'_> {
    /// Begins at the first page.
    async fn start(&self) {
        self.browser.visit("/ui").await;
        self.clicks.set(0);
    }

    async fn click(&self, css: &str) {
        self.browser.click(css).await;
        self.clicks.set(self.clicks.get() + 1);
    }

    async fn click_webhook(&self, id: &str) {
        self.click(&format!("a.name[href$='{id}']")).await;
        self.browser.find(".tabs").await;
    }

    async fn sees(&self, texts: &[&str]) {
        for text in texts {
            self.browser.wait_for_text(text).await;
        }

        let clicks = self.clicks.get();
        assert!(clicks <= MAX_CLICKS, "{texts:?} after {clicks} clicks");
    }
}

/// Answers each question, and shows its answer to `shown` under a name.
pub async fn ask_all(browser: &Browser, scene: &Scene, shown: impl AsyncFn(&str)) {
    let visitor = Visitor {
        browser,
        clicks: Cell::new(0),
    };
    let Scene {
        failing,
        working,
        disabled,
        ..
    } = scene;

    // What happened to CAT-001 at Spotify?
    visitor.start().await;
    visitor.click("nav a[href='/ui/logs']").await;
    browser.fill("#cat", "cat-001").await;
    browser.fill("#outlet_id", "spotify").await;
    visitor.click(".filters .actions button").await;
    browser
        .wait_for_path("a search", |path| path.contains("cat="))
        .await;
    visitor.click("[data-entry]:has(.warn) a").await;
    visitor
        .sees(&["CAT-001 · Spotify", "Timeline", "Failed, will retry", "503"])
        .await;
    shown("question-1-release-at-outlet").await;

    // Which receivers fail, since when and why?
    visitor.start().await;
    visitor
        .sees(&["Aurora Recordings", "0 / 4", "First failure 3 hours ago"])
        .await;
    visitor.click_webhook(failing).await;
    visitor
        .sees(&[
            "4 failures in a row, the first 3 hours ago",
            "HTTP error status",
            "503",
        ])
        .await;
    shown("question-2-failing-receiver").await;

    // Send yesterday's failures again.
    visitor.start().await;
    visitor.click_webhook(failing).await;
    visitor.click(".tabs a[href$='/recover']").await;
    visitor.sees(&["Recover 2 deliveries"]).await;
    shown("question-3-failures-to-send-again").await;

    // Who changed this URL?
    visitor.start().await;
    visitor.click_webhook(working).await;
    visitor.click("a[href^='/ui/audit?subject=']").await;
    visitor.sees(&["Webhook updated", "url", "API"]).await;
    shown("question-4-who-changed-the-url").await;

    // Is the rotation of the secret complete?
    visitor.start().await;
    visitor.click_webhook(working).await;
    visitor
        .sees(&[
            "Previous secret",
            "Also signs webhook-signature, and expires",
        ])
        .await;
    shown("question-5-secret-rotation").await;
    visitor.start().await;
    visitor.click_webhook(failing).await;
    visitor.sees(&["Only the current secret signs"]).await;

    // Which events did this webhook get in the last hour?
    visitor.start().await;
    visitor
        .click(&format!("[data-webhook='{working}'] a[href$='/logs']"))
        .await;
    visitor.click(".filters a[href*='since=']").await;
    browser
        .wait_for_path("a search", |path| path.contains("since="))
        .await;
    visitor
        .sees(&["CAT-001 · Spotify", "CAT-001 · Example Music", "Delivered"])
        .await;
    assert_eq!(browser.count("[data-entry]").await, 2);
    shown("question-6-events-of-the-last-hour").await;

    // Why was this webhook disabled?
    visitor.start().await;
    visitor.click_webhook(disabled).await;
    visitor
        .sees(&["100 failures in a row", "no answer within 10 s"])
        .await;
    shown("question-7-why-disabled").await;

    // Did the event reach all webhooks?
    visitor.start().await;
    visitor.click("nav a[href='/ui/events']").await;
    browser.wait_for_text("CAT-001 · Spotify").await;
    let events = scene
        .stage
        .api
        .get("/events?event=delivery.completed")
        .await;
    let events = events.expect(200).json();
    let id = events["data"][0]["id"].as_str().expect("an id");
    visitor.click(&format!("a[href='/ui/events/{id}']")).await;
    visitor
        .sees(&["Catalogue", "Delivered", "Aurora Recordings", "Pending"])
        .await;
    assert_eq!(browser.text_of("h1").await, "CAT-001 · Example Music");
    shown("question-8-event-at-all-webhooks").await;

    // What exactly did we send, and what did they answer?
    visitor.start().await;
    visitor.click_webhook(failing).await;
    visitor.click("[data-entry] a").await;
    visitor
        .sees(&[
            "Signature verifies with the current secret",
            "X-Webhook-Signature",
            "\"release_cat\": \"CAT-001\"",
            "retry-after",
            "{\"error\": \"maintenance\"}",
        ])
        .await;
    shown("question-9-request-and-response").await;

    // How slow is that receiver?
    visitor.start().await;
    visitor.click_webhook(working).await;
    visitor
        .sees(&["Median response time", "95th percentile"])
        .await;
    shown("question-10-response-times").await;
}

#[tokio::test]
async fn ten_questions_are_answered_in_three_clicks() {
    if !browser::is_available() {
        return;
    }

    let scene = Scene::start().await;
    let browser = scene.stage.browser(Kind::Desktop).await;
    ask_all(&browser, &scene, async |_| {}).await;

    // The failures are sent again by the third click.
    let before = scene.stage.receiver.requests().len();
    let visitor = Visitor {
        browser: &browser,
        clicks: Cell::new(0),
    };

    visitor.start().await;
    visitor.click_webhook(&scene.failing).await;
    visitor.click(".tabs a[href$='/recover']").await;
    visitor.click("#preview button").await;
    visitor.sees(&["Recovery of 2 deliveries started"]).await;
    scene.stage.receiver.wait_for(before + 2).await;
}
