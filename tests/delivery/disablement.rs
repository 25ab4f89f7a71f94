//! When recording disables a webhook and when it warns, on a real store.

use std::time::Duration;

use crate::support::Bench;
use jiff::Timestamp;
use uuid::Uuid;
use walhook::config::{DisablePolicy, Period};
use walhook::domain::delivery::{Answer, Attempt, Attempted, Delivery, ErrorKind, Next, Outcome};
use walhook::record::Recorded;
use walhook::store::attempt::CompletedAttempt;
use walhook::store::{StoreError, notices};

const HOUR: Duration = Duration::from_secs(3_600);

fn failure(kind: ErrorKind, status: Option<u16>) -> Answer {
    Answer::Failed {
        kind,
        message: "no".to_owned(),
        status,
    }
}

/// A 200 for `+`, a 500 for `-`.
fn answers(text: &str) -> Vec<Answer> {
    let answer = |letter| match letter {
        '+' => Answer::Accepted { status: 200 },
        _ => failure(ErrorKind::HttpStatus, Some(500)),
    };
    text.chars().map(answer).collect()
}

async fn bench(policy: DisablePolicy, threshold: u32, min_duration: Duration) -> Bench {
    let mut bench = Bench::new().await;
    bench.config.disable.policy = policy;
    bench.config.disable.threshold = threshold;
    bench.config.disable.min_duration = Period(min_duration);
    bench
}

async fn record(
    bench: &Bench,
    deliveries: Vec<Delivery>,
    answers: Vec<Answer>,
) -> Result<Recorded, StoreError> {
    let attempt = |answer| Attempt {
        started_at: Timestamp::now(),
        answer,
        sent: None,
    };

    let attempted = |(delivery, answer)| Attempted {
        delivery,
        attempt: attempt(answer),
    };

    let mut batch: Vec<CompletedAttempt> = deliveries
        .into_iter()
        .zip(answers)
        .map(attempted)
        .map(|attempted| {
            let next = match attempted.attempt.answer {
                Answer::Accepted { .. } => Next::End(Outcome::Delivered),
                Answer::TooLarge { .. } => Next::End(Outcome::PermanentlyFailed),
                _ => Next::Retry {
                    after: HOUR,
                    attempt: attempted.delivery.attempt + 1,
                },
            };

            CompletedAttempt::new(Uuid::now_v7(), attempted, next)
        })
        .collect();

    let policy = bench.config.disable.policy();
    walhook::record::record(&bench.store, &mut batch, &policy, None).await
}

/// Records one batch of fresh deliveries with these answers, in this order. Returns whether that
/// disabled the webhook.
async fn answer(bench: &Bench, webhook: Uuid, answers: Vec<Answer>) -> bool {
    for _ in &answers {
        bench.delivery(webhook).await;
    }

    let recorded = record(bench, bench.claim().await, answers).await.unwrap();
    !recorded.disabled.is_empty()
}

async fn is_active(bench: &Bench, webhook: Uuid) -> bool {
    bench
        .client
        .query_one(
            "select active from walhook.webhook where id = $1",
            &[&webhook],
        )
        .await
        .unwrap()
        .get(0)
}

async fn notices(bench: &Bench, webhook: Uuid) -> Vec<String> {
    let statement = "select kind from walhook.notice where webhook_id = $1 order by at";
    let rows = bench.client.query(statement, &[&webhook]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_success_resets_consecutive_failures() {
    let bench = bench(DisablePolicy::Consecutive, 3, Duration::ZERO).await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;

    for (batch, disables) in [
        ("--", false),
        ("+", false),
        ("--+", false),
        ("--", false),
        ("-+--", false),
        ("--", true),
    ] {
        assert_eq!(
            answer(&bench, webhook, answers(batch)).await,
            disables,
            "{batch}"
        );
        assert_eq!(is_active(&bench, webhook).await, !disables);
    }

    let (success, failures, consecutive, ..) = bench.counters(webhook).await;
    assert_eq!((success, failures, consecutive), (3, 11, 4));

    let statement =
        "select disabled_reason, disabled_at = updated_at, user_id from walhook.webhook";
    let row = bench.client.query_one(statement, &[]).await.unwrap();

    assert_eq!(
        (row.get(0), row.get(1)),
        ("HTTP 500 answers (http_status)", true)
    );
    let statement = "select via, action, subject_id, user_id from walhook.audit";
    let row = bench.client.query_one(statement, &[]).await.unwrap();

    assert_eq!(
        (row.get(0), row.get(1), row.get(2)),
        ("automatic", "webhook.disabled", webhook)
    );

    // Pending deliveries are cancelled and logged once, as when the owner deactivates the webhook,
    // but by another transaction.
    assert_eq!(
        walhook::record::cancel_next(&bench.store, Uuid::nil())
            .await
            .unwrap()
            .deliveries,
        11
    );

    let statement = "select count(*), min(error_kind), (select count(*) from walhook.pending), \
                     (select sum(cancelled)::bigint from walhook.webhook_hour) \
                     from walhook.attempt where outcome = 'cancelled'";
    let row = bench.client.query_one(statement, &[]).await.unwrap();

    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, &str>(1)),
        (11, "webhook_inactive")
    );
    assert_eq!((row.get::<_, i64>(2), row.get::<_, i64>(3)), (0, 11));

    // A late answer, to a delivery that was inserted late, counts and disables nothing.
    assert!(!answer(&bench, webhook, answers("---")).await);
    assert_eq!(notices(&bench, webhook).await, ["warning", "disabled"]);
}

#[tokio::test]
async fn under_the_cumulative_policy_successes_reset_nothing_and_our_own_faults_do_not_count() {
    let bench = bench(DisablePolicy::Cumulative, 4, HOUR).await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    let too_large = || vec![Answer::TooLarge { bytes: 70_000 }; 9];

    assert!(!answer(&bench, webhook, too_large()).await);
    assert!(!answer(&bench, webhook, answers("-+-+-+")).await);
    assert!(!answer(&bench, webhook, too_large()).await);
    assert_eq!(notices(&bench, webhook).await, ["warning"]);

    assert!(
        answer(
            &bench,
            webhook,
            vec![failure(ErrorKind::BlockedAddress, None)]
        )
        .await
    );

    let reason = bench
        .client
        .query_one("select disabled_reason from walhook.webhook", &[])
        .await
        .unwrap();
    assert_eq!(
        reason.get::<_, &str>(0),
        "an address that is not reachable from the internet (blocked_address)"
    );
}

#[tokio::test]
async fn failures_must_last_min_duration_and_warnings_are_a_day_apart() {
    let bench = bench(DisablePolicy::Consecutive, 4, HOUR).await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
    let age = async |column: &str, by: &str| {
        let statement = format!("update walhook.webhook set {column} = {column} - interval '{by}'");
        assert_eq!(bench.client.execute(&statement, &[]).await.unwrap(), 1);
    };

    assert!(!answer(&bench, webhook, answers("-")).await);
    assert!(notices(&bench, webhook).await.is_empty());
    assert!(!answer(&bench, webhook, answers("----------")).await);
    assert!(!answer(&bench, webhook, answers("----------")).await);
    assert_eq!(notices(&bench, webhook).await, ["warning"]);
    age("warned_at", "23 hours").await;
    assert!(!answer(&bench, webhook, answers("-")).await);
    assert_eq!(notices(&bench, webhook).await, ["warning"]);
    age("warned_at", "1 hour").await;
    assert!(!answer(&bench, webhook, answers("-")).await);
    assert_eq!(notices(&bench, webhook).await, ["warning", "warning"]);
    age("failing_since", "59 minutes").await;
    assert!(!answer(&bench, webhook, answers("-")).await);

    // New consecutive failures: the time of the earlier ones does not count.
    assert!(!answer(&bench, webhook, answers("+----")).await);
    age("failing_since", "59 minutes").await;
    assert!(!answer(&bench, webhook, answers("-")).await);
    age("failing_since", "1 minute").await;
    assert!(answer(&bench, webhook, answers("-")).await);
    assert_eq!(
        notices(&bench, webhook).await,
        ["warning", "warning", "disabled"]
    );
}

#[tokio::test]
async fn replicas_that_record_concurrently_disable_once_and_do_not_deadlock() {
    let bench = bench(DisablePolicy::Consecutive, 10, Duration::ZERO).await;

    for _ in 0..10 {
        let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;
        let (other, _) = bench.webhook("http://127.0.0.1:9/").await;
        for _ in 0..20 {
            bench.delivery(webhook).await;
            bench.delivery(other).await;
        }

        // Both batches cross the threshold of both webhooks, and lock deliveries that interleave.
        let mut halves = [Vec::new(), Vec::new()];

        for (index, delivery) in bench.claim().await.into_iter().enumerate() {
            halves[index / 2 % 2].push(delivery);
        }

        let [one, two] = halves.map(|half| {
            let failures = answers(&"-".repeat(half.len()));
            record(&bench, half, failures)
        });

        // A deadlock would fail one of them.
        let (one, two) = tokio::join!(one, two);
        let disabled: Vec<Uuid> = [one.unwrap(), two.unwrap()]
            .iter()
            .flat_map(|r| &r.disabled)
            .map(|d| d.webhook)
            .collect();

        for id in [webhook, other] {
            assert_eq!(
                disabled.iter().filter(|disabled| **disabled == id).count(),
                1,
                "{disabled:?}"
            );
            assert!(!is_active(&bench, id).await);

            assert_eq!(
                notices(&bench, id)
                    .await
                    .iter()
                    .filter(|kind| *kind == "disabled")
                    .count(),
                1
            );
        }
    }

    // What is left are retries of webhooks that are inactive.
    walhook::record::cancel_next(&bench.store, Uuid::nil())
        .await
        .unwrap();
    let left = bench
        .client
        .query_one("select count(*) from walhook.pending", &[])
        .await
        .unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_notice_is_sent_by_one_replica_at_a_time_and_expires() {
    let bench = bench(DisablePolicy::Cumulative, 2, HOUR).await;
    let (webhook, _) = bench.webhook("http://127.0.0.1:9/").await;

    assert!(!answer(&bench, webhook, answers("-")).await);
    assert!(answer(&bench, webhook, answers("-")).await);

    let store = &bench.store;
    let lease = Duration::from_secs(15);
    let claim = async || notices::claim(store, lease).await.unwrap();

    let due = async || {
        bench
            .client
            .execute("update walhook.notice set due_at = now()", &[])
            .await
            .unwrap()
    };

    let first = claim().await.unwrap();
    let second = claim().await.unwrap();

    assert_ne!(first.notice.id, second.notice.id);
    assert!(claim().await.is_none());
    assert!(notices::extend(store, &first, lease).await.unwrap());

    // Its lease has ended and another replica has claimed it: the report of the first is too late.
    due().await;
    let third = claim().await.unwrap();
    let _ = claim().await.unwrap();
    let late = if third.notice.id == first.notice.id {
        &first
    } else {
        &second
    };

    assert!(!notices::extend(store, late, lease).await.unwrap());
    notices::retry(store, late, Duration::ZERO, "late")
        .await
        .unwrap();
    assert!(claim().await.is_none());
    notices::retry(store, &third, Duration::ZERO, "put off")
        .await
        .unwrap();

    let again = claim().await.unwrap();
    assert_eq!(
        (again.notice, again.tries, again.last_error.as_deref()),
        (third.notice, 1, Some("put off"))
    );
    assert_eq!(notices::count_pending(store).await.unwrap(), 2);

    // Warnings expire after a day. Other notices are sent until they are removed.
    bench
        .client
        .execute(
            "update walhook.notice set at = at - interval '25 hours'",
            &[],
        )
        .await
        .unwrap();

    assert_eq!(notices::remove_old(store, 2).await.unwrap(), 1);
    assert_eq!(notices(&bench, webhook).await, ["disabled"]);
    assert_eq!(notices::remove_old(store, 1).await.unwrap(), 1);
}
