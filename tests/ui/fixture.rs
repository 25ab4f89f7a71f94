//! A running sidecar with a platform, a user, a receiver and deliveries in the log.

use serde_json::{Value, json};

use crate::browser::{Browser, Kind};
use crate::support::{Api, Platform, Receiver, TestApp};

pub struct Stage {
    pub app: TestApp,
    pub platform: Platform,
    pub receiver: Receiver,
    pub api: Api,
    pub label: i64,
}

pub const REVIEW: &str = "release.review.status_changed";
/// The ID of an unfinished job of a webhook with a log.
const RUNNING_JOB: &str = "00000000-0000-7000-8000-000000000002";
pub const DISTRIBUTED: &str = "release.distributed";

impl Stage {
    pub async fn start() -> Stage {
        let mut app = TestApp::prepare().await;
        app.set("limits.webhooks_per_user", "3")
            .set("limits.requests_per_second", "0");

        // Nothing is retried while a test clicks through the pages.
        app.set("delivery.retry_schedule", &["1h"; 9].join(","));
        Stage::start_with(app).await
    }

    pub async fn start_with(mut app: TestApp) -> Stage {
        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let user = platform.user(&["preflight_qc"]).await;
        let label = platform.label(user).await;
        let api = app.api(&user.to_string()).await;

        Stage {
            app,
            platform,
            receiver: Receiver::start().await,
            api,
            label,
        }
    }

    /// Returns the URL of the sidecar without the base path.
    pub fn origin(&self) -> String {
        self.api
            .url
            .strip_suffix("/api/public")
            .expect("the base path is the default one")
            .to_owned()
    }

    /// Starts a browser and signs in.
    pub async fn browser(&self, kind: Kind) -> Browser {
        let browser = Browser::start(kind, &self.origin()).await;
        browser.sign_in(&self.api.token).await;
        browser
    }

    /// Creates a webhook whose log has delivered attempts, failed attempts that will be retried,
    /// and a test.
    pub async fn webhook_with_log(&self, name: &str) -> String {
        let url = self.receiver.url("/hooks");
        let events = [REVIEW, DISTRIBUTED, "delivery.completed"];

        let body = json!({
            "name": name, "url": url, "events": events, "signing": "hmac+ed25519",
            "description": "Imports deliveries into the catalogue.\nOwner: the distribution team.",
            "metadata": { "environment": "production", "team": "distribution" },
            "headers": { "Authorization": "Bearer of-the-gateway", "X-Environment": "production" },
            "filter": { "label_ids": [self.label], "statuses": ["to_review", "approved", "distributed", "complete"] },
        });

        let created = self.api.post("/webhooks", body).await.expect(201).json();
        let id = created["id"].as_str().expect("an id").to_owned();
        let failing = "delivery.completed";

        self.receiver.answer(move |request| match request.event() {
            event if event == failing => {
                crate::support::Answer::Full(500, Vec::new(), b"<h1>Out of order</h1>".to_vec())
            }
            _ => crate::support::Answer::Full(200, Vec::new(), b"{\"ok\": true}".to_vec()),
        });

        let release = self.platform.release(self.label).await;
        self.platform.set_review_status(release, "to_review").await;
        self.platform.set_review_status(release, "approved").await;
        self.platform
            .set_delivery_status(release, "distributed")
            .await;

        let outlet = self.platform.outlet("Example Music").await;
        self.platform
            .distribution(release, outlet, "complete")
            .await;
        self.api
            .post(&format!("/webhooks/{id}/test"), json!({}))
            .await
            .expect(200);
        self.api
            .wait_for_logs(&id, "four deliveries and a test", |logs| logs.len() >= 5)
            .await;
        self.jobs_of(&id).await;

        id
    }

    /// Adds a finished recovery and a replay that never ends.
    async fn jobs_of(&self, webhook: &str) {
        let insert = "insert into walhook.recovery (id, webhook_id, since, until, outcomes, missed, kind, phase, due_at, total,
                          recovered, finished_at)
                      select id::uuid, $1::text::uuid, now(), now(), '{}', false, kind, phase, 'infinity', 2000, 1204, finished_at
                      from (values ('00000000-0000-7000-8000-000000000001', 'recover', 'log', now()), ($2::text, 'replay', 'events', null))
                          as job (id, kind, phase, finished_at)";
        self.app
            .store()
            .await
            .execute(insert, &[&webhook, &RUNNING_JOB])
            .await
            .expect("two jobs");
    }

    /// Returns the ID of the newest log entry with that outcome.
    pub async fn entry(&self, webhook: &str, outcome: &str) -> String {
        let logs = self.api.logs(webhook).await;
        let found = logs
            .iter()
            .find(|entry| entry["outcome"] == outcome && entry["test"] == false);
        found.unwrap_or_else(|| panic!("no {outcome} in {logs:?}"))["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    }

    /// Returns the ID of the delivery of a log entry.
    pub async fn delivery_of(&self, webhook: &str, entry: &str) -> String {
        let path = format!("/webhooks/{webhook}/logs/{entry}");
        let entry = self.api.get(&path).await.expect(200).json();
        entry["delivery_id"].as_str().expect("an id").to_owned()
    }

    /// Returns the ID of the log entry of a test.
    pub async fn test_entry(&self, webhook: &str) -> String {
        let logs = self.api.logs(webhook).await;
        let found = logs
            .iter()
            .find(|entry| entry["test"] == true)
            .expect("a test");
        found["id"].as_str().expect("an id").to_owned()
    }

    /// Redelivers an entry, and returns the ID of the new round's first attempt.
    async fn another_attempt(&self, webhook: &str, entry: &str, delivery: &str) -> String {
        let path = format!("/webhooks/{webhook}/logs/{entry}/redeliver");
        self.api.post(&path, json!({})).await.expect(202);

        let is_new = |log: &Value| log["delivery_id"] == delivery && log["round"] == 2;
        let logs = self
            .api
            .wait_for_logs(webhook, "the next round", |logs| logs.iter().any(is_new))
            .await;
        let found = logs.iter().find(|log| is_new(log)).expect("an attempt");
        found["id"].as_str().expect("an id").to_owned()
    }

    /// Returns name and path of every page.
    pub async fn pages(&self, webhook: &str) -> Vec<(&'static str, String)> {
        let at = |rest: &str| format!("/ui/webhooks/{webhook}{rest}");
        let good = self.entry(webhook, "delivered").await;
        let bad = self.entry(webhook, "failed").await;
        let delivery = self.delivery_of(webhook, &bad).await;
        let again = self.another_attempt(webhook, &bad, &delivery).await;
        let events = self.api.get("/events").await.expect(200).json();
        let event = events["data"][0]["id"]
            .as_str()
            .expect("an event")
            .to_owned();

        vec![
            ("list", "/ui".into()),
            ("new", "/ui/webhooks/new".into()),
            ("webhook", at("")),
            ("edit", at("/edit")),
            ("delete", at("/delete")),
            ("secret", at("/secret")),
            ("test", at("/test")),
            ("logs", at("/logs")),
            (
                "logs-filtered",
                at("/logs?outcome=failed&status=5xx&since=2026-01-01T00%3A00&until="),
            ),
            ("logs-empty", at("/logs?outcome=cancelled")),
            ("logs-invalid", at("/logs?since=yesterday")),
            ("entry", at(&format!("/logs/{good}"))),
            ("entry-failed", at(&format!("/logs/{bad}"))),
            (
                "comparison",
                at(&format!(
                    "/deliveries/{delivery}?compare={bad}&compare={again}"
                )),
            ),
            (
                "comparison-invalid",
                at(&format!(
                    "/deliveries/{delivery}?compare={bad}&compare={bad}"
                )),
            ),
            ("deliveries", "/ui/logs".into()),
            (
                "deliveries-filtered",
                "/ui/logs?outlet_id=example+music&error=http_status".into(),
            ),
            ("deliveries-invalid", "/ui/logs?release_id=x".into()),
            ("recover", at("/recover")),
            ("recover-preview", at("/recover?since=2026-01-01T00%3A00")),
            ("replay", at("/replay")),
            (
                "replay-preview",
                at("/replay?since=2026-01-01T00%3A00&label_ids=1,2"),
            ),
            (
                "replay-invalid",
                at("/replay?since=2026-01-01T00%3A00&label_ids=x"),
            ),
            ("jobs", at("/jobs")),
            ("cancel-job", at(&format!("/jobs/{RUNNING_JOB}/cancel"))),
            ("events", "/ui/events".into()),
            ("event", format!("/ui/events/{event}")),
            ("events-empty", "/ui/events?event=transcode.failed".into()),
            ("event-types", "/ui/event-types".into()),
            ("guide", "/ui/guide".into()),
            ("guide-delivery", "/ui/guide/a-delivery".into()),
            ("guide-verify", "/ui/guide/verify".into()),
            ("guide-acknowledge", "/ui/guide/acknowledge".into()),
            ("tokens", "/ui/tokens".into()),
            ("audit", "/ui/audit".into()),
            ("shortcuts", "/ui/shortcuts".into()),
            ("audit-webhook", format!("/ui/audit?subject={webhook}")),
            (
                "audit-empty",
                "/ui/audit?action=webhook.replay_started".into(),
            ),
            ("not-found", "/ui/no-such-page".into()),
            ("api-reference", "/api/public/docs".into()),
            ("api-operation", "/api/public/docs/searchLogs".into()),
            (
                "api-event",
                "/api/public/docs/event-delivery.completed".into(),
            ),
            ("api-schema", "/api/public/docs/schema-Webhook".into()),
            ("api-problems", "/api/public/docs/problems".into()),
        ]
    }
}
