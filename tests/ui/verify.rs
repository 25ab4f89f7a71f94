//! Runs the published snippets, unchanged, on a real delivery.

#[path = "../../templates/ui/verify/verify.rs"]
mod snippet;

use std::path::{Path, PathBuf};

use serde_json::json;
use tokio::process::Command;

use crate::fixture::Stage;
use crate::support::{Received, are_installed};

/// For each language: the command, the snippet, and the name and source of a program that calls the
/// snippet. Its arguments are a file with the body, the secret and the signature; it exits with 0
/// if the delivery is accepted and with 1 if not.
const LANGUAGES: [(&[&str], &str, &str, &str); 6] = [
    (&["sh"], "verify.sh", "run.sh", "SECRET=$2 exec sh ./verify.sh \"$1\" \"$3\""),
    (
        &["node"],
        "verify.mjs",
        "run.mjs",
        "import { readFileSync } from 'node:fs'; import { verify } from './verify.mjs';
         const [file, secret, signature] = process.argv.slice(2);
         const headers = { 'x-webhook-signature': signature, 'x-webhook-timestamp': new Date().toISOString() };
         process.exit(verify(secret, readFileSync(file), headers) ? 0 : 1);",
    ),
    (
        &["python3"],
        "verify.py",
        "run.py",
        "import sys\nfrom verify import verify\nfile, secret, signature = sys.argv[1:]\n\
         headers = {'X-Webhook-Signature': signature}\n\
         sys.exit(0 if verify(secret, open(file, 'rb').read(), headers) else 1)",
    ),
    (
        &["go", "run", "verify.go"],
        "verify.go",
        "run.go",
        "package main\nimport (\"net/http\"; \"os\")\nfunc main() {\n\
         body, _ := os.ReadFile(os.Args[1])\nheaders := http.Header{}\n\
         headers.Set(\"X-Webhook-Signature\", os.Args[3])\n\
         if !verify(os.Args[2], body, headers) { os.Exit(1) }\n}",
    ),
    (
        &["php"],
        "verify.php",
        "run.php",
        "<?php require 'verify.php';\nexit(verify($argv[2], file_get_contents($argv[1]), $argv[3]) ? 0 : 1);",
    ),
    (
        &["ruby"],
        "verify.rb",
        "run.rb",
        "require_relative 'verify'\nfile, secret, signature = ARGV\n\
         headers = { 'X-Webhook-Signature' => signature }\n\
         exit(verify(secret, File.binread(file), headers) ? 0 : 1)",
    ),
];

/// A delivery, genuine or not.
struct Case<'a> {
    what: &'a str,
    body: &'a [u8],
    secret: &'a str,
    signature: &'a str,
    valid: bool,
}

async fn run(directory: &Path, program: &[&str], driver: &str, case: &Case<'_>) -> bool {
    let body = directory.join("body.json");
    std::fs::write(&body, case.body).unwrap();

    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .arg(driver)
        .arg(&body)
        .args([case.secret, case.signature]);

    // Compiles the standard library once for all runs of the tests: a delivery is accepted for five
    // minutes.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    command
        .current_dir(directory)
        .env("GOCACHE", cache)
        .env("GO111MODULE", "off");

    let output = command
        .output()
        .await
        .unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 1)),
        "{program:?} ({code:?}): {}",
        String::from_utf8_lossy(&output.stderr)
    );

    code == Some(0)
}

async fn delivery() -> (Received, String) {
    let stage = Stage::start().await;
    let (id, secret) = stage
        .api
        .create_webhook(&stage.receiver.url("/in"), &["delivery.failed"])
        .await;
    stage
        .api
        .post(&format!("/webhooks/{id}/test"), json!({}))
        .await
        .expect(200);

    (stage.receiver.wait_for(1).await.remove(0), secret)
}

#[tokio::test]
async fn every_snippet_accepts_genuine_deliveries_only() {
    let (sent, secret) = delivery().await;
    let signature = sent.header("x-webhook-signature");
    let forged = [&sent.body[..], b" "].concat();

    // A replayed delivery. Its headers may be new, because they are not signed.
    let mut envelope: serde_json::Value = serde_json::from_slice(&sent.body).unwrap();
    envelope["timestamp"] = "2026-03-01T09:05:00.123+00:00".into();

    let old = envelope.to_string().into_bytes();
    let old_signature = crate::support::signature(&secret, &old);

    let good = Case {
        what: "genuine",
        body: &sent.body,
        secret: &secret,
        signature,
        valid: true,
    };

    let not_ascii = "é".repeat(32);
    let [with_empty, with_prefix] =
        ["", "whsec_"].map(|secret| crate::support::signature(secret, &sent.body));

    let cases = [
        Case {
            what: "another body",
            body: &forged,
            valid: false,
            ..good
        },
        Case {
            what: "another secret",
            secret: "whsec_other",
            valid: false,
            ..good
        },
        Case {
            what: "an empty secret",
            secret: "",
            signature: &with_empty,
            valid: false,
            ..good
        },
        Case {
            what: "a secret that was cut off",
            secret: "whsec_",
            signature: &with_prefix,
            valid: false,
            ..good
        },
        Case {
            what: "no signature",
            signature: "",
            valid: false,
            ..good
        },
        Case {
            what: "a signature that is not ASCII",
            signature: &not_ascii,
            valid: false,
            ..good
        },
        Case {
            what: "too old",
            body: &old,
            signature: &old_signature,
            valid: false,
            ..good
        },
        good,
    ];
    for case in &cases {
        let verdict = snippet::verify(case.secret, case.body, case.signature);
        assert_eq!(verdict, case.valid, "Rust: {}", case.what);
    }

    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("templates/ui/verify");
    let directory = tempfile::tempdir().unwrap();

    for (program, snippet, driver, source) in LANGUAGES {
        if !are_installed(&program[..1]) {
            continue;
        }

        std::fs::copy(sources.join(snippet), directory.path().join(snippet)).unwrap();
        std::fs::write(directory.path().join(driver), source).unwrap();

        // The snippet for the command line does not check the age.
        for case in cases
            .iter()
            .filter(|case| case.what != "too old" || snippet != "verify.sh")
        {
            assert_eq!(
                run(directory.path(), program, driver, case).await,
                case.valid,
                "{snippet}: {}",
                case.what
            );
        }
    }
}
