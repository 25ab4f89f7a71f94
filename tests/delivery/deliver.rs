//! The delivery and recording stages together, on a real store and real receivers.

use std::time::{Duration, Instant};

use crate::support::{Answer, Bench, DATA, Receiver, eventually};
use secrecy::ExposeSecret;
use uuid::Uuid;
use walhook::config::Period;
use walhook::domain::delivery::{Lease, lease_length};
use walhook::vault;

#[tokio::test]
async fn ten_attempts_are_made_and_each_is_signed_separately() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;

    receiver.answer(|_| Answer::Full(503, Vec::new(), b"not\0now".to_vec()));
    let (webhook, secret) = bench.webhook(&receiver.url("/hook")).await;
    let delivery = bench.delivery(webhook).await;
    let running = bench.run();

    bench.wait_for_end(delivery).await;
    running.stop().await;

    let requests = receiver.requests();
    assert_eq!(requests.len(), 10);

    let mut timestamps: Vec<&str> = Vec::new();

    for (request, number) in requests.iter().zip(1..) {
        request.assert_sound(secret.expose_secret());
        assert_eq!(request.attempt(), number);
        assert_eq!(request.delivery(), delivery.to_string());
        assert_eq!(request.header("webhook-id"), delivery.to_string());
        assert_eq!(
            request.header("x-webhook-occurred-at"),
            "2026-03-01T09:04:59.123456+00:00"
        );
        assert!(
            request
                .body
                .ends_with(format!("\"data\":{DATA}}}").as_bytes())
        );
        timestamps.push(request.header("x-webhook-timestamp"));
    }

    assert!(timestamps.is_sorted());
    timestamps.dedup();
    assert_eq!(timestamps.len(), 10, "each attempt has a time of its own");

    let log = bench.log(delivery).await;
    let expected: Vec<_> = (1..=10)
        .map(|attempt| {
            let outcome = if attempt == 10 {
                "permanently_failed"
            } else {
                "failed"
            };

            (
                attempt,
                outcome.to_owned(),
                Some("http_status".to_owned()),
                Some(503),
            )
        })
        .collect();

    assert_eq!(log, expected);
    assert_eq!(bench.counters(webhook).await, (0, 10, 10, true, true));

    let statement = "select started_at, response_body, signature, url, round, duration_ms >= 0 from walhook.attempt \
                     where delivery_id = $1 and attempt = 10";
    let row = bench
        .client
        .query_one(statement, &[&delivery])
        .await
        .unwrap();

    assert_eq!(
        walhook::domain::time::millis(row.get(0)),
        requests[9].header("x-webhook-timestamp")
    );
    assert_eq!(row.get::<_, &[u8]>(1), b"not\0now");
    assert_eq!(
        hex::encode(row.get::<_, &[u8]>(2)),
        requests[9].header("x-webhook-signature")
    );
    assert_eq!(row.get::<_, &str>(3), receiver.url("/hook"));
    assert_eq!(
        (row.get::<_, i16>(4), row.get::<_, Option<bool>>(5)),
        (1, Some(true))
    );
}

#[tokio::test]
async fn a_success_ends_the_delivery_and_resets_consecutive_failures() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;

    // Reset twice: a request on an open connection is sent again on a new one, within the same
    // attempt.
    receiver.answer_in_turn(&[
        Answer::Status(500),
        Answer::Reset,
        Answer::Reset,
        Answer::Status(204),
    ]);

    let (webhook, _) = bench.webhook(&receiver.url("/")).await;
    let delivery = bench.delivery(webhook).await;
    let running = bench.run();

    bench.wait_for_end(delivery).await;
    running.stop().await;

    let log = bench.log(delivery).await;
    let kinds: Vec<_> = log
        .iter()
        .map(|line| (line.1.as_str(), line.2.as_deref(), line.3))
        .collect();
    let expected = [
        ("failed", Some("http_status"), Some(500)),
        ("failed", Some("connection_reset"), None),
        ("delivered", None, Some(204)),
    ];

    assert_eq!(kinds, expected);
    assert_eq!(bench.counters(webhook).await, (1, 2, 0, false, true));
}

#[tokio::test]
async fn handed_off_deliveries_are_sent_without_a_claim() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let (webhook, secret) = bench.webhook(&receiver.url("/")).await;
    let id = bench.delivery(webhook).await;
    let [mut delivery] = bench.claim().await.try_into().unwrap();

    // Data that the store does not have shows that the delivery came from the hand-off.
    delivery.data = r#"{"from":"hand-off"}"#.into();
    let running = bench.run();

    assert!(running.handoff.budget.reserve(webhook, delivery.bytes()));
    running.hand_over(delivery);
    bench.wait_for_end(id).await;

    let free = || async {
        (running.handoff.budget.counters().free() == walhook::handoff::CAPACITY).then_some(())
    };

    eventually("its budget to be released", free).await;
    running.stop().await;

    let requests = receiver.requests();
    requests[0].assert_sound(secret.expose_secret());
    assert_eq!(
        (requests.len(), requests[0].data()),
        (1, serde_json::json!({"from": "hand-off"}))
    );
}

#[tokio::test]
async fn hanging_receivers_do_not_delay_others() {
    let mut bench = Bench::new().await;
    bench.config.delivery.concurrency = 16;
    bench.config.delivery.per_webhook_concurrency = 8;
    bench.config.delivery.timeout = Period(Duration::from_secs(120));

    let hanging = Receiver::start().await;
    let other = Receiver::start().await;

    hanging.answer(|_| Answer::Hang);

    for _ in 0..3 {
        let (slow, _) = bench.webhook(&hanging.url("/")).await;
        for _ in 0..20 {
            bench.delivery(slow).await;
        }
    }

    let running = bench.run();

    // They hold all permits that they can get.
    hanging.wait_for(8).await;
    let (webhook, _) = bench.webhook(&other.url("/")).await;
    let mut deliveries = Vec::new();

    for _ in 0..30 {
        deliveries.push(bench.delivery(webhook).await);
    }

    for delivery in deliveries {
        bench.wait_for_end(delivery).await;
    }

    assert_eq!(other.requests().len(), 30);
    let ended: i64 = bench
        .client
        .query_one("select count(*) from walhook.attempt", &[])
        .await
        .unwrap()
        .get(0);

    assert_eq!(ended, 30, "none of the hanging requests has ended");
    running.stop().await;

    // Neither waiting nor aborted deliveries have used up an attempt.
    let statement = "select count(*) filter (where attempt = 1), count(*) filter (where lease is null) > 0 \
                     from walhook.delivery";
    let row = bench.client.query_one(statement, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (60, true));
}

#[tokio::test]
async fn a_dead_replicas_delivery_is_sent_when_its_lease_ends() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let (webhook, _) = bench.webhook(&receiver.url("/")).await;
    let id = bench.delivery(webhook).await;

    assert_eq!(bench.claim().await.len(), 1);
    let left = "select extract(epoch from due_at - now())::float8 from walhook.delivery";
    let left: f64 = bench.client.query_one(left, &[]).await.unwrap().get(0);
    let length = lease_length(bench.config.delivery.timeout.0).as_secs_f64();

    assert!((length - 10.0..=length).contains(&left), "{left}");
    let running = bench.run();

    // Another delivery overtakes the leased one.
    let other = bench.delivery(webhook).await;
    bench.wait_for_end(other).await;
    assert!(bench.is_pending(id).await);
    bench
        .client
        .execute("update walhook.delivery set due_at = now()", &[])
        .await
        .unwrap();
    bench.wait_for_end(id).await;
    running.stop().await;
    assert_eq!(receiver.requests().len(), 2);
    assert_eq!(
        bench.log(id).await,
        [(1, "delivered".to_owned(), None, Some(200))]
    );
}

#[tokio::test]
async fn a_delivery_whose_lease_is_too_short_is_not_attempted() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let (webhook, _) = bench.webhook(&receiver.url("/")).await;

    bench.delivery(webhook).await;
    let [mut delivery] = bench.claim().await.try_into().unwrap();

    delivery.lease = Lease {
        until: Instant::now() + bench.config.delivery.timeout.0,
        ..delivery.lease
    };
    let running = bench.run();

    assert!(running.handoff.budget.reserve(webhook, delivery.bytes()));
    running.hand_over(delivery);

    let free = || async {
        (running.handoff.budget.counters().free() == walhook::handoff::CAPACITY).then_some(())
    };

    eventually("its budget to be released", free).await;
    running.stop().await;
    assert_eq!(receiver.requests().len(), 0);
}

#[tokio::test]
async fn deliveries_of_inactive_and_deleted_webhooks_are_cancelled_and_orphans_removed() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let (inactive, _) = bench.webhook(&receiver.url("/")).await;

    bench
        .client
        .execute("update walhook.webhook set active = false", &[])
        .await
        .unwrap();
    let cancelled = bench.delivery(inactive).await;
    let of_deleted = bench.delivery(Uuid::now_v7()).await;
    let aged = bench.delivery_of(inactive, Uuid::now_v7()).await;
    let running = bench.run();

    for delivery in [cancelled, of_deleted, aged] {
        bench.wait_for_end(delivery).await;
    }

    running.stop().await;
    assert!(receiver.requests().is_empty());

    let line = (
        1,
        "cancelled".to_owned(),
        Some("webhook_inactive".to_owned()),
        None,
    );

    for delivery in [cancelled, of_deleted] {
        assert_eq!(bench.log(delivery).await, std::slice::from_ref(&line));
    }

    assert!(bench.log(aged).await.is_empty());
    assert_eq!(bench.counters(inactive).await, (0, 0, 0, false, false));
}

#[tokio::test]
async fn redirects_are_not_followed_and_large_payloads_are_not_sent() {
    let mut bench = Bench::new().await;
    bench.config.delivery.retry_schedule = Vec::new();

    let receiver = Receiver::start().await;
    receiver.answer_in_turn(&[Answer::Full(
        307,
        vec![("location", "/elsewhere".into())],
        Vec::new(),
    )]);

    let (webhook, _) = bench.webhook(&receiver.url("/here")).await;
    let redirected = bench.delivery(webhook).await;
    let event = bench
        .event(&format!("{{\"x\":\"{}\"}}", "y".repeat(65_536)))
        .await;
    let large = bench.delivery_of(webhook, event).await;
    let running = bench.run();

    bench.wait_for_end(redirected).await;
    bench.wait_for_end(large).await;
    running.stop().await;

    let paths: Vec<String> = receiver
        .requests()
        .iter()
        .map(|request| request.path.clone())
        .collect();
    assert_eq!(paths, ["/here"]);

    let failed = (
        1,
        "permanently_failed".to_owned(),
        Some("http_status".to_owned()),
        Some(307),
    );

    assert_eq!(bench.log(redirected).await, [failed]);
    let too_large = (
        1,
        "permanently_failed".to_owned(),
        Some("payload_too_large".to_owned()),
        None,
    );

    assert_eq!(bench.log(large).await, [too_large]);
    assert_eq!(bench.counters(webhook).await, (0, 1, 1, true, true));
}

#[tokio::test]
async fn a_new_secret_and_a_new_url_apply_to_pending_deliveries() {
    let mut bench = Bench::new().await;
    bench.config.delivery.retry_schedule = vec![Period::secs(3_600)];

    let old = Receiver::start().await;
    let new = Receiver::start().await;

    old.answer_status(500);
    let (webhook, secret) = bench.webhook(&old.url("/")).await;
    let delivery = bench.delivery(webhook).await;
    let running = bench.run();

    eventually("the first failure", || async {
        (bench.log(delivery).await.len() == 1).then_some(())
    })
    .await;
    let next_secret = vault::new_webhook_secret();
    let sealed = bench
        .vault
        .seal(webhook, next_secret.expose_secret().as_bytes());
    let statement =
        "update walhook.webhook set url = $2, secret = $3, secret_key_id = $4 where id = $1";

    bench
        .client
        .execute(
            statement,
            &[&webhook, &new.url("/"), &sealed.bytes, &sealed.key_id],
        )
        .await
        .unwrap();

    bench
        .client
        .execute("update walhook.delivery set due_at = now()", &[])
        .await
        .unwrap();
    bench.wait_for_end(delivery).await;
    running.stop().await;
    assert_eq!((old.requests().len(), new.requests().len()), (1, 1));
    old.requests()[0].assert_sound(secret.expose_secret());
    new.requests()[0].assert_sound(next_secret.expose_secret());
    assert_eq!(new.requests()[0].attempt(), 2);
}

#[tokio::test]
async fn an_hours_backlog_of_retries_does_not_delay_fresh_deliveries() {
    const BACKLOG: i64 = 50_000;
    let bench = Bench::new().await;
    let backlogged = Receiver::start().await;
    let other = Receiver::start().await;

    // The receiver works again, but slowly.
    backlogged.answer(|_| Answer::After(std::time::Duration::from_millis(50), 200));
    let (busy, _) = bench.webhook(&backlogged.url("/")).await;
    let (quiet, _) = bench.webhook(&other.url("/")).await;
    let event = bench.event(DATA).await;
    let backlog = "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at)
                select gen_random_uuid(), $1, $2, 2 + n % 8, now() - n * interval '72 ms'
                from generate_series(1, $3::bigint) as n";

    bench
        .client
        .execute(backlog, &[&busy, &event, &BACKLOG])
        .await
        .unwrap();
    let running = bench.run();

    backlogged.wait_for(50).await;
    let fresh = [bench.delivery(busy).await, bench.delivery(quiet).await];
    for delivery in fresh {
        bench.wait_for_end(delivery).await;
    }

    let retries = "select count(*) from walhook.delivery where attempt > 1";
    let left: i64 = bench.client.query_one(retries, &[]).await.unwrap().get(0);

    assert!(
        left > BACKLOG / 2,
        "{left} of {BACKLOG} are left: the fresh ones were not sent first"
    );
    let done = backlogged
        .requests()
        .iter()
        .filter(|request| request.attempt() > 1)
        .count();

    assert!(done >= 49, "retries continue in the meantime: {done}");
    running.stop().await;
    assert_eq!(other.requests().len(), 1);
}
