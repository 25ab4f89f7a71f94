//! Failing webhooks are disabled and their owners notified by e-mail: a real mail server, receivers
//! that fail, and replicas that are killed.

use crate::support::{
    Api, Platform, Receiver, SmtpSink, TestApp, disable_webhooks, eventually, one, run_sql,
};
use serde_json::{Value, json};
use walhook::private_postgres::free_port;

const EVENT: &str = "payment.statement_ready";

/// Prepares a sidecar that disables after ten consecutive failures.
async fn prepare(settings: &[(&str, &str)]) -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set_fast_retries()
        .set("disable.threshold", "10")
        .set("disable.min_duration", "0s");

    for (key, value) in settings {
        app.set(key, value);
    }

    app.setup().await;
    app
}

fn set_mail(app: &mut TestApp, smtp_url: &str) {
    app.set("mail.smtp_url", smtp_url)
        .set("mail.from", "Example <webhooks@example.com>");
}

async fn create(api: &Api, name: &str, receiver: &Receiver) -> String {
    let body = json!({ "name": name, "url": receiver.url("/hook"), "events": [EVENT] });
    api.post("/webhooks", body).await.expect(201).json()["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn wait_until_disabled(api: &Api, webhook: &str) -> Value {
    let disabled =
        || async { Some(api.webhook(webhook).await).filter(|webhook| webhook["active"] == false) };
    eventually("the webhook to be disabled", disabled).await
}

/// Waits until every notice has ended, and returns their kinds and results.
async fn ended_notices(app: &TestApp) -> Vec<(String, String)> {
    let client = app.store().await;
    let ended = || async {
        let statement = "select kind, outcome from walhook.notice order by at, kind";
        let rows = client.query(statement, &[]).await.unwrap();
        let ended: Vec<_> = rows
            .iter()
            .filter_map(|row| Some((row.get(0), row.get::<_, Option<String>>(1)?)))
            .collect();

        (ended.len() == rows.len() && !rows.is_empty()).then_some(ended)
    };

    eventually("the ends of all notices", ended).await
}

fn sent(kinds: &[&str]) -> Vec<(String, String)> {
    kinds
        .iter()
        .map(|kind| ((*kind).to_owned(), "sent".to_owned()))
        .collect()
}

fn with_subject<'a>(mails: &'a [Value], subject: &str) -> Vec<&'a Value> {
    mails
        .iter()
        .filter(|mail| mail["subject"] == subject)
        .collect()
}

/// Commits payments in one transaction.
async fn pay(platform: &Platform, user: i64, times: usize) {
    run_sql(&platform.client, "begin").await;

    for _ in 0..times {
        platform.payment(user, "ready").await;
    }

    run_sql(&platform.client, "commit").await;
}

#[tokio::test]
async fn a_failing_webhook_is_disabled_its_owner_notified_once_and_it_can_be_reactivated() {
    if !SmtpSink::is_available() {
        return;
    }

    let port = free_port().unwrap();
    let sink = SmtpSink::start(port, &["--refuse", "2"]).await;
    let mut app = prepare(&[]).await;

    set_mail(&mut app, &format!("smtp://127.0.0.1:{port}"));
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let receiver = Receiver::start().await;

    receiver.answer_status(500);
    let name = "Größe <b>& Hooks";
    let webhook = create(&api, name, &receiver).await;
    let since = walhook::domain::time::millis(jiff::Timestamp::now());

    pay(&platform, user, 3).await;

    let disabled = wait_until_disabled(&api, &webhook).await;
    assert_eq!(
        disabled["disabled_reason"],
        "HTTP 500 answers (http_status)"
    );
    assert!(
        disabled["disabled_at"].is_string()
            && disabled["consecutive_failures"].as_u64() >= Some(10),
        "{disabled}"
    );

    // Three events, ten failures: some deliveries were pending, and are cancelled.
    let has_cancelled = |logs: &[Value]| logs.iter().any(|line| line["outcome"] == "cancelled");
    let logs = api
        .wait_for_logs(&webhook, "cancellations", has_cancelled)
        .await;
    let cancelled: Vec<&Value> = logs
        .iter()
        .filter(|line| line["outcome"] == "cancelled")
        .collect();

    assert!(
        !cancelled.is_empty()
            && cancelled
                .iter()
                .all(|line| line["error"]["kind"] == "webhook_inactive"),
        "{logs:?}"
    );

    assert!(
        !logs.iter().any(|line| line["outcome"] == "delivered"),
        "{logs:?}"
    );

    assert_eq!(ended_notices(&app).await, sent(&["warning", "disabled"]));
    assert_eq!(sink.events("refused").len(), 2);

    let mails = sink.wait_for("taken", 2).await;
    assert_eq!(mails.len(), 2, "{mails:?}");
    assert_eq!(
        with_subject(&mails, &format!("Warning: webhook {name} is failing")).len(),
        1,
        "{mails:?}"
    );

    let [mail] = with_subject(&mails, &format!("Webhook disabled: {name}"))[..] else {
        panic!("{mails:?}")
    };

    assert_eq!(
        mail["recipients"],
        json!([format!("user{user}@example.com")])
    );

    assert_eq!(
        (&mail["sender"], &mail["content_type"]),
        (
            &json!("webhooks@example.com"),
            &json!("multipart/alternative")
        )
    );

    let text = mail["text"].as_str().unwrap();
    let html = mail["html"].as_str().unwrap();

    for part in [
        receiver.url("/hook").as_str(),
        "HTTP 500 answers",
        &webhook,
        "active",
    ] {
        assert!(
            text.contains(part) && html.contains(part),
            "{part}: {text}\n{html}"
        );
    }

    assert!(
        text.contains(name) && html.contains("Größe &#60;b&#62;&#38; Hooks"),
        "{text}\n{html}"
    );

    reactivate_and_recover(&app, &api, &webhook, &receiver, &platform, user, &since).await;
    let sidecar = app.sidecar();

    sidecar
        .wait_for_metric(
            "walhook_webhooks_disabled_total{error_kind=\"http_status\"}",
            1.0,
        )
        .await;

    sidecar
        .wait_for_metric("walhook_notices_sent_total{kind=\"disabled\"}", 1.0)
        .await;
    sidecar
        .wait_for_metric("walhook_notice_failures_total{cause=\"put_off\"}", 2.0)
        .await;
}

/// Events that occur while it is disabled are kept. Reactivation resets its counters, and a
/// recovery delivers everything.
async fn reactivate_and_recover(
    app: &TestApp,
    api: &Api,
    webhook: &str,
    receiver: &Receiver,
    platform: &Platform,
    user: i64,
    since: &str,
) {
    let store = app.store().await;
    receiver.answer_status(200);
    receiver.clear();
    pay(platform, user, 1).await;

    let missed = || async {
        let missed: i64 = one(&store, "select count(*) from walhook.missed_event").await;
        (missed == 1).then_some(())
    };

    eventually("the missed event", missed).await;
    let path = format!("/webhooks/{webhook}");
    let active = api
        .patch(&path, json!({ "active": true }))
        .await
        .expect(200)
        .json();

    for (key, value) in [
        ("failure_count", json!(0)),
        ("consecutive_failures", json!(0)),
        ("disabled_at", Value::Null),
    ] {
        assert_eq!(active[key], value, "{active}");
    }

    assert_eq!(active["disabled_reason"], Value::Null);
    assert!(
        receiver.requests().is_empty(),
        "nothing was sent while it was disabled"
    );
    api.post(&format!("{path}/recover"), json!({ "since": since }))
        .await
        .expect(202);

    let events = |requests: &[crate::support::Received]| {
        let ids = requests
            .iter()
            .map(|request| request.header("x-webhook-event-id").to_owned());
        ids.collect::<std::collections::BTreeSet<_>>().len()
    };

    receiver
        .wait_until("all four payments", |requests| events(requests) == 4)
        .await;

    let row = store
        .query_one(
            "select count(*) from walhook.audit where via = 'automatic'",
            &[],
        )
        .await
        .unwrap();

    assert_eq!(row.get::<_, i64>(0), 1);
}

/// Also deliveries that failed for good long before the webhook was disabled.
#[tokio::test]
async fn the_request_in_the_mail_brings_back_everything_since_the_first_failure() {
    if !SmtpSink::is_available() {
        return;
    }

    let port = free_port().unwrap();
    let sink = SmtpSink::start(port, &[]).await;
    let mut app = prepare(&[("disable.threshold", "15")]).await;

    set_mail(&mut app, &format!("smtp://127.0.0.1:{port}"));
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let receiver = Receiver::start().await;

    receiver.answer_status(500);
    let webhook = create(&api, "n", &receiver).await;

    pay(&platform, user, 1).await;
    let has_failed = |logs: &[Value]| {
        logs.iter()
            .any(|line| line["outcome"] == "permanently_failed")
    };

    api.wait_for_logs(&webhook, "a permanent failure", has_failed)
        .await;
    let store = app.store().await;
    let age = "update walhook.webhook set failing_since = failing_since - interval '1 hour' returning failing_since";
    let failing_since: jiff::Timestamp = one(&store, age).await;

    pay(&platform, user, 1).await;
    wait_until_disabled(&api, &webhook).await;

    let mails = sink.wait_for("taken", 2).await;
    let [mail] = with_subject(&mails, "Webhook disabled: n")[..] else {
        panic!("{mails:?}")
    };

    let text = mail["text"].as_str().unwrap();
    let body = text
        .lines()
        .find(|line| line.contains("\"since\""))
        .unwrap_or_else(|| panic!("{text}"));
    let body: Value = serde_json::from_str(body.trim()).unwrap();
    let since: jiff::Timestamp = body["since"].as_str().unwrap().parse().unwrap();

    assert!(since < failing_since, "{since} {failing_since}");
    receiver.answer_status(200);
    receiver.clear();

    let path = format!("/webhooks/{webhook}");
    api.patch(&path, json!({ "active": true }))
        .await
        .expect(200);
    api.post(&format!("{path}/recover"), body).await.expect(202);
    receiver.wait_for(2).await;
}

#[tokio::test]
async fn one_event_that_fails_permanently_counts_ten_and_notices_wait_until_mail_is_configured() {
    if !SmtpSink::is_available() {
        return;
    }

    let mut app = prepare(&[
        ("disable.policy", "cumulative"),
        ("disable.threshold", "13"),
    ])
    .await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let receiver = Receiver::start().await;

    // Three failures and a success, which resets nothing under the cumulative policy; then
    // permanent failures.
    let mut count = 0;
    receiver.answer(move |_| {
        count += 1;
        crate::support::Answer::Status(if count == 4 { 200 } else { 503 })
    });

    let webhook = create(&api, "Hooks", &receiver).await;
    pay(&platform, user, 1).await;
    api.wait_for_logs(&webhook, "the success", |logs| {
        logs.iter().any(|line| line["outcome"] == "delivered")
    })
    .await;

    let counted = api.webhook(&webhook).await;
    assert_eq!(
        (&counted["failure_count"], &counted["consecutive_failures"]),
        (&json!(3), &json!(0))
    );
    pay(&platform, user, 1).await;

    let disabled = wait_until_disabled(&api, &webhook).await;
    assert_eq!(
        (
            &disabled["failure_count"],
            &disabled["consecutive_failures"]
        ),
        (&json!(13), &json!(10))
    );

    let logs = api.logs(&webhook).await;
    assert_eq!(
        (&logs[0]["outcome"], &logs[0]["attempt"]),
        (&json!("permanently_failed"), &json!(10))
    );

    let words = "webhook owner not notified: mail.smtp_url and mail.from are not set";
    let logged = || async {
        let log = std::fs::read_to_string(app.log_file()).unwrap();
        (log.matches(words).count() == 2).then_some(())
    };

    eventually("the warning and the disablement in the log", logged).await;

    let silent = platform.user(&[]).await;
    let refusing = platform.user(&[]).await;
    let reactivated = platform.user(&[]).await;
    let store = app.store().await;

    platform
        .execute("update app_user set email = '' where id = $1", &[&silent])
        .await;
    disable_webhooks(
        &store,
        &[
            &silent.to_string(),
            "no number",
            &refusing.to_string(),
            &reactivated.to_string(),
        ],
    )
    .await;

    let reactivate =
        "update walhook.webhook set active = true, disabled_at = null where user_id = $1";
    store
        .execute(reactivate, &[&reactivated.to_string()])
        .await
        .unwrap();

    // One of the users has no address, one does not exist, and the mail server rejects the third.
    let port = free_port().unwrap();
    let forbidden = format!("user{refusing}@example.com");
    let sink = SmtpSink::start(port, &["--forbid", &forbidden]).await;

    assert!(app.stop().await.success());
    set_mail(&mut app, &format!("smtp://127.0.0.1:{port}"));
    app.run().await;
    sink.wait_for("taken", 2).await;

    // A rejected notice delays no other, is retried, and is visible.
    sink.wait_for("forbidden", 2).await;
    let statement = "select count(*) filter (where outcome = 'sent'), count(*) filter (where outcome = 'no_address'), \
                     min(last_error) filter (where ended_at is null), count(*) filter (where ended_at is null) \
                     from walhook.notice";
    let settled = || async {
        let row = store.query_one(statement, &[]).await.unwrap();
        let counts: (i64, i64, i64) = (row.get(0), row.get(1), row.get(3));
        (counts == (2, 2, 1))
            .then(|| row.get::<_, Option<String>>(2))
            .flatten()
    };

    let error = eventually("the ends of the others", settled).await;
    let outdated: String = one(
        &store,
        "select user_id from walhook.notice where outcome = 'outdated'",
    )
    .await;

    assert_eq!(
        outdated,
        reactivated.to_string(),
        "its webhook is not disabled any more"
    );
    assert!(
        error.contains("550") && error.contains("no such user"),
        "{error}"
    );

    let metrics_url = app.sidecar().metrics_url.clone();
    let pending = || async {
        let metrics = crate::support::metrics(&metrics_url).await;
        let mut lines = metrics.lines();
        lines
            .any(|line| line == "walhook_notices_pending 1")
            .then_some(())
    };

    eventually("the gauge of pending notices", pending).await;
    let subjects: Vec<Value> = sink
        .events("taken")
        .iter()
        .map(|mail| mail["subject"].clone())
        .collect();

    assert!(
        subjects.contains(&json!("Webhook disabled: Hooks")),
        "{subjects:?}"
    );
    let log = std::fs::read_to_string(app.log_file()).unwrap();
    assert_eq!(
        log.matches("cannot be notified; retrying").count(),
        1,
        "one condition is one line: {log}"
    );
}

/// They are kept, but no mail server has a backlog.
#[tokio::test]
async fn without_mail_no_notices_are_pending() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let store = app.store().await;
    disable_webhooks(&store, &["1"]).await;
    let sidecar = app.replica(&[]).await;
    let gauge = eventually("the gauge", async || {
        sidecar.metric("walhook_notices_pending").await
    })
    .await;
    let kept: i64 = one(&store, "select count(*) from walhook.notice").await;

    assert_eq!((gauge, kept), (0.0, 1));
}

/// A certificate for 127.0.0.1 and that of its authority, in files.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Certificates {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

        let directory = tempfile::tempdir().unwrap();
        let authority_key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();

        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_certificate = authority.self_signed(&authority_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = server
            .signed_by(&key, &Issuer::new(authority, authority_key))
            .unwrap();
        let files = [
            ("ca.pem", authority_certificate.pem()),
            ("mail.pem", certificate.pem()),
            ("key.pem", key.serialize_pem()),
        ];

        for (name, pem) in files {
            std::fs::write(directory.path().join(name), pem).unwrap();
        }

        Certificates { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_string_lossy()
            .into_owned()
    }
}

#[tokio::test]
async fn mail_is_sent_over_tls_with_a_login_and_check_reports_faults() {
    if !SmtpSink::is_available() {
        return;
    }

    let certificates = Certificates::new();
    let pem = certificates.path("mail.pem");
    let key = certificates.path("key.pem");

    let secured = [
        "--certificate",
        &pem,
        "--key",
        &key,
        "--user",
        "us@er",
        "--password",
        "p/w",
    ];

    let start = free_port().unwrap();
    let wrapped = free_port().unwrap();
    let starttls = SmtpSink::start(start, &[&secured[..], &["--tls", "starttls"]].concat()).await;
    let smtps = SmtpSink::start(wrapped, &[&secured[..], &["--tls", "wrapped"]].concat()).await;
    let mut app = prepare(&[]).await;

    let check = async |app: &TestApp| -> String {
        let output = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
        output
            .lines()
            .find(|line| line.contains("  mail: "))
            .unwrap_or_else(|| panic!("{output}"))
            .to_owned()
    };

    assert!(
        check(&app)
            .await
            .starts_with("warn  mail: not configured; set mail.smtp_url"),
        "no mail"
    );

    let url = format!("smtp://us%40er:p%2Fw@127.0.0.1:{start}?tls=required");
    set_mail(&mut app, &url);

    // This machine does not trust the authority yet.
    assert!(
        check(&app).await.starts_with("fail  mail: 127.0.0.1"),
        "an unknown authority"
    );
    app.set("mail.extra_ca_file", &certificates.path("ca.pem"));
    assert!(
        check(&app).await.starts_with("ok    mail: 127.0.0.1"),
        "{}",
        check(&app).await
    );
    app.set("mail.smtp_url", &url.replace("p%2Fw", "guessed"));

    let refused = check(&app).await;
    assert!(
        refused.starts_with("fail  mail: ")
            && refused.contains("535")
            && !refused.contains("guessed"),
        "{refused}"
    );

    let platform = app.platform().await;
    let user = platform.user(&[]).await.to_string();
    let store = app.store().await;
    let smtps_url = format!("smtps://us%40er:p%2Fw@127.0.0.1:{wrapped}");

    for (url, sink) in [(&url, &starttls), (&smtps_url, &smtps)] {
        app.set("mail.smtp_url", url);
        disable_webhooks(&store, &[&user]).await;
        app.run().await;

        let mails = sink.wait_for("taken", 1).await;
        assert_eq!(
            (&mails[0]["tls"], &mails[0]["login"]),
            (&json!(true), &json!("us@er")),
            "{mails:?}"
        );

        let headers = mails[0]["headers"].to_string();
        assert!(
            headers.contains("Auto-Submitted")
                && headers.contains("Example <webhooks@example.com>"),
            "{headers}"
        );
        assert!(app.stop().await.success());
    }
}
