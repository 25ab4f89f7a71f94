//! The delivery and recording stages together, on a real store and real receivers.

use std::time::Instant;

use crate::support::{Answer, Bench, DATA, Receiver, eventually, one};
use secrecy::ExposeSecret;
use walhook::domain::delivery::Lease;

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
    let left: i64 = one(&bench.client, retries).await;

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
