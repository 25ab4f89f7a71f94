//! `walhook receive` as a black box: status codes, printed lines, orderly shutdown.

use std::process::Stdio;

use crate::support::{Api, signature};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

pub const SECRET: &str = "whsec_c2VjcmV0";

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
        let listening = errors.next_line().await.unwrap().expect("a line with the address");
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
        let answer = Api::new(&self.url, "none").send("POST", "/any/path", &headers, Some(body)).await;
        let line = self.lines.next_line().await.unwrap().expect("a line per delivery");
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
    let body = json!({"event": "transcode.failed", "timestamp": now, "webhook_id": "w1", "data": {}});
    let signed = signature(SECRET, body.to_string().as_bytes());

    let (status, line) = receive.deliver(&body, &now, &signed).await;
    assert_eq!(status, 200);
    let expected = json!({"verified": true, "event": "transcode.failed", "webhook_id": "w1", "delivery": "d1",
                          "attempt": 3, "timestamp": now});
    assert_eq!(line, expected);

    let (status, line) = receive.deliver(&body, &now, &signature("another", body.to_string().as_bytes())).await;
    assert_eq!((status, &line["verified"], &line["reason"]), (401, &json!(false), &json!("wrong_signature")));

    let old = now_minus(301);
    let stale = json!({"event": "transcode.failed", "timestamp": old, "webhook_id": "w1", "data": {}});
    let (status, line) = receive.deliver(&stale, &old, &signature(SECRET, stale.to_string().as_bytes())).await;
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
