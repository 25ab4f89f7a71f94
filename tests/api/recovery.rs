//! Redelivery and recovery, without a dispatcher.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;
use walhook::domain::event::delivery_id;
use walhook::jobs::{self, Step, Turns};

use crate::fixture::Service;
use crate::support::{Api, one};

const URL: &str = "https://receiver.example/in";

/// A webhook with a log.
struct Logged {
    service: Service,
    api: Api,
    id: String,
    webhook: Uuid,
}

fn id_at(at: Timestamp) -> Uuid {
    Uuid::new_v7(uuid::Timestamp::from_unix(
        uuid::NoContext,
        at.as_second() as u64,
        at.subsec_nanosecond() as u32,
    ))
}

fn hours_ago(hours: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(hours)
}

impl Logged {
    async fn start() -> Logged {
        let service = Service::start().await;
        let api = service.api("1").await;
        let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
        let webhook = id.parse().unwrap();

        Logged {
            service,
            api,
            id,
            webhook,
        }
    }

    async fn event(&self, kind: &str, at: Timestamp) -> Uuid {
        let id = id_at(at);
        let at = at.to_string();
        let insert = "insert into walhook.event (id, user_id, kind, occurred_at, data)
                      values ($1, '1', $2, $3::text::timestamptz, '{}')";

        self.service
            .sql
            .execute(insert, &[&id, &kind, &at])
            .await
            .unwrap();
        id
    }

    /// Adds an event and a log entry of its delivery, and returns both ids.
    async fn logged(&self, outcome: &str, at: Timestamp) -> (Uuid, Uuid) {
        let event = self.event("delivery.failed", at).await;
        (event, self.log(event, 1, 10, outcome, at).await)
    }

    async fn log(
        &self,
        event: Uuid,
        round: i16,
        attempt: i16,
        outcome: &str,
        at: Timestamp,
    ) -> Uuid {
        let id = id_at(at);
        let at = at.to_string();
        let delivery = delivery_id(event, self.webhook);
        let insert = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt,
                          started_at, outcome)
                      values ($1, $2, $3, $4, 'delivery.failed', $5, $6, $7::text::timestamptz, $8)";
        let sql = &self.service.sql;

        sql.execute(
            insert,
            &[
                &id,
                &self.webhook,
                &delivery,
                &event,
                &round,
                &attempt,
                &at,
                &outcome,
            ],
        )
        .await
        .unwrap();

        id
    }

    async fn missed(&self, event: Uuid) {
        let insert = "insert into walhook.missed_event (webhook_id, event_id) values ($1, $2)";
        self.service
            .sql
            .execute(insert, &[&self.webhook, &event])
            .await
            .unwrap();
    }

    /// The pending deliveries without a lease: delivery, round and attempt.
    async fn pending(&self) -> Vec<(Uuid, i16, i16)> {
        let rows = "select id, round, attempt from walhook.delivery where lease is null and due_at <= now() order by id";
        let rows = self.service.sql.query(rows, &[]).await.unwrap();
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect()
    }

    async fn redeliver(&self, log: Uuid) -> crate::support::ApiAnswer {
        self.api
            .send(
                "POST",
                &format!("/webhooks/{}/logs/{log}/redeliver", self.id),
                &[],
                None,
            )
            .await
    }

    async fn recover(&self, body: Value) -> Value {
        let is_dry_run = body["dry_run"] == true;
        let answer = self
            .api
            .post(&format!("/webhooks/{}/recover", self.id), body)
            .await;
        answer.expect(if is_dry_run { 200 } else { 202 }).json()
    }

    /// The audited actions, except changes of settings.
    async fn audited(&self) -> Vec<String> {
        let rows = "select action from walhook.audit where user_id = '1' and subject_id = $1
                        and action in ('webhook.redelivered', 'webhook.recovery_begun') order by id";
        self.service
            .sql
            .query(rows, &[&self.webhook])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    /// Runs the unfinished recoveries, and returns how many deliveries they started.
    async fn work(&self) -> i64 {
        let mut started = 0;

        loop {
            match jobs::step(&self.service.store, &mut Turns::default())
                .await
                .unwrap()
            {
                Step::Idle => return started,
                Step::Worked => {}
                Step::Finished { deliveries, .. } => started += deliveries,
            }
        }
    }
}

#[tokio::test]
async fn a_redelivery_replaces_a_pending_retry_and_an_attempt_in_flight() {
    let it = Logged::start().await;
    let (event, log) = it.logged("failed", hours_ago(1)).await;
    let delivery = delivery_id(event, it.webhook);
    let held = "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at, lease)
                values ($1, $2, $3, 4, now() + interval '1 hour', gen_random_uuid())";

    it.service
        .sql
        .execute(held, &[&delivery, &it.webhook, &event])
        .await
        .unwrap();

    for round in [2, 3] {
        let started = it.redeliver(log).await.expect(202).json();
        assert_eq!(started, json!({ "delivery_id": delivery, "round": round }));
        assert_eq!(
            it.pending().await,
            [(delivery, round, 1)],
            "an attempt under the old lease finds no delivery"
        );
    }

    it.service
        .sql
        .execute("delete from walhook.delivery", &[])
        .await
        .unwrap();
    assert_eq!(
        it.redeliver(log).await.expect(202).json()["round"],
        4,
        "round numbers continue after the delivery has ended"
    );
    assert_eq!(it.audited().await, ["webhook.redelivered"; 3]);
}

#[tokio::test]
async fn entries_that_cannot_be_redelivered_have_distinct_problems() {
    let it = Logged::start().await;
    let (_, log) = it.logged("permanently_failed", hours_ago(1)).await;
    let (_, test) = it.logged("failed", hours_ago(1)).await;

    it.service
        .sql
        .execute(
            "update walhook.attempt set test = true where id = $1",
            &[&test],
        )
        .await
        .unwrap();

    let gone = it
        .log(Uuid::now_v7(), 1, 10, "permanently_failed", hours_ago(1))
        .await;
    assert_eq!(
        it.redeliver(test).await.expect(409).json()["type"],
        "/problems/not-redeliverable"
    );
    assert_eq!(
        it.redeliver(gone).await.expect(410).json()["type"],
        "/problems/event-gone"
    );
    assert_eq!(
        it.redeliver(Uuid::now_v7()).await.expect(404).json()["type"],
        "/problems/not-found"
    );
    it.api
        .patch(&format!("/webhooks/{}", it.id), json!({ "active": false }))
        .await
        .expect(200);
    assert_eq!(
        it.redeliver(log).await.expect(409).json()["type"],
        "/problems/webhook-inactive"
    );

    let rejected = it
        .api
        .post(
            &format!("/webhooks/{}/recover", it.id),
            json!({ "since": "2026-01-01T00:00:00Z" }),
        )
        .await;

    assert_eq!(
        rejected.expect(409).json()["type"],
        "/problems/webhook-inactive"
    );
    assert_eq!((it.pending().await, it.work().await), (vec![], 0));
    assert!(
        it.audited().await.is_empty(),
        "a rejected request is not audited"
    );
}

#[tokio::test]
async fn a_recovery_redelivers_by_last_outcome_and_delivers_missed_events_once() {
    let it = Logged::start().await;
    let mut wanted = Vec::new();

    for outcome in ["permanently_failed", "cancelled"] {
        wanted.push((
            delivery_id(it.logged(outcome, hours_ago(2)).await.0, it.webhook),
            2,
            1,
        ));
    }

    for outcome in ["delivered", "failed"] {
        it.logged(outcome, hours_ago(2)).await;
    }

    it.logged("permanently_failed", hours_ago(6)).await;

    // The second of its two rounds was delivered.
    let (healed, _) = it.logged("permanently_failed", hours_ago(2)).await;
    let round = "insert into walhook.delivery_round values ($1, 2)";

    it.service
        .sql
        .execute(round, &[&delivery_id(healed, it.webhook)])
        .await
        .unwrap();
    it.log(healed, 2, 1, "delivered", hours_ago(1)).await;
    it.log(Uuid::now_v7(), 1, 10, "permanently_failed", hours_ago(2))
        .await;

    for (kind, hours) in [
        ("delivery.failed", 2),
        ("delivery.failed", 6),
        ("transcode.failed", 2),
    ] {
        let event = it.event(kind, hours_ago(hours)).await;
        it.missed(event).await;
        if (kind, hours) == ("delivery.failed", 2) {
            wanted.push((delivery_id(event, it.webhook), 1, 1));
        }
    }

    wanted.sort_unstable();
    let body = |dry_run: bool| json!({ "since": hours_ago(4).to_string(), "dry_run": dry_run });

    for _ in 0..2 {
        let dry = it.recover(body(true)).await;
        assert_eq!(
            (&dry["count"], &dry["count_is_exact"], &dry["dry_run"]),
            (&json!(3), &json!(true), &json!(true))
        );
        assert_eq!(dry["job_id"], Value::Null);
        assert_eq!(
            (it.work().await, it.pending().await),
            (0, vec![]),
            "a dry run changes nothing"
        );
    }

    let started = it.recover(body(false)).await;
    assert_eq!(started["count"], 3);
    assert!(started["job_id"].is_string());
    assert_eq!(it.work().await, 3);
    assert_eq!(it.pending().await, wanted);
    assert_eq!(
        it.recover(body(false)).await["count"],
        0,
        "their deliveries are pending now"
    );
    assert_eq!((it.work().await, it.pending().await), (0, wanted));
}

#[tokio::test]
async fn a_recovery_by_outcome_includes_failures_with_a_pending_retry() {
    let it = Logged::start().await;
    let (delivered, _) = it.logged("delivered", hours_ago(1)).await;

    it.logged("cancelled", hours_ago(1)).await;
    let failing = it.event("delivery.failed", hours_ago(1)).await;
    let pending = "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at)
                   values ($1, $2, $3, 3, now() + interval '1 hour')";
    let delivery = delivery_id(failing, it.webhook);

    it.service
        .sql
        .execute(pending, &[&delivery, &it.webhook, &failing])
        .await
        .unwrap();

    for attempt in [1, 2] {
        it.log(failing, 1, attempt, "failed", hours_ago(1)).await;
    }

    for (outcome, event) in [("delivered", delivered), ("failed", failing)] {
        let body = json!({ "since": hours_ago(2).to_string(), "outcome": outcome });
        assert_eq!(it.recover(body).await["count"], 1, "{outcome}");
        assert_eq!(it.work().await, 1, "{outcome}");
        assert!(
            it.pending()
                .await
                .contains(&(delivery_id(event, it.webhook), 2, 1)),
            "{outcome}"
        );
    }

    assert_eq!(it.pending().await.len(), 2);
}

#[tokio::test]
async fn chunks_wait_for_pending_deliveries_and_overlapping_recoveries_do_not_repeat_them() {
    let it = Logged::start().await;
    let fill = "insert into walhook.event (id, user_id, kind, occurred_at, data)
                select ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, '1', 'delivery.failed',
                    now() - interval '1 hour', '{}' from generate_series(1, 1200) as n";

    it.service.sql.execute(fill, &[]).await.unwrap();

    // The ids contain the time of the attempts, as in the log.
    let log = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
               select (overlay(event.id::text placing substr($2::text, 1, 18) from 1 for 18))::uuid, $1, event.id, event.id,
                   'delivery.failed', 1, 10, now() - interval '1 hour', 'permanently_failed' from walhook.event";
    let like = id_at(hours_ago(1)).to_string();

    it.service
        .sql
        .execute(log, &[&it.webhook, &like])
        .await
        .unwrap();

    for _ in 0..2 {
        let started = it
            .recover(json!({ "since": hours_ago(3).to_string() }))
            .await;
        assert_eq!(started["count"], 1_200);
    }

    let count = async |what: &str| -> i64 { one(&it.service.sql, what).await };
    let mut started = 0;
    let mut most = 0;

    loop {
        // Two replicas at the same time.
        let mut replicas = [Turns::default(), Turns::default()];
        let [first, second] = &mut replicas;
        let store = &it.service.store;
        let (one, other) = tokio::join!(jobs::step(store, first), jobs::step(store, second));

        for step in [one.unwrap(), other.unwrap()] {
            if let Step::Finished { deliveries, .. } = step {
                started += deliveries;
            }
        }

        most = most.max(count("select count(*) from walhook.delivery").await);

        // Deliver the pending deliveries.
        count("with gone as (delete from walhook.delivery returning 1) select count(*) from gone")
            .await;

        if count("select count(*) from walhook.recovery where finished_at is null").await == 0 {
            break;
        }
    }

    assert_eq!(started, 1_200);
    assert!(most <= 1_500, "{most} pending at the same time");
    assert_eq!(
        count("select count(*) from walhook.delivery_round where round = 2").await,
        1_200
    );
    assert_eq!(
        count("select count(*) from walhook.delivery_round where round <> 2").await,
        0
    );
}

#[tokio::test]
async fn every_error_of_a_recovery_is_listed() {
    let it = Logged::start().await;

    for (body, pointers) in [
        (json!({}), "/since"),
        (json!({ "since": 1 }), "/since"),
        (json!({ "since": "yesterday" }), "/since"),
        (
            json!({ "since": Timestamp::now() + SignedDuration::from_hours(1) }),
            "/since",
        ),
        (
            json!({ "since": "2026-03-02T00:00:00Z", "until": "2026-03-02T00:00:00Z" }),
            "/until",
        ),
        (
            json!({ "since": "2026-03-02T00:00:00Z", "until": null }),
            "/until",
        ),
        (
            json!({ "since": "2026-03-02T00:00:00Z", "outcome": "lost" }),
            "/outcome",
        ),
        (
            json!({ "since": "2026-03-02T00:00:00Z", "dry_run": "yes" }),
            "/dry_run",
        ),
        (
            json!({ "since": "2026-03-02T00:00:00Z", "limit": 1 }),
            "/limit",
        ),
        (
            json!({ "since": "9000-01-01T00:00:00Z", "outcome": "lost", "dry_run": 1, "limit": 1 }),
            "/outcome /dry_run /since /limit",
        ),
    ] {
        let problem = it
            .api
            .post(&format!("/webhooks/{}/recover", it.id), body.clone())
            .await
            .expect(422)
            .json();
        let errors = problem["errors"].as_array().unwrap();
        let found: Vec<&str> = errors
            .iter()
            .map(|error| error["pointer"].as_str().unwrap())
            .collect();
        assert_eq!(found.join(" "), pointers, "{body}: {problem}");
    }
}

/// The owner of a disabled webhook need not know when the failures began.
#[tokio::test]
async fn a_recovery_begins_by_default_with_the_failures_that_disabled_the_webhook() {
    let it = Logged::start().await;
    let path = format!("/webhooks/{}/recover", it.id);
    let problem = it.api.post(&path, json!({})).await.expect(422).json();
    assert_eq!(problem["errors"][0]["pointer"], "/since");

    it.logged("permanently_failed", hours_ago(5)).await;
    it.logged("permanently_failed", hours_ago(2)).await;
    it.logged("cancelled", hours_ago(1)).await;
    let disable = "update walhook.webhook set active = false, failing_since = now() - interval '3 hours', consecutive_failures = 40,
                       disabled_at = now() - interval '1 hour', disabled_reason = 'HTTP 500 answers (http_status)'";
    it.service.sql.execute(disable, &[]).await.unwrap();

    let shown = it.api.webhook(&it.id).await;
    assert!(shown["failing_since"].is_string() && shown["failures_until_disabled"].is_null());

    let dry_run = json!({ "dry_run": true });
    let waiting = it.api.post(&path, dry_run.clone()).await.expect(200).json();
    assert_eq!(waiting["count"], 2, "{waiting}");
    it.api.post(&path, json!({})).await.expect(409);

    // The activation resets the failures, but the notice to the owner has when they began.
    let notice = "insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind, failures, threshold,
                      failing_since)
                  values (gen_random_uuid(), 'disabled', $1, '1', 'x', 'x', 'x', 'http_status', 40, 40, now() - interval '3 hours')";
    it.service
        .sql
        .execute(notice, &[&it.webhook])
        .await
        .unwrap();
    it.api
        .patch(&format!("/webhooks/{}", it.id), json!({ "active": true }))
        .await
        .expect(200);

    assert_eq!(
        it.api.post(&path, dry_run).await.expect(200).json()["count"],
        2
    );
    let started = it.api.post(&path, json!({})).await.expect(202).json();
    assert_eq!(started["count"], 2);
}

/// Otherwise a user with many jobs would get as many steps for one of another user.
#[tokio::test]
async fn users_take_turns_however_many_jobs_each_has() {
    let service = Service::start().await;
    let busy = service.api("1").await;
    let other = service.api("2").await;
    let body = json!({ "since": hours_ago(4).to_string() });

    for _ in 0..5 {
        let (webhook, _) = busy
            .create_webhook("https://receiver.example/in", &["delivery.failed"])
            .await;
        for _ in 0..10 {
            busy.post(&format!("/webhooks/{webhook}/recover"), body.clone())
                .await
                .expect(202);
        }
    }

    let (own, _) = other
        .create_webhook("https://receiver.example/in", &["delivery.failed"])
        .await;
    other
        .post(&format!("/webhooks/{own}/recover"), body)
        .await
        .expect(202);

    let own: Uuid = own.parse().unwrap();
    let mut turns = Turns::default();
    let mut ended = 0;

    // Two steps of the other's job, and as many of each job before it.
    for _ in 0..4 {
        match jobs::step(&service.store, &mut turns).await.unwrap() {
            Step::Finished { webhook, .. } if webhook == own => return,
            Step::Finished { .. } => ended += 1,
            step => assert_eq!(step, Step::Worked),
        }
    }

    panic!("{ended} jobs of one user have ended, and none of the other");
}
