//! Runs the example receivers, unchanged, against a running Walhook.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use walhook::private_postgres::free_port;

use crate::fixture::Stage;
use crate::support::{Api, TestApp, are_installed, eventually, skip};

const EVENT: &str = "payment.statement_ready";
/// For each language: the program, and the example. Debian's Python, which has the package
/// `cryptography`.
const LANGUAGES: [(&str, &str); 5] = [
    ("node", "receiver.mjs"),
    ("/usr/bin/python3", "receiver.py"),
    ("go", "receiver.go"),
    ("php", "receiver.php"),
    ("ruby", "receiver.rb"),
];

/// How long an example may take to end, or to disconnect a client: several times its own timeout of
/// 10 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running example.
struct Example {
    program: &'static str,
    file: PathBuf,
    port: u16,
    inbox: PathBuf,
    child: Option<Child>,
}

impl Example {
    async fn new(program: &'static str, file: &str, directory: &Path) -> Example {
        let mut file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("examples/receivers")
            .join(file);
        let inbox = directory.join(file.extension().expect("an extension"));

        if program == "go" {
            let built = directory.join("receiver");
            let mut build = Command::new("go");

            build
                .args(["build", "-o"])
                .args([&built, &file])
                .env("GO111MODULE", "off");

            // Compiles the standard library once for all runs of the tests.
            build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
            assert!(
                build.status().await.expect("go starts").success(),
                "go build"
            );
            file = built;
        }

        Example {
            program,
            file,
            port: free_port().expect("a free port"),
            inbox,
            child: None,
        }
    }

    fn command(&self) -> Command {
        let address = format!("127.0.0.1:{}", self.port);
        let (program, arguments): (&Path, &[&str]) = match self.program {
            "go" => return Command::new(&self.file),
            "php" => (Path::new("php"), &["-S", &address]),
            program => (Path::new(program), &[]),
        };

        let mut command = Command::new(program);
        command.args(arguments).arg(&self.file);

        command
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hooks", self.port)
    }

    /// Starts it, or restarts it with other keys.
    async fn start(&mut self, keys: &str) {
        self.stop().await;
        let mut command = self.command();

        command
            .envs([("KEYS", keys), ("PORT", &self.port.to_string())])
            .env("INBOX", &self.inbox);
        command.stdout(Stdio::null()).kill_on_drop(true);
        self.child = Some(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("{:?}: {error}", self.file)),
        );

        let connects = || async { TcpStream::connect(("127.0.0.1", self.port)).await.ok() };
        eventually(&format!("{:?} to listen", self.file), connects).await;
    }

    async fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.expect("it ends");
        }
    }

    /// The files of the inbox, by name.
    fn stored(&self) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(&self.inbox)
            .expect("the inbox")
            .map(|entry| entry.expect("a file"));
        let mut files: Vec<_> = entries
            .map(|entry| {
                (
                    entry.file_name().into_string().unwrap(),
                    std::fs::read(entry.path()).unwrap(),
                )
            })
            .collect();

        files.sort();
        files
    }
}

/// Sends a test and returns the status of the receiver's response.
async fn test(api: &Api, path: &str) -> Value {
    api.post(&format!("{path}/test"), json!({}))
        .await
        .expect(200)
        .json()["response_status"]
        .clone()
}

/// Sends a logged request again, with changes, and returns the status of the response.
async fn resend(
    example: &Example,
    request: &Value,
    change: impl FnOnce(&mut String, &mut Vec<(String, String)>),
) -> u16 {
    let mut body = request["request_body"].as_str().unwrap().to_owned();
    let headers = request["request_headers"].as_object().unwrap().iter();
    let mut headers = headers
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
        .collect();

    change(&mut body, &mut headers);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(example.url()).body(body);
    let request = headers.into_iter().fold(request, |request, (name, value)| {
        request.header(name, value)
    });

    request.send().await.unwrap().status().as_u16()
}

/// Signs a body that was sent at another time.
fn backdate(secret: &str, body: &mut String, headers: &mut [(String, String)]) {
    let mut envelope: Value = serde_json::from_str(body).unwrap();
    envelope["timestamp"] = "2026-03-01T09:05:00.123+00:00".into();
    *body = envelope.to_string();

    let value = |name: &str| {
        headers
            .iter()
            .find(|(given, _)| given == name)
            .unwrap()
            .1
            .clone()
    };

    let key = STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .unwrap();
    let entry = sign(
        &key,
        &value("webhook-id"),
        &value("webhook-timestamp"),
        body,
    );

    headers
        .iter_mut()
        .find(|(name, _)| name == "webhook-signature")
        .unwrap()
        .1 = entry;
}

/// Returns the value of `webhook-signature`.
fn sign(key: &[u8], id: &str, timestamp: &str, body: &str) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(key)
        .unwrap()
        .chain_update(format!("{id}.{timestamp}.{body}"));
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

async fn check(stage: &Stage, user: i64, mut example: Example) {
    let body =
        json!({ "name": "x", "url": example.url(), "events": [EVENT], "signing": "hmac+ed25519" });
    let created = stage.api.post("/webhooks", body).await.expect(201).json();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let path = format!("/webhooks/{}", text(&created["id"]));
    let secret = text(&created["secret"]);
    let name = example.file.display().to_string();

    example.start(&secret).await;

    // A delivery and its redelivery are stored once.
    stage.platform.payment(user, "ready").await;

    let delivered = |count: usize| {
        move |logs: &[Value]| {
            logs.iter()
                .filter(|log| log["outcome"] == "delivered")
                .count()
                == count
        }
    };

    let logs = stage
        .api
        .wait_for_logs(&text(&created["id"]), &name, delivered(1))
        .await;
    let entry = format!("{path}/logs/{}", text(&logs[0]["id"]));

    stage
        .api
        .post(&format!("{entry}/redeliver"), json!({}))
        .await
        .expect(202);
    stage
        .api
        .wait_for_logs(&text(&created["id"]), &name, delivered(2))
        .await;

    let request = stage.api.get(&entry).await.expect(200).json();
    let stored = (
        format!("{}.json", text(&request["delivery_id"])),
        text(&request["request_body"]).into_bytes(),
    );

    assert_eq!(example.stored(), [stored], "{name}");

    // Forged, changed and old deliveries are rejected.
    assert_eq!(
        resend(&example, &request, |_, _| {}).await,
        200,
        "{name}: the same again"
    );
    assert_eq!(
        resend(&example, &request, |body, _| body.push(' ')).await,
        401,
        "{name}: another body"
    );
    assert_eq!(
        resend(&example, &request, |_, headers| headers.clear()).await,
        401,
        "{name}: no headers"
    );

    let rename = |headers: &mut Vec<(String, String)>| {
        headers
            .iter_mut()
            .find(|(name, _)| name == "webhook-id")
            .unwrap()
            .1 = "0195504c-a3a0-7abc-8def-0123456789ab".into();
    };

    assert_eq!(
        resend(&example, &request, |_, headers| rename(headers)).await,
        401,
        "{name}: another id"
    );
    let old = resend(&example, &request, |body, headers| {
        backdate(&secret, body, headers)
    })
    .await;

    assert_eq!(old, 401, "{name}: too old");
    assert_eq!(example.stored().len(), 1, "{name}");

    // The old secret is accepted during an overlap and not after it; the new public key is enough.
    let regenerate = format!("{path}/regenerate-secret");
    stage
        .api
        .post(&regenerate, json!({ "overlap": "1h" }))
        .await
        .expect(200);
    assert_eq!(
        test(&stage.api, &path).await,
        200,
        "{name}: the old secret in an overlap"
    );

    let new = stage
        .api
        .post(&regenerate, json!({}))
        .await
        .expect(200)
        .json();

    assert_eq!(
        test(&stage.api, &path).await,
        401,
        "{name}: the old secret after it"
    );
    example
        .start(&format!("{secret} {}", text(&new["secret"])))
        .await;
    assert_eq!(test(&stage.api, &path).await, 200, "{name}: two secrets");
    example.start(&text(&new["public_key"])).await;
    assert_eq!(
        test(&stage.api, &path).await,
        200,
        "{name}: the public key alone"
    );
    example.start(&text(&created["public_key"])).await;
    assert_eq!(
        test(&stage.api, &path).await,
        401,
        "{name}: another public key"
    );
    example.stop().await;
    stage.api.delete(&path).await.expect(204);
}

#[tokio::test]
async fn the_example_receivers_store_each_genuine_delivery_once() {
    let mut app = TestApp::prepare().await;
    app.set("limits.requests_per_second", "0");

    let stage = Stage::start_with(app).await;
    let user: i64 = {
        let row = stage
            .platform
            .client
            .query_one("select user_id from label where id = $1", &[&stage.label])
            .await;
        row.unwrap().get(0)
    };

    let directory = tempfile::tempdir().unwrap();

    for (program, file) in installed().await {
        check(
            &stage,
            user,
            Example::new(program, file, directory.path()).await,
        )
        .await;
    }
}

/// Returns the languages that this machine can run.
async fn installed() -> Vec<(&'static str, &'static str)> {
    let mut installed = Vec::new();

    for (program, file) in LANGUAGES {
        if are_installed(&[program.trim_start_matches("/usr/bin/")]) && has_packages(program).await
        {
            installed.push((program, file));
        }
    }

    installed
}

/// Returns a request with a body of the present time, signed with `key`.
fn genuine(key: &[u8]) -> String {
    let now = jiff::Timestamp::now();
    let body = json!({ "timestamp": now.to_string() }).to_string();
    let id = uuid::Uuid::now_v7().to_string();
    let timestamp = now.as_second().to_string();
    let signature = sign(key, &id, &timestamp, &body);
    let headers = format!(
        "webhook-id: {id}\r\nwebhook-timestamp: {timestamp}\r\nwebhook-signature: {signature}\r\n"
    );

    format!(
        "{START}{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The start of a request's head.
const START: &str = "POST /hooks HTTP/1.1\r\nHost: receiver.example\r\nConnection: close\r\n";

async fn connect(example: &Example, request: &str) -> TcpStream {
    let mut connection = TcpStream::connect(("127.0.0.1", example.port))
        .await
        .unwrap();

    // A server may reject a request before it has read the whole body.
    let _ = connection.write_all(request.as_bytes()).await;
    connection
}

/// Reads until the server closes the connection. Returns the response's status, if there was a
/// response.
async fn read_status(mut connection: TcpStream) -> Option<u16> {
    let mut response = Vec::new();
    let _ = connection.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response)
        .split(' ')
        .nth(1)?
        .parse()
        .ok()
}

async fn status(example: &Example, request: &str) -> Option<u16> {
    read_status(connect(example, request).await).await
}

/// Starts the example with keys with which others could sign.
async fn check_weak_keys(mut example: Example) {
    let file = example.file.display().to_string();
    let of = |bytes: usize| STANDARD.encode(vec![b'k'; bytes]);
    let good = format!("whsec_{}", of(24));
    for (keys, reason) in [
        (String::new(), "KEYS is empty"),
        ("  ".to_owned(), "KEYS is empty"),
        ("whsec_".to_owned(), "KEYS: key 1 is neither"),
        ("whsec_…".to_owned(), "KEYS: key 1 is neither"),
        (format!("whsec_{}", of(23)), "KEYS: key 1 is neither"),
        (format!("whsec_{}", of(65)), "KEYS: key 1 is neither"),
        (of(32), "KEYS: key 1 is neither"),
        ("whpk_".to_owned(), "KEYS: key 1 is neither"),
        (format!("whpk_{}", of(31)), "KEYS: key 1 is neither"),
        (format!("{good} whsec_"), "KEYS: key 2 is neither"),
    ] {
        let mut command = example.command();
        command
            .envs([("KEYS", keys.as_str()), ("PORT", &example.port.to_string())])
            .env("INBOX", &example.inbox);
        // PHP's server runs the file for each request.
        if example.program == "php" {
            example.start(&keys).await;
            assert_eq!(
                status(&example, &genuine(b"")).await,
                Some(500),
                "{file}: {keys}"
            );
            continue;
        }
        let ended = command.kill_on_drop(true).output();
        let output = timeout(PATIENCE, ended)
            .await
            .unwrap_or_else(|_| panic!("{file} starts with KEYS={keys}"));
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(reason),
            "{file}: {keys}: {errors}"
        );
    }

    example.stop().await;
}

/// Sends requests of every wrong length, and some that never end.
async fn check_bounds(mut example: Example) {
    let file = example.file.display().to_string();
    let key = [b'k'; 64];

    example
        .start(&format!("whsec_{}", STANDARD.encode(key)))
        .await;
    let slow_head = connect(&example, START).await;
    let slow_body = connect(&example, &format!("{START}Content-Length: 100\r\n\r\n{{")).await;

    let large = "x".repeat(256 * 1024 + 1);
    let chunked = format!(
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    for rest in [
        "\r\n",
        "Content-Length: -1\r\n\r\n",
        "Content-Length: ten\r\n\r\n",
        "Content-Length: 0x10\r\n\r\n",
        "Content-Length: \r\n\r\n",
        &format!("Content-Length: {}\r\n\r\n{large}", large.len()),
        &chunked,
    ] {
        let answered = timeout(PATIENCE, status(&example, &format!("{START}{rest}"))).await;
        let answered = answered.unwrap_or_else(|_| panic!("{file}: no response to {rest:.40}"));
        assert!(
            answered.is_none_or(|status| (400..500).contains(&status)),
            "{file}: {answered:?} to {rest:.40}"
        );
    }

    let stored = |example: &Example| {
        example
            .stored()
            .iter()
            .filter(|(name, _)| name.ends_with(".json"))
            .count()
    };

    assert_eq!(stored(&example), 0, "{file}");
    assert_eq!(
        status(&example, &genuine(&key)).await,
        Some(200),
        "{file}: a delivery beside slow clients"
    );
    assert_eq!(stored(&example), 1, "{file}");

    // The proxy in front of PHP disconnects slow clients.
    if example.program != "php" {
        for slow in [slow_head, slow_body] {
            let ended = timeout(PATIENCE, read_status(slow)).await;
            assert!(
                ended.is_ok_and(|status| status != Some(200)),
                "{file}: a slow client is not disconnected"
            );
        }
    }

    example.stop().await;
}

#[tokio::test]
async fn the_example_receivers_start_with_strong_keys_only() {
    let directory = tempfile::tempdir().unwrap();

    for (program, file) in installed().await {
        check_weak_keys(Example::new(program, file, directory.path()).await).await;
    }
}

#[tokio::test]
async fn the_example_receivers_bound_bodies_and_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut examples = Vec::new();

    for (program, file) in installed().await {
        examples.push(Example::new(program, file, directory.path()).await);
    }

    // At once, because each waits for its own timeout.
    futures_util::future::join_all(examples.into_iter().map(check_bounds)).await;
}

/// Whether the language has the packages that its example needs.
async fn has_packages(program: &str) -> bool {
    let probe = match program {
        "/usr/bin/python3" => "import cryptography",
        "ruby" => "require 'webrick'",
        _ => return true,
    };

    let flag = if program == "ruby" { "-e" } else { "-c" };
    let found = Command::new(program)
        .args([flag, probe])
        .stderr(Stdio::null())
        .status()
        .await;
    found.is_ok_and(|status| status.success())
        || skip(&format!("{program} lacks a package: {probe}"))
}
