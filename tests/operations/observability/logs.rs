//! The server log: every line is a JSON object if configured, and a fault is logged once, not once
//! per event or attempt.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use walhook::private_postgres::{Options, StopMode, free_port};

use crate::support::{Api, Receiver, SmtpSink, TestApp, eventually, metrics, one};

const EVENT: &str = "payment.statement_ready";

/// Returns everything logged so far. The last line may be incomplete.
fn lines(app: &TestApp) -> Vec<Value> {
    let text = std::fs::read_to_string(app.log_file()).unwrap();
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let parsed =
        |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    whole.lines().map(parsed).collect()
}

/// Counts messages at these levels, from line `from` on.
fn messages(app: &TestApp, from: usize, levels: &[&str]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();

    for line in lines(app)
        .into_iter()
        .skip(from)
        .filter(|line| levels.contains(&line["level"].as_str().unwrap()))
    {
        *counts
            .entry(line["message"].as_str().unwrap().to_owned())
            .or_insert(0) += 1;
    }

    counts
}

const FAULTS: &[&str] = &["WARN", "ERROR"];

async fn wait_for(app: &TestApp, from: usize, words: &str) {
    let logged = || async {
        messages(app, from, &["INFO", "WARN", "ERROR"])
            .keys()
            .any(|line| line.contains(words))
            .then_some(())
    };
    eventually(words, logged).await;
}

fn assert_once(counts: &BTreeMap<String, usize>) {
    assert!(
        !counts.is_empty() && counts.values().all(|count| *count == 1),
        "{counts:#?}"
    );
}

async fn wait_for_metric(app: &mut TestApp, what: &str, wanted: impl Fn(&str) -> bool) {
    let url = app.sidecar().metrics_url.clone();
    eventually(what, || async {
        metrics(&url).await.lines().any(&wanted).then_some(())
    })
    .await;
}

/// Creates two webhooks whose receiver fails until they are disabled, while the mail server is
/// down.
async fn failing_receiver_and_mail_server(
    app: &mut TestApp,
    api: &Api,
    user: i64,
    smtp: u16,
) -> SmtpSink {
    let receiver = Receiver::start().await;
    receiver.answer_status(500);

    for _ in 0..2 {
        api.create_webhook(&receiver.url("/hook"), &[EVENT]).await;
    }

    app.platform().await.payment(user, "ready").await;

    let disabled = || async {
        api.webhooks()
            .await
            .iter()
            .all(|webhook| webhook["active"] == false)
            .then_some(())
    };

    eventually("both webhooks to be switched off", disabled).await;

    wait_for_metric(app, "six tries to send an e-mail", |line| {
        let count = line
            .strip_prefix("walhook_notice_failures_total{cause=")
            .and_then(|rest| rest.split(' ').nth(1));
        count.is_some_and(|count| count.parse::<u32>().unwrap() >= 6)
    })
    .await;

    let counts = messages(app, 0, FAULTS);
    assert_eq!(counts.len(), 1, "{counts:#?}");
    assert_once(&counts);

    let mail = SmtpSink::start(smtp, &[]).await;

    // A warning and a disablement for each.
    mail.wait_for("taken", 4).await;
    assert_once(&messages(app, 0, FAULTS));

    mail
}

/// Waits until an event is stored: the start of the stream, which needs the store, has succeeded.
async fn wait_for_a_stored_event(app: &TestApp, store: &TestApp, user: i64) {
    let events = "select count(*) from walhook.event";
    let stored: i64 = one(&store.store().await, events).await;

    app.platform().await.payment(user, "ready").await;
    store.wait_for_count(events, stored as usize + 1).await;
}

#[tokio::test]
async fn a_fault_is_logged_once_and_every_line_is_an_object() {
    if !SmtpSink::is_available() {
        return;
    }

    let smtp = free_port().unwrap();
    let beside = TestApp::prepare_alone(Options::default()).await;
    let mut app = TestApp::prepare_alone(Options::default()).await;

    app.set("store.url", &beside.store_url)
        .set("log.format", "json")
        .set("source.heartbeat", "200ms");
    app.set_fast_retries()
        .set("disable.threshold", "10")
        .set("disable.min_duration", "0s");
    app.set("mail.smtp_url", &format!("smtp://127.0.0.1:{smtp}"))
        .set("mail.from", "webhooks@example.com");
    app.setup().await;
    app.run().await;

    let user = app.platform().await.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let _mail = failing_receiver_and_mail_server(&mut app, &api, user, smtp).await;

    // The primary stops and starts.
    let from = lines(&app).len();
    app.server.stop(StopMode::Fast).await.unwrap();
    wait_for_metric(&mut app, "the stream's end", |line| {
        line == "walhook_capture_connected 0"
    })
    .await;
    wait_for(&app, from, "changes cannot be read now").await;
    app.server.start_again().await.unwrap();
    wait_for_metric(&mut app, "the stream", |line| {
        line == "walhook_capture_connected 1"
    })
    .await;

    let primary = messages(&app, from, FAULTS);
    assert!(
        primary
            .keys()
            .any(|line| line.contains("changes cannot be read now")),
        "{primary:?}"
    );

    assert_once(&primary);

    wait_for_a_stored_event(&app, &beside, user).await;

    // The store stops, long enough for every stage to retry more than once, and starts.
    let from = lines(&app).len();
    beside.server.stop(StopMode::Fast).await.unwrap();
    app.platform().await.payment(user, "ready").await;

    for words in [
        "measuring the store's backlog fails",
        "claiming deliveries fails",
        "processing recoveries fails",
        "reading notices fails",
    ] {
        wait_for(&app, from, words).await;
    }

    for _ in 0..3 {
        api.get("/webhooks").await.expect(503);
    }

    wait_for(&app, from, "storing events fails").await;
    let down = messages(&app, from, FAULTS);

    assert_once(&down);

    let without_progress = |line: &&Value| {
        line["message"]
            .as_str()
            .unwrap()
            .starts_with("storing events fails")
            && !line["progress"].is_string()
    };

    assert_eq!(lines(&app).iter().filter(without_progress).count(), 0);
    beside.server.start_again().await.unwrap();

    for words in [
        "measuring the store's backlog",
        "claiming deliveries",
        "processing recoveries",
        "reading notices",
        "storing events",
    ] {
        wait_for(&app, from, &format!("{words} works again")).await;
    }

    assert!(app.stop().await.success());

    for line in lines(&app) {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{line}");
        }
    }
}

#[tokio::test]
async fn at_debug_an_event_can_be_followed_from_the_wal_to_its_attempts() {
    let mut app = TestApp::start_with(|app| {
        app.set("log.format", "json")
            .set("log.filter", "walhook=debug")
            .set_fast_retries()
    })
    .await;

    let platform = app.platform().await;
    let receiver = Receiver::start().await;

    receiver.answer_status(503);
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api.create_webhook(&receiver.url("/hook"), &[EVENT]).await;

    platform.payment(user, "ready").await;
    api.wait_for_logs(&webhook, "ten attempts", |logs| logs.len() == 10)
        .await;

    let event = receiver.requests()[0]
        .header("x-webhook-event-id")
        .to_owned();
    let about = |app: &TestApp, message: &str| -> Vec<Value> {
        let of_event = |line: &Value| line["message"] == message && line["event"] == json!(event);
        lines(app).into_iter().filter(of_event).collect()
    };

    let stored = about(&app, "stored");
    let lsn = app
        .store()
        .await
        .query_one("select commit_lsn::text from walhook.event", &[])
        .await
        .unwrap();

    assert_eq!(
        (stored.len(), stored[0]["lsn"].as_str()),
        (1, Some(lsn.get(0)))
    );

    // Attempts are logged after they are recorded.
    assert!(app.stop().await.success());
    let failed = about(&app, "attempt failed");

    assert_eq!(failed.len(), 10);
    assert_eq!(
        (&failed[9]["attempt"], &failed[9]["status"]),
        (&json!(10), &json!(503))
    );
    assert_eq!(
        (&failed[0]["webhook"], &failed[0]["delivery"]),
        (&json!(webhook), &json!(receiver.requests()[0].delivery()))
    );
    assert!(
        receiver
            .requests()
            .iter()
            .all(|request| !request.headers.contains_key("traceparent"))
    );
}

#[tokio::test]
async fn fatal_errors_are_objects_too_and_invalid_filters_are_named() {
    let mut app = TestApp::prepare().await;
    app.set("log.format", "json");

    let output = app.walhook(&["run"]).await;
    assert_eq!(output.status.code(), Some(1));

    let words: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(
        words["level"] == "ERROR" && words["message"].as_str().unwrap().contains("walhook setup"),
        "{words}"
    );
    app.set("log.filter", "walhook=loud");

    let output = app.walhook(&["check"]).await;
    let words = String::from_utf8(output.stderr).unwrap();

    assert!(
        output.status.code() == Some(2) && words.contains("log.filter: `walhook=loud`"),
        "{words}"
    );
    let output = app
        .command(&["check"])
        .env("RUST_LOG", "walhook=loud")
        .output()
        .await
        .unwrap();

    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("RUST_LOG: `walhook=loud`")
    );
}
