//! The API against its OpenAPI document: `make schemathesis` runs this with Schemathesis installed.

use crate::support::{Receiver, TestApp};
use serde_json::{Value, json};
use tokio::process::Command;

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[tokio::test]
#[ignore = "needs Schemathesis: `make schemathesis`"]
async fn schemathesis_finds_no_errors() {
    let program = std::env::var("SCHEMATHESIS")
        .expect("SCHEMATHESIS names the program: run `make schemathesis`");
    let arguments = std::env::var("SCHEMATHESIS_ARGUMENTS").unwrap_or_default();
    let app = TestApp::start_with(|app| {
        app.set("limits.requests_per_second", "0")
            .set("limits.webhooks_per_user", "1000000")
            .set("delivery.timeout", "1s")
    })
    .await;

    // Operations on a webhook, an event, an entry of the log and a job use these: random ids would
    // only be answered 404.
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let receiver = Receiver::start().await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/hooks"), &["payment.statement_ready"])
        .await;

    platform.payment(user, "ready").await;
    let log = api
        .wait_for_logs(&webhook, "the delivery", |logs| logs.len() == 1)
        .await
        .remove(0);
    let recovery = json!({ "since": "2026-01-01T00:00:00Z", "outcome": "delivered" });
    let job = api
        .post(&format!("/webhooks/{webhook}/recover"), recovery)
        .await
        .expect(202)
        .json();
    let ids = [
        ("WEBHOOK", webhook.as_str()),
        ("EVENT", text(&log["event_id"])),
        ("LOG", text(&log["id"])),
        ("JOB", text(&job["job_id"])),
    ];

    let directory = tempfile::tempdir().expect("a directory");
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/schemathesis.toml");

    let status = Command::new(program)
        .args([
            "--config-file",
            config,
            "run",
            &format!("{}/openapi.json", api.url),
        ])
        .args([
            "--checks",
            "all",
            "--header",
            &format!("Authorization: Bearer {}", api.token),
        ])
        .args(arguments.split_whitespace())
        .env(
            "PYTHONPATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/scripts"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(ids)
        .current_dir(&directory)
        .status();

    assert!(status.await.expect("Schemathesis starts").success());
}
