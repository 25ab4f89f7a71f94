//! `walhook receive` as a black box: status codes, printed lines, orderly shutdown.

use std::process::Stdio;
use std::time::Duration;

use crate::support::{Api, signature};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

pub const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// How long it may take to disconnect a client: several times its own timeout of 10 s.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Receive {
    child: Child,
    pub lines: Lines<BufReader<ChildStdout>>,
    pub url: String,
}

impl Receive {
    /// Passes the secret in the environment: command lines are visible to all users.
    pub async fn start() -> Receive {
        let mut child = Command::new(env!("CARGO_BIN_EXE_walhook"))
            .args(["receive", "--listen", "127.0.0.1:0"])
            .env("WALHOOK_RECEIVE_SECRET", SECRET)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();

        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = errors
            .next_line()
            .await
            .unwrap()
            .expect("a line with the address");
        let url = listening.strip_prefix("listening on ").unwrap().to_owned();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();

        Receive { child, lines, url }
    }

    /// Sends a delivery. Returns the status and the printed line.
    async fn deliver(&mut self, body: &Value, timestamp: &str, signature: &str) -> (u16, Value) {
        let headers = [
            ("x-webhook-event", "transcode.failed"),
            ("x-webhook-id", "w1"),
            ("x-webhook-delivery", "d1"),
            ("x-webhook-attempt", "3"),
            ("x-webhook-timestamp", timestamp),
            ("x-webhook-signature", signature),
        ];

        let answer = Api::new(&self.url, "none")
            .send("POST", "/any/path", &headers, Some(body))
            .await;
        let line = self
            .lines
            .next_line()
            .await
            .unwrap()
            .expect("a line per delivery");

        (answer.status, serde_json::from_str(&line).unwrap())
    }
}

fn now_minus(seconds: i64) -> String {
    (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)).to_string()
}

#[tokio::test]
async fn receive_responds_to_and_prints_each_delivery() {
    let mut receive = Receive::start().await;
    let now = now_minus(0);
    let body =
        json!({"event": "transcode.failed", "timestamp": now, "webhook_id": "w1", "data": {}});
    let signed = signature(SECRET, body.to_string().as_bytes());

    let (status, line) = receive.deliver(&body, &now, &signed).await;
    assert_eq!(status, 200);

    let expected = json!({"verified": true, "event": "transcode.failed", "webhook_id": "w1", "delivery": "d1",
                          "attempt": 3, "timestamp": now, "data": {}});
    assert_eq!(line, expected);

    let (status, line) = receive
        .deliver(
            &body,
            &now,
            &signature("another", body.to_string().as_bytes()),
        )
        .await;

    assert_eq!(
        (status, &line["verified"], &line["reason"]),
        (401, &json!(false), &json!("wrong_signature"))
    );

    let old = now_minus(301);
    let stale =
        json!({"event": "transcode.failed", "timestamp": old, "webhook_id": "w1", "data": {}});

    let (status, line) = receive
        .deliver(
            &stale,
            &old,
            &signature(SECRET, stale.to_string().as_bytes()),
        )
        .await;

    assert_eq!((status, &line["reason"]), (401, &json!("stale_timestamp")));

    let pid = rustix::process::Pid::from_raw(receive.child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(receive.child.wait().await.unwrap().success());
}

#[tokio::test]
async fn without_a_secret_receive_is_a_usage_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_walhook"))
        .args(["receive"])
        .env_remove("WALHOOK_RECEIVE_SECRET")
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test]
async fn receive_does_not_start_with_a_secret_with_which_others_could_sign() {
    let of = |bytes: usize| STANDARD.encode(vec![b'k'; bytes]);
    let file = tempfile::NamedTempFile::new().unwrap();

    let secrets = [
        String::new(),
        "whsec_".to_owned(),
        "whsec_…".to_owned(),
        of(32),
        format!("whsec_{}", of(23)),
        format!("whsec_{}", of(65)),
        format!("whsec_whsec_{}", of(32)),
    ];
    for secret in &secrets {
        std::fs::write(file.path(), format!("{secret}\n")).unwrap();

        for arguments in [
            ["--secret", secret],
            ["--secret-file", file.path().to_str().unwrap()],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_walhook"));
            command
                .args(["receive", "--listen", "127.0.0.1:0"])
                .args(arguments)
                .env_remove("WALHOOK_RECEIVE_SECRET");
            let ended = timeout(PATIENCE, command.kill_on_drop(true).output()).await;
            let output = ended
                .unwrap_or_else(|_| panic!("receive starts with {arguments:?}"))
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
            assert!(
                errors.contains("the secret must be whsec_ and the base64 of 24 to 64 bytes"),
                "{errors}"
            );
        }
    }
}

/// Sends a request and reads until the connection is closed.
async fn send_raw(url: &str, rest: &str) -> String {
    let mut connection = TcpStream::connect(url.trim_start_matches("http://"))
        .await
        .unwrap();
    let request =
        format!("POST /hooks HTTP/1.1\r\nHost: receiver.example\r\nConnection: close\r\n{rest}");

    // The server may reject a request before it has read the whole body.
    let _ = connection.write_all(request.as_bytes()).await;
    let mut response = Vec::new();
    let _ = connection.read_to_end(&mut response).await;

    String::from_utf8_lossy(&response).into_owned()
}

#[tokio::test]
async fn receive_bounds_bodies_and_time() {
    let mut receive = Receive::start().await;
    let large = "x".repeat(256 * 1024 + 1);
    let chunked = format!(
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    let declared = format!("Content-Length: {}\r\n\r\n{large}", large.len());

    let rejected = [
        ("Content-Length: -1\r\n\r\n", " 400 "),
        ("Content-Length: ten\r\n\r\n", " 400 "),
        (&declared, " 413 "),
        (&chunked, " 413 "),
        // Without an end: the first head is not answered, as no request was received.
        ("", ""),
        ("Content-Length: 100\r\n\r\n{", " 408 "),
    ];

    let url = receive.url.clone();
    let answers = rejected.map(|(rest, status)| {
        let url = &url;
        async move {
            let answer = timeout(PATIENCE, send_raw(url, rest)).await;
            let answer = answer.unwrap_or_else(|_| panic!("{rest:.40} is not disconnected"));
            assert!(answer.contains(status), "{rest:.40}: {answer}");
        }
    });

    futures_util::future::join_all(answers).await;

    let now = now_minus(0);
    let body =
        json!({"event": "transcode.failed", "timestamp": now, "webhook_id": "w1", "data": {}});
    let signed = signature(SECRET, body.to_string().as_bytes());

    assert_eq!(receive.deliver(&body, &now, &signed).await.0, 200);
}
