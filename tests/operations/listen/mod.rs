//! `walhook listen` as a black box, against a feed of the test.

mod end_to_end;
mod feed;

use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::support::{Answer, Authority, DEADLINE, Received, Receiver, TunnelProxy, are_installed};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use uuid::Uuid;
use walhook::domain::event::delivery_id;

use self::feed::{Event, FeedServer, Reply, TOKEN};

/// A running `walhook listen`. Killed when dropped.
struct Listen {
    child: Child,
    printed: mpsc::UnboundedReceiver<String>,
    errors: mpsc::UnboundedReceiver<String>,
    webhook: Uuid,
    secret: String,
}

/// Returns the command with the token in the environment, and no proxies.
fn command(api: &str, forward_to: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walhook"));

    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }

    command
        .args(["listen", "--api", api, "--forward-to", forward_to])
        .env("WALHOOK_TOKEN", TOKEN);
    command
        .env_remove("WALHOOK_RECEIVE_SECRET")
        .stdin(Stdio::null())
        .kill_on_drop(true);

    command
}

fn lines(stream: impl AsyncRead + Send + Unpin + 'static) -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if sender.send(line).is_err() {
                return;
            }
        }
    });

    receiver
}

/// Waits for a line that contains `text`.
async fn line_with(lines: &mut mpsc::UnboundedReceiver<String>, text: &str) -> String {
    let find = async {
        let mut seen = Vec::new();

        while let Some(line) = lines.recv().await {
            if line.contains(text) {
                return line;
            }

            seen.push(line);
        }

        panic!("the output ended without `{text}`: {seen:?}")
    };

    tokio::time::timeout(DEADLINE, find)
        .await
        .unwrap_or_else(|_| panic!("no line with `{text}`"))
}

impl Listen {
    /// Starts the command, and waits until it has the position in the feed.
    async fn start(mut command: Command) -> Listen {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = lines(child.stdout.take().unwrap());
        let mut errors = lines(child.stderr.take().unwrap());
        let last_word = |line: String| line.rsplit(' ').next().unwrap().to_owned();
        let webhook = last_word(line_with(&mut errors, "Webhook id:").await)
            .parse()
            .unwrap();
        let secret = last_word(line_with(&mut errors, "Signing secret:").await);

        Listen {
            child,
            printed,
            errors,
            webhook,
            secret,
        }
    }

    async fn next_json(&mut self) -> Value {
        serde_json::from_str(&line_with(&mut self.printed, "").await).unwrap()
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for the end.
    async fn interrupt(mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();

        tokio::time::timeout(DEADLINE, self.child.wait())
            .await
            .expect("it ends")
            .unwrap()
    }
}

/// Runs the command to its end. Returns the exit code and the messages.
async fn fails(mut command: Command) -> (Option<i32>, String) {
    let output: Output = tokio::time::timeout(DEADLINE, command.output())
        .await
        .expect("it ends")
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn assert_forwarded(request: &Received, event: &Event, listen: &Listen) {
    request.assert_sound(&listen.secret);
    assert_eq!(
        (request.event(), request.header("x-webhook-event-id")),
        (event.kind, event.id.to_string().as_str())
    );
    assert_eq!(
        request.delivery(),
        delivery_id(event.id, listen.webhook).to_string()
    );
    assert_eq!(
        (request.header("x-webhook-id"), request.attempt()),
        (listen.webhook.to_string().as_str(), 1)
    );
    assert_eq!(
        request.header("x-webhook-occurred-at"),
        "2026-03-01T09:04:59.123456+00:00"
    );
    assert_eq!(request.header("user-agent"), "Walhook-Webhooks/1.0");

    let body = String::from_utf8(request.body.to_vec()).unwrap();
    assert!(
        body.ends_with(&format!(r#""data":{}}}"#, event.data)),
        "{body}"
    );
    assert!(!request.headers.contains_key("x-webhook-test"));
}

#[tokio::test]
async fn events_are_forwarded_as_signed_deliveries_in_order_whatever_the_receiver_answers() {
    let feed = FeedServer::start().await;
    let mut receiver = Receiver::start().await;

    receiver.answer_in_turn(&[
        Answer::Status(204),
        Answer::Status(500),
        Answer::Status(307),
        Answer::Status(200),
    ]);

    let mut events: Vec<Event> = ["transcode.failed", "release.distributed"]
        .map(|kind| feed.push(kind))
        .into();
    let mut command = command(&format!("{}/", feed.url()), &receiver.url("/hooks?a=b"));

    command.args(["--from", "earliest", "--json"]);
    let mut listen = Listen::start(command).await;

    // These arrive while a request is held open.
    receiver.wait_for(2).await;
    events.extend(["payment.statement_ready", "transcode.completed"].map(|kind| feed.push(kind)));

    let requests = receiver.wait_for(4).await;
    for ((request, event), sequence) in requests.iter().zip(&events).zip(1_u32..) {
        assert_eq!(request.path, "/hooks?a=b");
        assert_eq!(request.header("x-webhook-sequence"), sequence.to_string());
        assert_forwarded(request, event, &listen);
    }

    receiver.close().await;
    events.push(feed.push("delivery.failed"));

    let expected = [
        (Some(204), None),
        (Some(500), Some("http_status")),
        (Some(307), Some("http_status")),
        (Some(200), None),
        (None, Some("connect_refused")),
    ];
    for (event, (status, error)) in events.iter().zip(expected) {
        let line = listen.next_json().await;
        assert_eq!(
            (&line["event_id"], &line["event"]),
            (&event.id.to_string().into(), &event.kind.into())
        );
        assert_eq!(
            line["delivery_id"],
            delivery_id(event.id, listen.webhook).to_string()
        );

        assert_eq!(
            (
                line["response_status"].as_u64(),
                line["error"]["kind"].as_str()
            ),
            (status, error),
            "{line}"
        );

        assert_eq!(line["delivered"], error.is_none());
        assert!(
            line["duration_ms"].is_u64() && line["error"].is_null() == error.is_none(),
            "{line}"
        );
    }

    assert!(listen.interrupt().await.success());
    assert_eq!(receiver.requests().len(), 4, "failures are not retried");
}

#[tokio::test]
async fn without_from_only_new_events_of_the_chosen_types_are_forwarded() {
    let feed = FeedServer::start().await;
    let receiver = Receiver::start().await;

    feed.push("transcode.failed");
    let mut command = command(
        &feed.url(),
        &receiver.url("/").replace("http://127.0.0.1", "localhost"),
    );

    command.args([
        "--events",
        "transcode.failed,delivery.failed",
        "--secret",
        "whsec_c2VjcmV0",
    ]);

    let mut listen = Listen::start(command).await;
    assert_eq!(listen.secret, "given", "a given secret is not printed");
    feed.push("transcode.completed");

    let wanted = [feed.push("delivery.failed"), feed.push("transcode.failed")];
    let requests = receiver.wait_for(2).await;
    for (request, event) in requests.iter().zip(&wanted) {
        request.assert_sound("whsec_c2VjcmV0");
        assert_eq!(request.header("x-webhook-event-id"), event.id.to_string());

        let line = line_with(&mut listen.printed, "").await;
        let columns: Vec<&str> = line.split_whitespace().collect();
        assert!(
            matches!(columns[..], [_, kind, id, "200", _, "ms"] if kind == event.kind && id == event.id.to_string()),
            "{line}"
        );
    }

    assert!(listen.interrupt().await.success());
}

/// Asserts that every event arrived, in order. Returns how many requests were repeats.
fn repeats(received: &[Received], events: &[String]) -> usize {
    let number = |request: &Received| {
        request
            .header("x-webhook-sequence")
            .parse::<usize>()
            .unwrap()
    };

    let id = |request: &Received| request.header("x-webhook-event-id").to_owned();
    let all: Vec<(usize, String)> = received
        .iter()
        .map(|request| (number(request), id(request)))
        .collect();
    let mut distinct = all.clone();

    distinct.dedup();
    let expected: Vec<(usize, String)> = (1..).zip(events.iter().cloned()).collect();
    assert_eq!(
        distinct, expected,
        "each event, in order, and repeats directly after the event under the same number"
    );

    all.len() - distinct.len()
}

#[tokio::test]
async fn an_outage_of_the_api_and_its_rate_limit_are_waited_out() {
    let feed = FeedServer::start().await;
    let receiver = Receiver::start().await;

    let full = |status, headers: &[(&'static str, &str)]| {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        Reply::Full(status, headers, "<html>".to_owned())
    };

    let mut responses = 0;
    feed.script(move |_| {
        responses += 1;

        match responses {
            1 => full(429, &[("retry-after", "1")]),
            3 => full(503, &[]),
            4 => full(200, &[("content-type", "text/html")]),
            5 => full(404, &[]),
            _ => Reply::Page,
        }
    });

    feed.push("transcode.failed");
    let mut command = command(&feed.url(), &receiver.url("/"));

    command.args(["--from", "earliest"]);
    let mut listen = Listen::start(command).await;

    line_with(&mut listen.errors, "answers again").await;
    feed.push("transcode.failed");
    receiver.wait_for(2).await;

    let requests = feed.requests();
    assert!(
        requests[1].at - requests[0].at >= Duration::from_secs(1),
        "Retry-After is honoured"
    );

    let asked = |index: usize, name: &str| requests[index].parameters[name].clone();
    assert_eq!(
        (asked(2, "after"), asked(2, "wait")),
        ("c1".to_owned(), "30".to_owned())
    );
    assert_eq!(
        (asked(5, "after"), asked(5, "wait")),
        ("c1".to_owned(), "0".to_owned())
    );
    assert!(listen.interrupt().await.success());
}

#[tokio::test]
async fn errors_say_what_to_change() {
    let feed = FeedServer::start().await;
    let receiver = Receiver::start().await;
    let forward_to = receiver.url("/");
    let listen = |api: &str, arguments: &[&str]| {
        let mut command = command(api, &forward_to);
        command.args(arguments);
        command
    };

    let expect = async |command: Command, code: i32, texts: &[&str]| {
        let (status, message) = fails(command).await;
        assert_eq!(status, Some(code), "{message}");
        texts
            .iter()
            .for_each(|text| assert!(message.contains(text), "no `{text}` in: {message}"));
    };

    let mut unauthorized = listen(&feed.url(), &[]);
    unauthorized.env("WALHOOK_TOKEN", "wrong");

    expect(
        unauthorized,
        1,
        &[
            "rejected the token (401: the token is unknown or revoked)",
            "WALHOOK_TOKEN",
        ],
    )
    .await;

    expect(
        listen(&feed.origin, &[]),
        1,
        &["/events does not exist (404)", "--api must be the base URL"],
    )
    .await;

    expect(
        listen(&feed.url(), &["--from", "x"]),
        1,
        &["400", "/after: is not a cursor", "--from"],
    )
    .await;

    let closed = format!(
        "http://127.0.0.1:{}",
        walhook::private_postgres::free_port().unwrap()
    );
    expect(
        listen(&closed, &[]),
        1,
        &[&closed, "cannot be reached: Connection refused"],
    )
    .await;

    feed.script(|_| {
        Reply::Full(
            200,
            vec![("content-type", "text/html".into())],
            "<!doctype html>".into(),
        )
    });

    expect(
        listen(&feed.url(), &[]),
        1,
        &[
            "did not answer with a page of events (text/html",
            "--api must be",
        ],
    )
    .await;

    feed.script(|_| {
        Reply::Full(
            308,
            vec![("location", "https://new.example/".into())],
            String::new(),
        )
    });

    expect(
        listen(&feed.url(), &[]),
        1,
        &["redirects to https://new.example/ (308)"],
    )
    .await;

    let state = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(state.path(), "{\"cursor\": ").unwrap();

    let path = state.path().to_str().unwrap();
    expect(
        listen(&feed.url(), &["--state", path]),
        1,
        &[path, "is not a state file"],
    )
    .await;

    expect(
        listen(&feed.url(), &["--state", "/nowhere/state"]),
        1,
        &["cannot write the state file /nowhere"],
    )
    .await;

    expect(
        listen(&feed.url(), &["--events", "nothing"]),
        2,
        &["nothing", "transcode.failed"],
    )
    .await;

    expect(listen("w.example", &[]), 2, &["--api"]).await;
    expect(
        command(&feed.url(), "ftp://localhost"),
        2,
        &["--forward-to", "must begin with https:// or http://"],
    )
    .await;

    let mut without_token = listen(&feed.url(), &[]);
    without_token.env_remove("WALHOOK_TOKEN");
    expect(without_token, 2, &["--token"]).await;
    assert!(receiver.requests().is_empty());
}

/// A terminal, which `script` provides: keys work only there.
#[tokio::test]
async fn r_sends_the_last_event_again_under_the_same_delivery_id() {
    if !are_installed(&["script"]) {
        return;
    }

    let feed = FeedServer::start().await;
    let receiver = Receiver::start().await;
    let listen = command(&feed.url(), &receiver.url("/"));
    let listen = listen.as_std();
    let words: Vec<&str> = std::iter::once(listen.get_program())
        .chain(listen.get_args())
        .map(|word| word.to_str().unwrap())
        .collect();
    let mut script = Command::new("script");

    script
        .args(["-qfec", &format!("exec {}", words.join(" "))])
        .arg(Path::new("/dev/null"));
    script
        .env("WALHOOK_TOKEN", TOKEN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);

    let mut script = script.spawn().unwrap();
    let mut keys = script.stdin.take().unwrap();
    let mut screen = lines(script.stdout.take().unwrap());

    line_with(&mut screen, "Press r and Enter").await;
    keys.write_all(b"r\n").await.unwrap();
    line_with(&mut screen, "No event was sent yet").await;

    let event = feed.push("transcode.failed");
    line_with(&mut screen, "  200  ").await;
    keys.write_all(b"r\n").await.unwrap();

    let line = line_with(&mut screen, "(again)").await;
    assert!(line.contains(&event.id.to_string()), "{line}");

    let requests = receiver.wait_for(2).await;
    assert_eq!(requests[0].delivery(), requests[1].delivery());
    assert_eq!(requests[0].data(), requests[1].data());

    // Ctrl-C.
    keys.write_all(b"\x03").await.unwrap();

    assert!(
        tokio::time::timeout(DEADLINE, script.wait())
            .await
            .expect("it ends")
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn the_api_is_reached_over_https_and_through_the_proxies_of_the_environment() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    let receiver = Receiver::start().await;
    let feed = FeedServer::start_tls(authority.server("localhost", &[])).await;

    feed.push("transcode.failed");
    let ca = authority.file();
    let listen = |no_proxy: &str| {
        let mut command = command(&feed.url(), &receiver.url("/"));
        command
            .env("HTTPS_PROXY", format!("http://u:p@{}", proxy.address))
            .env("NO_PROXY", no_proxy);
        command
            .args(["--from", "earliest", "--ca-file"])
            .arg(ca.path());

        command
    };

    let running = Listen::start(listen("")).await;
    receiver.wait_for(1).await;

    let requests = proxy.take_requests();
    let host = feed.origin.strip_prefix("https://").unwrap();

    assert_eq!(requests[0][0], format!("CONNECT {host} HTTP/1.1"));
    let authorized = |line: &String| {
        line.to_lowercase()
            .starts_with("proxy-authorization: basic ")
    };

    assert!(requests[0].iter().any(authorized), "{requests:?}");
    assert!(running.interrupt().await.success());

    let running = Listen::start(listen("localhost")).await;
    receiver.wait_for(2).await;
    assert!(
        proxy.take_requests().is_empty(),
        "NO_PROXY is honoured, and the receiver is called directly"
    );
    assert!(running.interrupt().await.success());

    proxy.refuse(407);
    let (code, message) = fails(listen("")).await;

    assert!(code == Some(1) && message.contains("proxy"), "{message}");
    let mut untrusted = command(&feed.url(), &receiver.url("/"));

    untrusted.args(["--from", "earliest"]);
    let (code, message) = fails(untrusted).await;
    assert!(
        code == Some(1) && message.contains("certificate"),
        "{message}"
    );
}

#[tokio::test]
async fn the_first_ctrl_c_waits_for_the_request_in_flight() {
    let feed = FeedServer::start().await;
    let receiver = Receiver::start().await;
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    let held = gate.clone();

    receiver.answer(move |_| Answer::When(held.clone(), 200));
    let directory = tempfile::tempdir().unwrap();
    let mut command = command(&feed.url(), &receiver.url("/"));

    command.arg("--state").arg(directory.path().join("state"));
    let mut listen = Listen::start(command).await;
    let event = feed.push("transcode.failed");

    receiver.wait_for(1).await;
    let pid = rustix::process::Pid::from_raw(listen.child.id().unwrap() as i32).unwrap();

    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    line_with(&mut listen.errors, "Waiting for the response").await;
    gate.notify_one();

    let line = line_with(&mut listen.printed, "  200  ").await;
    assert!(line.contains(&event.id.to_string()));

    let ended = tokio::time::timeout(DEADLINE, listen.child.wait())
        .await
        .expect("it ends")
        .unwrap();
    assert!(ended.success());

    let state = std::fs::read_to_string(directory.path().join("state")).unwrap();
    assert!(
        state.contains(r#""cursor": "c1""#),
        "the event is recorded: {state}"
    );
}
