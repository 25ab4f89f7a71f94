//! The default retry schedule, and the default threshold for disabling webhooks.

use crate::support::{Bench, Receiver, TestApp, eventually};
use serde_json::json;
use walhook::config;

const READY: &str = "payment.statement_ready";

/// The default retry schedule, in seconds.
const WAITS: [f64; 9] = [
    30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, 3_840.0, 7_680.0,
];
const JITTER: f64 = 30.0;
/// Deliveries per attempt number. The probability that the jitters of all of them differ by less
/// than a third of the range is below 10^-30.
const DELIVERIES: usize = 8;

#[tokio::test]
async fn a_failed_delivery_is_due_after_its_wait_and_a_random_jitter() {
    let mut bench = Bench::new().await;
    let defaults = config::Delivery::default();

    bench.config.delivery.retry_schedule = defaults.retry_schedule;
    bench.config.delivery.retry_jitter = defaults.retry_jitter;

    let receiver = Receiver::start().await;
    receiver.answer_status(500);

    let (webhook, _) = bench.webhook(&receiver.url("/")).await;
    let mut deliveries = Vec::new();

    for attempt in 1..=9_i16 {
        for _ in 0..DELIVERIES {
            let delivery = bench.delivery(webhook).await;
            let at = "update walhook.delivery set attempt = $2 where id = $1";
            bench
                .client
                .execute(at, &[&delivery, &attempt])
                .await
                .unwrap();
            deliveries.push(delivery);
        }
    }

    let running = bench.run();

    // The wait starts when the failure is recorded: after the attempt's start and before now.
    let recorded = "select attempt.attempt, extract(epoch from due_at - started_at)::float8,
                           extract(epoch from due_at - now())::float8
                    from walhook.delivery join walhook.attempt on delivery_id = delivery.id
                    where delivery.attempt = attempt.attempt + 1 and lease is null";
    let rows = eventually("every failure to be recorded", async || {
        let rows = bench.client.query(recorded, &[]).await.unwrap();
        (rows.len() == deliveries.len()).then_some(rows)
    })
    .await;
    let mut jitters = Vec::new();

    for row in rows {
        let (attempt, after_start, from_now): (i16, f64, f64) =
            (row.get(0), row.get(1), row.get(2));
        let wait = WAITS[attempt as usize - 1];

        assert!(
            after_start >= wait,
            "attempt {attempt}: due {after_start} s after its start"
        );
        assert!(
            from_now <= wait + JITTER,
            "attempt {attempt}: due in {from_now} s"
        );
        jitters.push(after_start - wait);
    }

    jitters.sort_by(f64::total_cmp);
    let spread = jitters[jitters.len() - 1] - jitters[0];
    assert!(spread > JITTER / 3.0, "{jitters:?}");
    running.stop().await;
}

#[tokio::test]
async fn by_default_a_hundred_consecutive_failures_disable_a_webhook() {
    let app = TestApp::start_with(|app| app.set_fast_retries()).await;

    let platform = app.platform().await;
    let receiver = Receiver::start().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api.create_webhook(&receiver.url("/"), &[READY]).await;
    let mut failures = 0;

    // One event after the other: ten attempts each, before the next event.
    let mut fail = async |events: usize| {
        receiver.answer_status(500);

        for _ in 0..events {
            platform.payment(user, "ready").await;
            failures += 10;
            app.wait_for_count("select failure_count from walhook.webhook", failures)
                .await;
        }

        api.webhook(&webhook).await
    };

    assert_eq!(fail(2).await["consecutive_failures"], 20);
    receiver.answer_status(200);
    platform.payment(user, "ready").await;
    app.wait_for_count("select success_count from walhook.webhook", 1)
        .await;

    let failing = fail(9).await;
    assert_eq!(
        (&failing["failure_count"], &failing["consecutive_failures"]),
        (&json!(110), &json!(90))
    );
    assert_eq!(
        failing["active"], true,
        "there are more than a hundred failures, but not in a row"
    );

    let disabled = fail(1).await;
    assert_eq!(
        (&disabled["active"], &disabled["consecutive_failures"]),
        (&json!(false), &json!(100))
    );
    assert!(disabled["disabled_at"].is_string(), "{disabled}");
    assert_eq!(
        receiver.requests().len(),
        20 + 1 + 100,
        "the hundredth failure disables, and no earlier one"
    );

    let active = api
        .patch(&format!("/webhooks/{webhook}"), json!({ "active": true }))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&active["failure_count"], &active["consecutive_failures"]),
        (&json!(0), &json!(0))
    );
}
