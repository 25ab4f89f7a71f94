//! Claiming deliveries and recording attempts, on a real store.

use std::time::Duration;

use crate::support::{Bench, DATA, Receiver, eventually, one, run_sql, sent};
use jiff::Timestamp;
use tokio::sync::mpsc;
use uuid::Uuid;
use walhook::domain::delivery::DeliveryClass;
use walhook::domain::delivery::{self as domain, Attempt, Attempted, Delivery, Next};
use walhook::domain::event::UserId;
use walhook::store::attempt::CompletedAttempt;
use walhook::store::audit::{Actor, Via};
use walhook::store::delivery::ClaimRequest;
use walhook::store::recovery::{self, RedeliveryResult};

fn status(status: u16) -> domain::Answer {
    match status {
        200..300 => domain::Answer::Accepted { status },
        _ => domain::Answer::Failed {
            kind: domain::ErrorKind::HttpStatus,
            message: format!("answered {status}"),
            status: Some(status),
        },
    }
}

fn attempted(delivery: Delivery, answer: domain::Answer) -> Attempted {
    let sent = (answer != domain::Answer::Inactive).then(sent);

    Attempted {
        delivery,
        attempt: Attempt {
            started_at: Timestamp::now(),
            answer,
            sent,
        },
    }
}

fn entry(attempted: &Attempted, next: Next) -> CompletedAttempt {
    // The same whenever the attempt is recorded: each has a lease of its own, or another delivery.
    let lease = attempted.delivery.lease.token.as_u128();
    let id = Uuid::from_u128(lease ^ (attempted.delivery.id.as_u128() & 0xffff_ffff));

    CompletedAttempt::new(id, attempted.clone(), next)
}

/// PostgreSQL stores microseconds.
fn stored(time: Timestamp) -> Option<Timestamp> {
    Some(Timestamp::from_microsecond(time.as_microsecond()).unwrap())
}

#[tokio::test]
async fn an_attempt_under_an_earlier_lease_changes_nothing() {
    let bench = Bench::new().await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    let id = bench.delivery(webhook).await;
    let [first] = bench.claim().await.try_into().unwrap();

    assert!(
        bench.claim().await.is_empty(),
        "a leased delivery is not claimed again"
    );
    bench
        .client
        .execute("update walhook.delivery set due_at = now()", &[])
        .await
        .unwrap();

    let [second] = bench.claim().await.try_into().unwrap();
    assert_ne!(first.lease.token, second.lease.token);

    let late = attempted(first, status(200));
    let ok = Next::End(domain::Outcome::Delivered);

    assert_eq!(bench.record(&[entry(&late, ok)]).await, [false]);
    assert!(bench.is_pending(id).await);
    assert_eq!(bench.log(id).await.len(), 1, "every request is logged");
    assert_eq!(bench.counters(webhook).await, (0, 0, 0, false, true));

    // In one batch with the late attempt, that of the current lease counts.
    let failed = attempted(second.clone(), status(500));
    let retry = Next::Retry {
        after: Duration::ZERO,
        attempt: 2,
    };

    assert_eq!(
        bench
            .record(&[entry(&late, ok), entry(&failed, retry)])
            .await,
        [false, true]
    );

    assert_eq!(bench.log(id).await.len(), 2, "the late one once");
    assert_eq!(bench.counters(webhook).await, (0, 1, 1, true, true));

    // Recorded twice, as when the commit's answer was lost.
    assert_eq!(bench.record(&[entry(&failed, retry)]).await, [false]);
    assert_eq!(bench.log(id).await.len(), 2);
    assert_eq!(bench.counters(webhook).await, (0, 1, 1, true, true));
}

#[tokio::test]
async fn an_attempt_in_flight_when_its_delivery_is_cancelled_or_redelivered_is_only_logged_once() {
    let bench = Bench::new().await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    let actor = Actor {
        user: UserId("u".into()),
        via: Via::CommandLine,
    };

    let redelivered = bench.delivery(webhook).await;
    let cancelled = bench.delivery(webhook).await;
    let in_flight = bench.claim().await;

    let [first, second] = [redelivered, cancelled].map(|id| {
        let delivery = in_flight
            .iter()
            .find(|delivery| delivery.id == id)
            .unwrap()
            .clone();
        attempted(delivery, status(200))
    });

    // The delivery to redeliver needs a row in the attempt log.
    let line = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                select $1, webhook_id, id, event_id, 'release.distributed', 0, 1, now(), 'failed' from walhook.delivery where id = $2";
    let log = Uuid::now_v7();

    bench
        .client
        .execute(line, &[&log, &redelivered])
        .await
        .unwrap();
    let started = recovery::redeliver(&bench.store, &actor, webhook, log)
        .await
        .unwrap();

    assert_eq!(
        started,
        RedeliveryResult::Started {
            delivery: redelivered,
            round: 2
        }
    );

    let ok = Next::End(domain::Outcome::Delivered);
    let triggered = async || bench.last_triggered(webhook).await;

    assert_eq!(bench.record(&[entry(&first, ok)]).await, [false]);
    assert_eq!(triggered().await, stored(first.attempt.started_at));
    assert!(
        bench.is_pending(redelivered).await,
        "its second round is pending"
    );

    bench
        .edit(webhook, |settings| settings.active = false)
        .await;

    // Together with an attempt whose webhook was found inactive, so that nothing was sent.
    let third = attempted(first.delivery.clone(), domain::Answer::Inactive);
    let entries = [
        entry(&second, ok),
        entry(&third, Next::End(domain::Outcome::Cancelled)),
    ];

    assert_eq!(bench.record(&entries).await, [false, false]);
    assert_eq!(
        triggered().await,
        stored(second.attempt.started_at),
        "and nothing was sent after it"
    );

    // Recorded twice, as when the commit's answer was lost.
    assert_eq!(
        bench.record(&[entry(&first, ok), entry(&second, ok)]).await,
        [false, false]
    );

    let line = |outcome: &str, kind: Option<&str>, status| {
        (1, outcome.to_owned(), kind.map(str::to_owned), status)
    };

    let inactive = line("cancelled", Some("webhook_inactive"), None);
    let logged = bench.log(cancelled).await;

    assert_eq!(logged.len(), 2, "{logged:?}");
    assert!(
        logged.contains(&inactive) && logged.contains(&line("delivered", None, Some(200))),
        "{logged:?}"
    );

    let logged = bench.log(redelivered).await;
    assert_eq!(logged.len(), 3, "{logged:?}");
    assert!(
        logged.contains(&inactive) && logged.contains(&line("delivered", None, Some(200))),
        "{logged:?}"
    );
    assert_eq!(bench.counters(webhook).await, (0, 0, 0, false, true));
}

#[tokio::test]
async fn a_claim_is_bounded_by_bytes_and_takes_at_least_one_delivery() {
    let bench = Bench::new().await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    let data = format!(r#"{{"text":"{}"}}"#, "x".repeat(100_000));

    for _ in 0..10 {
        let event = bench.event(&data).await;
        bench.delivery_of(webhook, event).await;
    }

    let request = ClaimRequest {
        class: DeliveryClass::Fresh,
        timeout: Duration::from_secs(10),
        start_after: Uuid::nil(),
        end_with: None,
        max_webhooks: 10,
        max_rows: 100,
        max_bytes: 350_000,
        per_webhook: 100,
        limits: Vec::new(),
    };

    let claimed = bench.store.claim(&request).await.unwrap();
    assert_eq!((claimed.deliveries.len(), claimed.refused.len()), (3, 7));

    let leased: i64 = one(
        &bench.client,
        "select count(*) from walhook.delivery where lease is not null",
    )
    .await;

    assert_eq!(leased, 3, "the others were released");

    let claimed = bench
        .store
        .claim(&ClaimRequest {
            max_bytes: 1,
            ..request
        })
        .await
        .unwrap();

    assert_eq!((claimed.deliveries.len(), claimed.refused.len()), (1, 6));
}

#[tokio::test]
async fn claims_visit_webhooks_in_order_and_take_up_to_each_ones_limit() {
    let bench = Bench::new().await;
    let mut webhooks = Vec::new();

    for _ in 0..5 {
        let webhook = bench.webhook("http://127.0.0.1:9/").await.0;

        for _ in 0..4 {
            bench.delivery(webhook).await;
        }

        webhooks.push(webhook);
    }

    webhooks.sort();

    let request = ClaimRequest {
        class: DeliveryClass::Fresh,
        timeout: Duration::from_secs(10),
        start_after: Uuid::nil(),
        end_with: None,
        max_webhooks: 3,
        max_rows: 100,
        max_bytes: usize::MAX,
        per_webhook: 2,
        limits: vec![(webhooks[1], 0), (webhooks[2], 3)],
    };

    let claimed = bench.store.claim(&request).await.unwrap();
    let of =
        |claimed: &[Delivery], webhook| claimed.iter().filter(|d| d.webhook == webhook).count();
    let counts: Vec<usize> = webhooks
        .iter()
        .map(|webhook| of(&claimed.deliveries, *webhook))
        .collect();

    assert_eq!(counts, [2, 0, 3, 0, 0]);
    assert_eq!(claimed.last_visited, Some(webhooks[2]));
    assert_eq!(&*claimed.deliveries[0].data, DATA);

    let rest = ClaimRequest {
        start_after: webhooks[2],
        limits: Vec::new(),
        max_rows: 3,
        ..request.clone()
    };

    let rest = bench.store.claim(&rest).await.unwrap();
    assert_eq!((rest.deliveries.len(), rest.last_visited), (3, None));

    let retries = bench
        .store
        .claim(&ClaimRequest {
            class: DeliveryClass::Retry,
            ..request.clone()
        })
        .await
        .unwrap();

    assert!(
        retries.deliveries.is_empty(),
        "first attempts are no retries"
    );
    bench.store.release(&claimed.deliveries).await.unwrap();

    let again = bench
        .store
        .claim(&ClaimRequest {
            limits: Vec::new(),
            ..request
        })
        .await
        .unwrap();

    assert_eq!(
        of(&again.deliveries, webhooks[0]),
        2,
        "released deliveries are due at once"
    );
}

/// The ids are in the reverse of the expected order.
#[tokio::test]
async fn a_claim_returns_deliveries_in_the_order_of_their_due_times_then_of_their_numbers() {
    let bench = Bench::new().await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;

    // Numbers, and the seconds of the times.
    let expected = [(9, "01"), (2, "02"), (10, "02"), (1, "03"), (3, "03")];
    let insert =
        "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at, sequence)
                  values ($1, $2, $3, $4, $5::text::timestamptz, $6)";

    for attempt in [1_i16, 2] {
        for (number, second) in expected.into_iter().rev() {
            let id = Uuid::now_v7();
            let event = bench.event(DATA).await;
            let due_at = format!("2026-03-01T09:05:{second}Z");

            bench
                .client
                .execute(insert, &[&id, &webhook, &event, &attempt, &due_at, &number])
                .await
                .unwrap();
        }
    }

    for class in [DeliveryClass::Fresh, DeliveryClass::Retry] {
        let request = ClaimRequest {
            class,
            timeout: Duration::from_secs(10),
            start_after: Uuid::nil(),
            end_with: None,
            max_webhooks: 10,
            max_rows: 100,
            max_bytes: 3 * DATA.len(),
            per_webhook: 100,
            limits: Vec::new(),
        };

        // The bytes suffice for three: the others follow in the next claim.
        let first = bench.store.claim(&request).await.unwrap();
        let second = bench.store.claim(&request).await.unwrap();
        let claimed = first
            .deliveries
            .iter()
            .chain(&second.deliveries)
            .map(|delivery| delivery.sequence.unwrap());

        assert_eq!(
            claimed.collect::<Vec<_>>(),
            expected.map(|(number, _)| number),
            "{class:?}"
        );
        assert_eq!((first.refused.len(), second.refused.len()), (2, 0));
    }
}

#[tokio::test]
async fn one_attempt_that_the_store_rejects_does_not_delay_the_others() {
    let bench = Bench::new().await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    let good = bench.delivery(webhook).await;
    let bad = bench.delivery(webhook).await;
    let claimed = bench.claim().await;
    let (sender, outcomes) = mpsc::channel(4);

    for delivery in claimed {
        // Postgres has no NUL in text.
        let message = if delivery.id == bad {
            "\0".to_owned()
        } else {
            "fine".to_owned()
        };

        let answer = domain::Answer::Failed {
            kind: domain::ErrorKind::Tls,
            message,
            status: None,
        };

        sender.send(attempted(delivery, answer)).await.unwrap();
    }

    drop(sender);
    bench
        .recorder(walhook::handoff::handoff().0, outcomes)
        .await;

    for delivery in [good, bad] {
        assert_eq!(
            bench.log(delivery).await,
            [(1, "failed".to_owned(), Some("tls".to_owned()), None)]
        );
    }

    assert_eq!(bench.counters(webhook).await, (0, 2, 2, true, true));
}

#[tokio::test]
async fn attempts_are_recorded_when_the_attempt_log_can_be_written_again() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let (webhook, _) = bench.webhook(&receiver.url("/")).await;
    let delivery = bench.delivery(webhook).await;
    let rollbacks = async || -> i64 {
        let statement =
            "select xact_rollback from pg_stat_database where datname = current_database()";
        one(&bench.client, statement).await
    };

    let before = rollbacks().await;
    run_sql(
        &bench.client,
        "alter table walhook.attempt rename to attempt_away",
    )
    .await;

    let running = bench.run();
    eventually("a failed try", || async {
        (rollbacks().await > before).then_some(())
    })
    .await;
    assert!(bench.is_pending(delivery).await);
    run_sql(
        &bench.client,
        "alter table walhook.attempt_away rename to attempt",
    )
    .await;
    bench.wait_for_end(delivery).await;
    running.stop().await;
    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(bench.log(delivery).await.len(), 1);
}

/// Statements are planned once per connection: on an empty table, when a replica starts.
#[tokio::test]
async fn claims_are_planned_for_a_backlog_while_there_is_none() {
    let bench = Bench::new().await;
    run_sql(&bench.client, "analyze walhook.delivery").await;

    for _ in 0..10 {
        assert!(bench.claim().await.is_empty());
    }

    let fill = "insert into walhook.delivery (id, webhook_id, event_id, due_at) \
                select gen_random_uuid(), $1, gen_random_uuid(), now() + interval '1 day' from generate_series(1, 5000)";
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;

    bench.client.execute(fill, &[&webhook]).await.unwrap();
    let id = bench.delivery(webhook).await;
    let reads = async || -> (i64, i64) {
        let statement = "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables \
                         where relid = 'walhook.delivery'::regclass";
        let row = bench.client.query_one(statement, &[]).await.unwrap();
        (row.get(0), row.get(1))
    };

    let claimed: Vec<Uuid> = bench
        .claim()
        .await
        .iter()
        .map(|delivery| delivery.id)
        .collect();

    assert_eq!(claimed, [id]);

    let statistics = || async {
        // The connection that claimed is the only one of the pool so far. It reports its statistics
        // when it is used a second later.
        bench
            .store
            .connection()
            .await
            .unwrap()
            .execute("select 1", &[])
            .await
            .unwrap();
        Some(reads().await).filter(|(all, by_index)| *all >= 5_000 || *by_index > 0)
    };

    let (all, _) = eventually("the claim in the statistics", statistics).await;
    assert!(
        all < 5_000,
        "the claim has read the whole table: {all} rows"
    );
}

#[tokio::test]
async fn late_attempts_that_sent_nothing_or_whose_webhook_is_gone_are_not_logged() {
    let bench = Bench::new().await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    bench.delivery(webhook).await;

    let [first] = bench.claim().await.try_into().unwrap();
    let of_erased = Delivery {
        webhook: Uuid::now_v7(),
        ..first.clone()
    };

    bench
        .client
        .execute("update walhook.delivery set lease = null", &[])
        .await
        .unwrap();

    let nothing = attempted(first, domain::Answer::Inactive);
    let of_erased = attempted(of_erased, status(200));
    let entries = [
        entry(&nothing, Next::End(domain::Outcome::Cancelled)),
        entry(&of_erased, Next::End(domain::Outcome::Delivered)),
    ];

    assert_eq!(bench.record(&entries).await, [false, false]);
    assert_eq!(bench.log(nothing.delivery.id).await, []);

    let hours = "select count(*) from walhook.webhook_hour";
    let hours: i64 = one(&bench.client, hours).await;
    assert_eq!(hours, 0);
}
