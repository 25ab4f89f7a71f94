//! What receivers can ask for by their answers: later retries (`Retry-After`), no deliveries at all
//! (410 Gone), and fewer requests at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::scene::Scene;
use crate::support::{Answer, Bench, Receiver, SmtpSink, eventually};
use serde_json::{Value, json};
use tokio::sync::Notify;
use uuid::Uuid;
use walhook::config::{self, Period};
use walhook::domain::settings::Settings;
use walhook::private_postgres::free_port;

const DAY: f64 = 86_400.0;

/// Answers one delivery with each of these, and returns after how many seconds each is due again.
/// `@900` stands for the date in 900 seconds.
async fn postponed(bench: &Bench, answers: &[(u16, &str)]) -> Vec<f64> {
    let receiver = Receiver::start().await;
    let by_path: Vec<(u16, String)> = answers
        .iter()
        .map(|(status, value)| (*status, (*value).to_owned()))
        .collect();

    receiver.answer(move |request| {
        let (status, value) = &by_path[request.path[1..].parse::<usize>().unwrap()];
        let value = match value.strip_prefix('@') {
            Some(seconds) => SystemTime::now() + Duration::from_secs(seconds.parse().unwrap()),
            None => return Answer::Full(*status, vec![("retry-after", value.clone())], Vec::new()),
        };

        Answer::Full(
            *status,
            vec![("retry-after", httpdate::fmt_http_date(value))],
            Vec::new(),
        )
    });

    let mut deliveries = Vec::new();

    for number in 0..answers.len() {
        let (webhook, _) = bench.webhook(&receiver.url(&format!("/{number}"))).await;
        deliveries.push(bench.delivery(webhook).await);
    }

    let running = bench.run();
    let due = "select extract(epoch from due_at - started_at)::float8 from walhook.delivery
               join walhook.attempt on delivery_id = delivery.id
               where delivery.attempt = 2 and lease is null and delivery.id = any ($1) order by delivery.id";
    let rows = eventually("every failure to be recorded", async || {
        let rows = bench.client.query(due, &[&deliveries]).await.unwrap();
        (rows.len() == deliveries.len()).then_some(rows)
    })
    .await;

    running.stop().await;
    rows.iter().map(|row| row.get(0)).collect()
}

/// Asserts that each is due after so many seconds, plus `jitter` at most and the time until the
/// answer is recorded. Dates are in whole seconds.
fn assert_due(due: &[f64], expected: &[f64], jitter: f64) {
    assert_eq!(due.len(), expected.len());

    for (number, (due, wait)) in due.iter().zip(expected).enumerate() {
        assert!(
            (wait - 1.0..wait + jitter + 60.0).contains(due),
            "answer {number}: due after {due} s, not {wait} s"
        );
    }
}

#[tokio::test]
async fn retry_after_postpones_a_retry_by_at_most_a_day_and_never_advances_it() {
    let mut bench = Bench::new().await;
    let defaults = config::Delivery::default();

    bench.config.delivery.retry_schedule = defaults.retry_schedule;
    bench.config.delivery.retry_jitter = defaults.retry_jitter;
    bench.config.delivery.honor_retry_after = true;

    let answers = [
        (429, "600"),
        (503, "@900"),
        (429, "86500"),
        (503, "@864000"),
    ];

    assert_due(
        &postponed(&bench, &answers).await,
        &[600.0, 900.0, DAY, DAY],
        0.0,
    );

    // The schedule with its jitter applies to all others.
    let answers = [
        (429, "1"),
        (429, "@0"),
        (500, "600"),
        (429, "soon"),
        (503, ""),
    ];

    let due = postponed(&bench, &answers).await;
    assert!(due.iter().all(|due| *due >= 30.0), "{due:?}");
    assert_due(&due, &[30.0; 5], 30.0);

    let attempts = "select attempt, consecutive_failures from walhook.delivery join walhook.webhook on webhook.id = webhook_id";
    let rows = bench.client.query(attempts, &[]).await.unwrap();
    assert!(
        rows.iter()
            .all(|row| (row.get(0), row.get(1)) == (2_i16, 1_i64)),
        "each counts as any other attempt"
    );
}

#[tokio::test]
async fn by_default_retry_after_changes_nothing() {
    let mut bench = Bench::new().await;
    bench.config.delivery.retry_schedule = vec![Period(Duration::from_secs(30))];
    let due = postponed(&bench, &[(429, "600"), (503, "@900")]).await;
    assert_due(&due, &[30.0, 30.0], 0.0);
}

fn outcomes(logs: &[Value]) -> Vec<&str> {
    logs.iter()
        .map(|line| line["outcome"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_disabled_at_once_and_its_owner_notified() {
    if !SmtpSink::is_available() {
        return;
    }

    let port = free_port().unwrap();
    let sink = SmtpSink::start(port, &[]).await;
    let url = format!("smtp://127.0.0.1:{port}");
    let from = "Example <webhooks@example.com>";
    let mut scene = Scene::begin(&[
        ("disable.on_gone", "true"),
        ("mail.smtp_url", &url),
        ("mail.from", from),
    ])
    .await;

    // A test never disables.
    scene.receiver.answer_status(410);
    scene
        .api
        .post(&format!("{}/test", scene.path()), json!({}))
        .await
        .expect(200);
    scene
        .receiver
        .answer_in_turn(&[Answer::Status(500), Answer::Status(410)]);
    scene.payment().await;
    scene
        .api
        .wait_for_logs(&scene.webhook, "a test and a failure", |logs| {
            logs.len() == 2
        })
        .await;

    assert_eq!(scene.api.webhook(&scene.webhook).await["active"], true);
    scene.payment().await;

    let disabled = || async {
        Some(scene.api.webhook(&scene.webhook).await).filter(|webhook| webhook["active"] == false)
    };

    let disabled = eventually("the webhook to be disabled", disabled).await;
    assert_eq!(
        (
            &disabled["disabled_reason"],
            &disabled["consecutive_failures"]
        ),
        (&json!("gone"), &json!(2))
    );

    assert!(disabled["disabled_at"].is_string(), "{disabled}");

    // Both retries are cancelled.
    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "the cancellations", |logs| logs.len() == 5)
        .await;
    assert_eq!(
        outcomes(&logs),
        ["cancelled", "cancelled", "failed", "failed", "failed"],
        "{logs:?}"
    );

    let mails = sink.wait_for("taken", 1).await;
    assert_eq!(mails[0]["subject"], "Webhook disabled: test", "{mails:?}");

    for part in ["text", "html"] {
        let text = mails[0][part].as_str().unwrap();
        assert!(
            text.contains("410 Gone") && text.contains(&scene.receiver.url("/")),
            "{text}"
        );
    }

    scene
        .app
        .sidecar()
        .wait_for_metric(r#"walhook_webhooks_disabled_total{error_kind="gone"}"#, 1.0)
        .await;

    // Reactivation works as after any other disablement.
    let active = scene.set_active(true).await;
    assert_eq!(
        (&active["disabled_reason"], &active["failure_count"]),
        (&Value::Null, &json!(0))
    );
}

#[tokio::test]
async fn by_default_410_is_a_failure_like_any_other() {
    let mut scene = Scene::begin(&[]).await;
    scene.receiver.answer_status(410);
    scene.payment().await;
    scene
        .api
        .wait_for_logs(&scene.webhook, "a failure", |logs| {
            outcomes(logs) == ["failed"]
        })
        .await;

    assert_eq!(scene.api.webhook(&scene.webhook).await["active"], true);
    assert!(scene.app.stop().await.success());
}

/// Holds every request until it is released. Knows how many are in flight, as the receiver sees it.
struct Held {
    receiver: Receiver,
    gate: Arc<Notify>,
    is_overloaded: Arc<AtomicBool>,
    released: usize,
}

impl Held {
    async fn start() -> Held {
        let receiver = Receiver::start().await;
        let gate = Arc::new(Notify::new());
        let is_overloaded = Arc::new(AtomicBool::new(true));
        let held = gate.clone();
        let overloaded = is_overloaded.clone();

        let status = move || {
            if overloaded.load(Ordering::Relaxed) {
                429
            } else {
                200
            }
        };

        receiver.answer(move |_| Answer::When(held.clone(), status()));
        Held {
            receiver,
            gate,
            is_overloaded,
            released: 0,
        }
    }

    fn in_flight(&self) -> usize {
        self.receiver.requests().len() - self.released
    }

    async fn wait_for_in_flight(&self, count: usize) {
        self.receiver.wait_for(self.released + count).await;
    }

    fn release(&mut self, count: usize) {
        (0..count).for_each(|_| self.gate.notify_one());
        self.released += count;
    }
}

#[tokio::test]
async fn an_overloaded_receiver_gets_fewer_requests_at_once_until_it_has_recovered() {
    const LIMIT: usize = 8;
    let mut bench = Bench::new().await;

    bench.config.delivery.per_webhook_concurrency = LIMIT;

    // Requests end only when they are released, and retries come after the test.
    bench.config.delivery.timeout = Period(Duration::from_secs(120));
    bench.config.delivery.retry_schedule = vec![Period(Duration::from_secs(3_600))];

    let mut held = Held::start().await;
    let (webhook, _) = bench.webhook(&held.receiver.url("/")).await;

    // More than may be in flight, each time: queued deliveries are dropped when too little of their
    // leases is left.
    let store_more = async |webhook: Uuid| {
        let mut deliveries = Vec::new();

        for _ in 0..LIMIT + 2 {
            deliveries.push(bench.delivery(webhook).await);
        }

        deliveries
    };

    let recorded = async |count: usize| {
        eventually("the answers to be recorded", async || {
            let statement = "select count(*) from walhook.attempt where webhook_id = $1";
            let row = bench
                .client
                .query_one(statement, &[&webhook])
                .await
                .unwrap();
            (row.get::<_, i64>(0) == count as i64).then_some(())
        })
        .await;
    };

    let other = Receiver::start().await;
    let (beside, _) = bench.webhook(&other.url("/")).await;
    let running = bench.run();

    // Each round fails as a whole, and halves the number once.
    for (round, expected) in [LIMIT, 4, 2, 1, 1].into_iter().enumerate() {
        store_more(webhook).await;
        held.wait_for_in_flight(expected).await;
        recorded(held.released).await;

        // Other webhooks are served as ever. When their requests have arrived, those that would be
        // too many here had arrived too.
        for delivery in store_more(beside).await {
            bench.wait_for_end(delivery).await;
        }

        assert_eq!(held.in_flight(), expected);

        // Requests that arrive from now on are those of the next round.
        held.is_overloaded.store(round < 4, Ordering::Relaxed);
        held.release(expected);
    }

    // About one more with each round of good answers.
    let mut most = 1;

    for _ in 0..30 {
        store_more(webhook).await;
        held.wait_for_in_flight(most).await;
        recorded(held.released).await;
        most = most.max(held.in_flight());
        assert!(most <= LIMIT);

        if most == LIMIT {
            break;
        }

        held.release(held.in_flight());
    }

    assert_eq!(most, LIMIT, "it has recovered");
    running.stop().await;
}

#[tokio::test]
async fn a_cancelled_delivery_in_the_queue_is_not_sent_after_a_reactivation() {
    // Leases outlast the test: what is dropped by mistake does not arrive late.
    let settings = [
        ("delivery.per_webhook_concurrency", "1"),
        ("delivery.timeout", "90s"),
        ("shutdown.drain", "0s"),
    ];
    let mut scene = Scene::begin(&settings).await;
    let gate = Arc::new(Notify::new());

    scene
        .receiver
        .answer_in_turn(&[Answer::When(gate.clone(), 200), Answer::Status(200)]);
    scene.payment().await;
    scene.receiver.wait_for(1).await;
    scene.payment().await;

    scene
        .app
        .wait_for_count(
            "select count(*) from walhook.pending where lease is not null",
            2,
        )
        .await;

    scene.set_active(false).await;
    scene.set_active(true).await;
    gate.notify_one();

    // Fresh deliveries are sent: from the hand-off, and after a claim.
    scene.payment().await;
    let requests = scene.receiver.wait_for(2).await;
    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "all entries", |logs| logs.len() == 4)
        .await;
    let mut outcomes = outcomes(&logs);

    outcomes.sort_unstable();
    assert_eq!(
        outcomes,
        ["cancelled", "cancelled", "delivered", "delivered"]
    );

    let cancelled: Vec<&str> = logs
        .iter()
        .filter(|log| log["outcome"] == "cancelled")
        .map(|log| log["delivery_id"].as_str().unwrap())
        .collect();
    assert!(
        cancelled.contains(&requests[0].delivery()) && !cancelled.contains(&requests[1].delivery()),
        "{logs:?}"
    );

    // A cancelled one that is redelivered is claimed under the new activation.
    let queued = logs
        .iter()
        .find(|log| log["outcome"] == "cancelled" && log["delivery_id"] != requests[0].delivery());
    let path = format!(
        "{}/logs/{}/redeliver",
        scene.path(),
        queued.unwrap()["id"].as_str().unwrap()
    );

    scene.api.post(&path, json!({})).await.expect(202);
    let requests = scene.receiver.wait_for(3).await;
    assert_eq!(requests[2].delivery(), queued.unwrap()["delivery_id"]);
    assert!(scene.app.stop().await.success());
}

#[tokio::test]
async fn a_claimed_delivery_is_sent_although_its_webhook_was_edited_since() {
    let mut bench = Bench::new().await;
    bench.config.delivery.per_webhook_concurrency = 1;
    bench.config.delivery.timeout = Period(Duration::from_secs(90));

    let receiver = Receiver::start().await;
    let gate = Arc::new(Notify::new());

    receiver.answer_in_turn(&[Answer::When(gate.clone(), 200), Answer::Status(200)]);
    let (webhook, _) = bench.webhook(&receiver.url("/old")).await;
    let deliveries = [bench.delivery(webhook).await, bench.delivery(webhook).await];
    let running = bench.run();

    receiver.wait_for(1).await;
    let change = |settings: &mut Settings| {
        settings.url = receiver.url("/new");
        settings.active = true;
    };
    bench.edit(webhook, change).await;
    gate.notify_one();

    for delivery in deliveries {
        bench.wait_for_end(delivery).await;
    }

    assert_eq!(
        receiver
            .requests()
            .iter()
            .map(|request| request.path.clone())
            .collect::<Vec<_>>(),
        ["/old", "/new"]
    );

    running.stop().await;
}
