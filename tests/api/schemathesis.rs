//! The API against its OpenAPI document: `make schemathesis` runs this with Schemathesis installed.

use crate::support::{Receiver, TestApp};
use tokio::process::Command;

#[tokio::test]
#[ignore = "needs Schemathesis: `make schemathesis`"]
async fn schemathesis_finds_no_errors() {
    let program = std::env::var("SCHEMATHESIS").expect("SCHEMATHESIS names the program: run `make schemathesis`");
    let arguments = std::env::var("SCHEMATHESIS_ARGUMENTS").unwrap_or_default();
    let mut app = TestApp::prepare().await;
    // Without limits on requests and webhooks, which are not tested here.
    app.set("limits.requests_per_second", "0").set("limits.webhooks_per_user", "1000000");
    app.set("delivery.timeout", "1s");
    app.setup().await;
    app.run().await;
    let api = app.api("1").await;
    let receiver = Receiver::start().await;
    api.create_webhook(&receiver.url("/hooks"), &["delivery.failed"]).await;
    let directory = tempfile::tempdir().expect("a directory");
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/schemathesis.toml");
    let status = Command::new(program)
        .args(["--config-file", config, "run", &format!("{}/openapi.json", api.url)])
        .args(["--checks", "all", "--header", &format!("Authorization: Bearer {}", api.token)])
        .args(arguments.split_whitespace())
        .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/scripts"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&directory)
        .status();
    assert!(status.await.expect("Schemathesis starts").success());
}
