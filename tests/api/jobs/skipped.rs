//! Which events a replay skips, because the webhook has had them.

use serde_json::json;
use uuid::Uuid;
use walhook::jobs::{self, Step, Turns};

use crate::support;

use super::{NONE, Scene, Stored, hours_ago};

#[tokio::test]
async fn events_that_the_webhook_has_had_are_skipped() {
    let it = Scene::start().await;
    let events = it.store(&[Stored::at(hours_ago(2)); 8]).await;

    let [
        delivered,
        failed,
        cancelled,
        pending,
        retried,
        missed,
        one,
        other,
    ]: [Uuid; 8] = events[..].try_into().unwrap();
    for (event, outcome) in [
        (delivered, "delivered"),
        (failed, "permanently_failed"),
        (cancelled, "cancelled"),
    ] {
        it.log(event, outcome).await;
    }

    it.pend(pending, 1).await;
    it.pend(retried, 4).await;
    it.miss(missed).await;

    let job = it.replay(3).await;
    assert_eq!(it.job(&job).await["total"], 3);

    // They end while the replay runs: it remembers them.
    assert_eq!(it.step().await, Step::Worked);
    it.deliver().await;
    assert_eq!(it.work().await, it.deliveries(&[missed, one, other]));

    let dry = it
        .post("/replay", json!({ "since": hours_ago(3), "dry_run": true }))
        .await;
    assert_eq!(dry["count"], 0, "the replay itself is in the log");

    let recoverable = it
        .post(
            "/recover",
            json!({ "since": hours_ago(3), "dry_run": true }),
        )
        .await;

    assert_eq!(
        recoverable["count"], 2,
        "what failed is recovered; the missed event was delivered"
    );
    let again = it.replay(3).await;

    assert_eq!(it.work().await, NONE);
    assert_eq!(it.job(&again).await["state"], "finished");
    it.service.store.expire_jobs(hours_ago(24)).await.unwrap();

    let kept = "select count(*) from walhook.replay_exclusion";
    assert_eq!(support::one::<i64>(&it.service.sql, kept).await, 0);
}

/// A replay waits while the webhook has a backlog, and while an earlier replay runs.
#[tokio::test]
async fn a_replay_that_starts_hours_late_skips_what_was_delivered_meanwhile() {
    let it = Scene::start().await;
    let [had, one, other]: [Uuid; 3] = it.store(&[Stored::at(hours_ago(5)); 3]).await[..]
        .try_into()
        .unwrap();

    it.pend(had, 1).await;
    let first = it.replay(6).await;
    let second = it.replay(6).await;
    let age = "update walhook.recovery set created_at = now() - interval '4 hours'";

    assert_eq!(it.service.sql.execute(age, &[]).await.unwrap(), 2);
    it.deliver().await;
    assert_eq!(
        it.work().await,
        it.deliveries(&[one, other]),
        "each once, and not what had been delivered"
    );

    for (job, done) in [(first, 2), (second, 0)] {
        let shown = it.job(&job).await;
        assert_eq!(
            (&shown["state"], &shown["done"]),
            (&json!("finished"), &json!(done))
        );
    }
}

#[tokio::test]
async fn a_replay_reads_the_attempt_log_to_its_end_while_attempts_are_recorded() {
    let it = Scene::start().await;
    let events = it.store(&[Stored::at(hours_ago(2)); 2]).await;
    let record = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                  select (overlay(gen_random_uuid()::text placing substr($2::text, 1, 18) from 1 for 18))::uuid, $1,
                      gen_random_uuid(), gen_random_uuid(), 'delivery.failed', 1, 1, now(), 'delivered'
                  from generate_series(1, $3::bigint)";

    let record = async |rows: i64| {
        let id = Uuid::now_v7().to_string();
        it.service
            .sql
            .execute(record, &[&it.webhook, &id, &rows])
            .await
            .unwrap();
    };

    // More than a step reads.
    record(7_000).await;
    it.replay(3).await;

    let phase = "select phase from walhook.recovery where kind = 'replay'";
    let mut phases = Vec::new();

    for _ in 0..3 {
        assert_eq!(it.step().await, Step::Worked);

        phases.push(support::one::<String>(&it.service.sql, phase).await);

        record(1_000).await;
    }

    assert_eq!(phases, ["log", "log", "events"]);
    assert_eq!(it.work().await, it.deliveries(&events));
}

#[tokio::test]
async fn a_replay_skips_an_event_that_a_recovery_is_delivering() {
    let it = Scene::start().await;
    let [missed, other]: [Uuid; 2] = it.store(&[Stored::at(hours_ago(2)); 2]).await[..]
        .try_into()
        .unwrap();

    it.miss(missed).await;
    let job = it.replay(3).await;
    let phase = "select phase from walhook.recovery where kind = 'replay'";

    let phase = async || support::one::<String>(&it.service.sql, phase).await;

    while phase().await != "events" {
        assert_eq!(it.step().await, Step::Worked);
    }

    // The replay is not due, so each of these steps is the recovery's.
    let later =
        "update walhook.recovery set due_at = now() + interval '1 hour' where kind = 'replay'";
    it.service.sql.execute(later, &[]).await.unwrap();
    it.post("/recover", json!({ "since": hours_ago(3) })).await;

    assert_eq!(
        jobs::step(&it.service.store, &mut Turns::default())
            .await
            .unwrap(),
        Step::Worked,
        "the attempt log"
    );

    let mut connection = it.service.store.connection().await.unwrap();
    let recovering = connection.transaction().await.unwrap();

    assert!(matches!(
        jobs::step_in(&recovering, &mut Turns::default())
            .await
            .unwrap(),
        Step::Finished { deliveries: 1, .. }
    ));

    let commit = async {
        it.service.wait_until_blocked(1).await;
        recovering.commit().await.unwrap();
    };

    let (step, ()) = tokio::join!(it.step(), commit);
    assert!(
        matches!(step, Step::Finished { deliveries: 1, .. }),
        "{step:?}"
    );

    let shown = it.job(&job).await;
    assert_eq!(
        (&shown["state"], &shown["done"]),
        (&json!("finished"), &json!(1))
    );

    let mut pending = it.work().await;
    pending.sort();

    let mut expected = it.deliveries(&[missed, other]);
    expected.sort();
    assert_eq!(pending, expected);
}

#[tokio::test]
async fn replays_and_recoveries_of_the_same_missed_events_deliver_each_once() {
    let it = Scene::start().await;
    let events = it.store(&[Stored::at(hours_ago(2)); 300]).await;
    for event in &events {
        it.miss(*event).await;
    }

    let first = it.replay(3).await;
    let second = it.replay(3).await;

    // The first chunk of the first replay; the second replay waits for its end.
    let mut all = it.chunk().await;
    assert_eq!(it.job(&second).await["state"], "queued");
    it.deliver().await;

    let recovery = it.post("/recover", json!({ "since": hours_ago(3) })).await;
    assert_eq!(recovery["count"], 300 - all.len());

    // Two replicas at the same time.
    loop {
        let (one, other) = tokio::join!(it.step(), it.step());
        let pending = "select coalesce(array_agg(id), '{}') from walhook.delivery";

        all.extend(support::one::<Vec<Uuid>>(&it.service.sql, pending).await);

        it.deliver().await;

        if one == Step::Idle && other == Step::Idle {
            break;
        }
    }

    let mut expected = it.deliveries(&events);
    all.sort_unstable();
    expected.sort_unstable();
    assert!(all == expected, "{} deliveries", all.len());

    let mut done = 0;

    for job in [
        &first,
        &second,
        &recovery["job_id"].as_str().unwrap().to_owned(),
    ] {
        let job = it.job(job).await;
        assert_eq!(
            (&job["state"], &job["done"]),
            (&json!("finished"), &job["total"])
        );
        done += job["done"].as_u64().unwrap();
    }

    assert_eq!(done, 300);
}
