//! Walhook's own occurrences at the operator's webhooks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::{Answer, Platform, Receiver, TestApp, eventually, run_sql};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// A search is due every ten seconds.
const SEARCH_NOW: &str = "update walhook.occurrence_search set due_at = now()";

async fn start(operator: &Receiver) -> (TestApp, Platform) {
    let url = operator.url("/operator");
    let app = TestApp::start_with(|app| {
        app.set_fast_retries()
            .set("operator.webhooks", &url)
            .set("operator.secret", SECRET)
            .set("disable.threshold", "30")
    })
    .await;
    let platform = app.platform().await;
    (app, platform)
}

/// Returns the sums of the counts by kind. Each occurrence is counted once, however often it was
/// sent.
fn counts(operator: &Receiver) -> BTreeMap<String, i64> {
    let mut seen = BTreeSet::new();
    let mut counts = BTreeMap::new();

    for request in operator.requests() {
        if seen.insert(request.delivery().to_owned()) {
            let count = request.data()["count"].as_i64().expect("a count");
            *counts.entry(request.event().to_owned()).or_default() += count;
        }
    }

    counts
}

#[tokio::test]
async fn every_kind_of_occurrence_is_signed_retried_and_counted() {
    let operator = Receiver::start().await;
    let receiver = Receiver::start().await;
    let (app, platform) = start(&operator).await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/in"), &["payment.statement_ready"])
        .await;
    let store = app.store().await;

    receiver.answer_status(500);
    operator.answer(|request| Answer::Status(if request.attempt() == 1 { 503 } else { 200 }));
    platform.payments(user, 3).await;

    run_sql(
        &store,
        "insert into walhook.gap (slot, reason, detail) values ('other', 'slot_missing', 'lost');
         insert into walhook.unrouted_event (id, kind, reason, source, source_id, occurred_at, ordinal)
         select gen_random_uuid(), 'delivery.failed', 'label_not_found', 'distro_queue', n, now(), 0
         from generate_series(1, 6000) as n",
    )
    .await;

    let expected: BTreeMap<String, i64> = [
        ("webhook.failing", 1),
        ("webhook.disabled", 1),
        ("delivery.permanently_failed", 3),
        ("gap.opened", 1),
        ("gap.repaired", 1),
        ("event.unrouted", 6_000),
    ]
    .map(|(kind, count)| (kind.to_owned(), count))
    .into();

    eventually("every occurrence", async || {
        run_sql(&store, SEARCH_NOW).await;
        let repaired = "update walhook.gap set repaired_at = now() where repaired_at is null";

        if counts(&operator).contains_key("gap.opened") {
            run_sql(&store, repaired).await;
        }

        (counts(&operator) == expected).then_some(())
    })
    .await;

    app.wait_for_count("select count(*) from walhook.occurrence", 0)
        .await;
    let requests = operator.requests();
    requests
        .iter()
        .for_each(|request| request.assert_sound(SECRET));
    let retried = requests
        .iter()
        .filter(|request| request.attempt() == 2)
        .count();
    let deliveries: BTreeSet<&str> = requests.iter().map(|request| request.delivery()).collect();
    assert_eq!(retried, deliveries.len(), "each is retried under its id");

    let unrouted = requests
        .iter()
        .filter(|request| request.event() == "event.unrouted");
    let unrouted: BTreeSet<&str> = unrouted.map(|request| request.delivery()).collect();
    assert_eq!(unrouted.len(), 2, "many are one request");

    let disabled = requests
        .iter()
        .find(|request| request.event() == "webhook.disabled");
    let item = disabled.expect("it was sent").data()["items"][0].clone();
    let shown = ["webhook_id", "user_id", "name", "failures", "threshold"].map(|key| &item[key]);
    let expected: [Value; 5] = [
        json!(webhook),
        json!(user.to_string()),
        json!("test"),
        json!(30),
        json!(30),
    ];
    assert_eq!(shown, expected.each_ref());
}

#[tokio::test]
async fn an_occurrence_survives_a_kill_and_is_sent_under_the_same_id() {
    let operator = Receiver::start().await;
    let (mut app, _) = start(&operator).await;
    let store = app.store().await;
    let gap =
        "insert into walhook.gap (slot, reason, detail) values ('other', 'slot_missing', 'lost')";

    operator.answer(|_| Answer::Hang);
    run_sql(&store, gap).await;
    run_sql(&store, SEARCH_NOW).await;
    let first = operator.wait_for(1).await.remove(0);

    app.kill().await;
    operator.answer_status(200);
    // As if the lease had ended.
    run_sql(&store, "update walhook.occurrence set due_at = now()").await;
    app.run().await;

    let requests = operator.wait_for(2).await;
    assert_eq!(requests[1].delivery(), first.delivery());
    app.wait_for_count("select count(*) from walhook.occurrence", 0)
        .await;
}

/// Otherwise the first webhook of the operator would get the history of the retention period.
#[tokio::test]
async fn what_occurs_before_there_is_a_webhook_is_not_sent() {
    let operator = Receiver::start().await;
    let mut app = TestApp::start().await;
    let store = app.store().await;
    let gap =
        "insert into walhook.gap (slot, reason, detail) values ('other', 'slot_missing', 'lost')";

    run_sql(&store, gap).await;
    run_sql(&store, SEARCH_NOW).await;
    let reported = "select count(*) from walhook.gap where is_reported";
    app.wait_for_count(reported, 1).await;

    app.set("operator.webhooks", &operator.url("/"))
        .set("operator.secret", SECRET);
    app.restart().await;
    run_sql(&store, "update walhook.gap set repaired_at = now()").await;
    run_sql(&store, SEARCH_NOW).await;

    let request = operator.wait_for(1).await.remove(0);
    assert_eq!(request.event(), "gap.repaired");
}

#[tokio::test]
async fn a_webhook_needs_a_valid_url_and_a_secret() {
    let mut app = TestApp::prepare().await;
    let cases = [
        ("https://alerts.internal", "", "operator.secret"),
        ("https://alerts.internal", "plain", "operator.secret"),
        ("alerts.internal", SECRET, "operator.webhooks"),
    ];

    for (url, secret, setting) in cases {
        app.set("operator.webhooks", url);

        if !secret.is_empty() {
            app.set("operator.secret", secret);
        }

        let output = app.walhook(&["config"]).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(setting), "{errors}");
    }

    app.set("operator.webhooks", "https://alerts.internal");
    let shown = app.walhook_ok(&["config"]).await;
    assert!(!shown.contains(SECRET), "{shown}");
}
