//! Verifies deliveries with the published libraries for Standard Webhooks.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::fixture::Stage;
use crate::support::{Received, are_installed, skip};

const EVENT: &str = "delivery.failed";
/// A program that verifies: its arguments are a file with the body, a file with the headers, and
/// the secret. It exits with 0 if the delivery is accepted and with 1 if not.
const JAVASCRIPT: &str = "
    const { readFileSync } = require('node:fs');
    const { Webhook, WebhookVerificationError } = require('standardwebhooks');
    const [body, headers, secret] = process.argv.slice(1);
    try {
        new Webhook(secret).verify(readFileSync(body), JSON.parse(readFileSync(headers, 'utf8')));
    } catch (error) {
        if (!(error instanceof WebhookVerificationError)) throw error;
        process.exitCode = 1;
    }";
const PYTHON: &str = "
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
body, headers, secret = sys.argv[1:]
try:
    Webhook(secret).verify(open(body, 'rb').read(), json.load(open(headers)))
except WebhookVerificationError:
    sys.exit(1)";

/// Returns the directory into which `scripts/install-dependencies test ui` downloads the libraries.
fn libraries() -> PathBuf {
    // This test is `debug/deps/ui-…` in the target directory.
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors()
        .nth(3)
        .expect("the target directory")
        .join("standard-webhooks")
}

/// Returns whether the library of a language accepts the delivery.
async fn run(
    mut command: Command,
    source: &[&str],
    directory: &Path,
    received: &Received,
    secret: &str,
) -> bool {
    let body = directory.join("body");
    let headers = directory.join("headers");
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let values: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), received.header(name).into()))
        .collect();

    std::fs::write(&body, &received.body).unwrap();
    std::fs::write(&headers, Value::from(values).to_string()).unwrap();

    let output = command
        .args(source)
        .args([&body, &headers])
        .arg(secret)
        .output()
        .await
        .unwrap();

    let code = output.status.code();
    let is_verdict = matches!(code, Some(0)) || code == Some(1) && output.stderr.is_empty();
    assert!(
        is_verdict,
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );

    code == Some(0)
}

async fn javascript(directory: &Path, received: &Received, secret: &str) -> bool {
    let mut command = Command::new("node");
    command.env("NODE_PATH", libraries().join("node_modules"));
    run(command, &["-e", JAVASCRIPT], directory, received, secret).await
}

async fn python(directory: &Path, received: &Received, secret: &str) -> bool {
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", libraries().join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    run(command, &["-c", PYTHON], directory, received, secret).await
}

fn rust(received: &Received, secret: &str) -> bool {
    let webhook = standardwebhooks::Webhook::new(secret).expect("the secret is accepted");
    webhook.verify(&received.body, &received.headers).is_ok()
}

fn has(library: &str) -> bool {
    libraries().join(library).is_dir()
        || skip(&format!("{library} is not in {}", libraries().display()))
}

#[tokio::test]
async fn published_libraries_accept_both_secrets_during_an_overlap_and_no_other() {
    let stage = Stage::start().await;
    let body = json!({ "name": "x", "url": stage.receiver.url("/in"), "events": [EVENT], "signing": "hmac+ed25519" });
    let created = stage.api.post("/webhooks", body).await.expect(201).json();
    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let overlap = json!({ "overlap": "1h" });
    let new = stage
        .api
        .post(&format!("{path}/regenerate-secret"), overlap)
        .await
        .expect(200)
        .json();

    let mut sent = Vec::new();

    for _ in 0..2 {
        stage
            .api
            .post(&format!("{path}/test"), json!({}))
            .await
            .expect(200);
        sent.push(stage.receiver.requests().pop().expect("a request"));

        // Ends the overlap for the second request.
        let end = "update walhook.webhook set previous_expires_at = now()";
        stage.app.store().await.execute(end, &[]).await.unwrap();
    }

    let entries: Vec<usize> = sent
        .iter()
        .map(|request| request.header("webhook-signature").split(' ').count())
        .collect();
    assert_eq!(entries, [4, 2]);

    let new = new["secret"].as_str().unwrap();
    let old = created["secret"].as_str().unwrap();
    let forged = Received {
        body: [&sent[0].body[..], b" "].concat().into(),
        ..sent[0].clone()
    };

    let other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let cases = [
        ("the new secret in an overlap", &sent[0], new, true),
        ("the old secret in an overlap", &sent[0], old, true),
        ("another secret", &sent[0], other, false),
        ("another body", &forged, new, false),
        ("the new secret after it", &sent[1], new, true),
        ("the old secret after it", &sent[1], old, false),
    ];

    let directory = tempfile::tempdir().unwrap();
    let with_javascript = are_installed(&["node"]) && has("node_modules/standardwebhooks");
    let with_python = are_installed(&["python3"]) && has("python/standardwebhooks");

    for (what, request, secret, expected) in cases {
        assert_eq!(rust(request, secret), expected, "Rust: {what}");

        if with_javascript {
            assert_eq!(
                javascript(directory.path(), request, secret).await,
                expected,
                "JavaScript: {what}"
            );
        }

        if with_python {
            assert_eq!(
                python(directory.path(), request, secret).await,
                expected,
                "Python: {what}"
            );
        }
    }
}
