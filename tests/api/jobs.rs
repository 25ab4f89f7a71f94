//! Replays, and the list of a webhook's jobs, without a dispatcher.

mod skipped;

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;
use walhook::domain::event::delivery_id;
use walhook::jobs::{self, Step, Turns};

use crate::fixture::Service;
use crate::support::plan::plans;
use crate::support::{Api, ApiAnswer, one, run_sql};

const URL: &str = "https://receiver.example/in";
const KIND: &str = "delivery.failed";
const NONE: [Uuid; 0] = [];

fn hours_ago(hours: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(hours)
}

/// A user with stored events, and a webhook that has had none of them.
struct Scene {
    service: Service,
    api: Api,
    id: String,
    webhook: Uuid,
}

/// An event to store.
#[derive(Clone, Copy)]
struct Stored {
    user: &'static str,
    kind: &'static str,
    at: Timestamp,
    label: Option<i64>,
    is_test: bool,
}

impl Stored {
    fn at(at: Timestamp) -> Stored {
        Stored {
            user: "1",
            kind: KIND,
            at,
            label: None,
            is_test: false,
        }
    }
}

impl Scene {
    async fn start() -> Scene {
        let service = Service::start().await;
        let api = service.api("1").await;
        let (id, _) = api.create_webhook(URL, &[KIND]).await;
        let webhook = id.parse().unwrap();

        Scene {
            service,
            api,
            id,
            webhook,
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/webhooks/{}{rest}", self.id)
    }

    /// Stores events in this order. Their ids are those of their times, with a random rest, so
    /// their order is another within a millisecond.
    async fn store(&self, events: &[Stored]) -> Vec<Uuid> {
        let id = |event: &Stored| {
            let random = Uuid::new_v4().as_u128() & (u128::MAX >> 48) & !(0xF << 76) | (7 << 76);
            Uuid::from_u128(((event.at.as_millisecond() as u128) << 80) | random)
        };

        let ids: Vec<Uuid> = events.iter().map(id).collect();
        let (users, kinds): (Vec<&str>, Vec<&str>) =
            events.iter().map(|event| (event.user, event.kind)).unzip();
        let times: Vec<String> = events.iter().map(|event| event.at.to_string()).collect();
        let labels: Vec<Option<i64>> = events.iter().map(|event| event.label).collect();
        let tests: Vec<bool> = events.iter().map(|event| event.is_test).collect();

        let insert = "with counter as (
                update walhook.event_sequence set last = last + cardinality($1::uuid[])
                returning last - cardinality($1::uuid[]) as first
            )
            insert into walhook.event (id, user_id, kind, occurred_at, label_id, sequence, shard, ordinal, data)
            select id, user_id, kind, at::timestamptz, label, case when not test then first + number end,
                walhook.shard(user_id), case when not test then 0 end, '{}'
            from counter, unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bool[])
                with ordinality as event (id, user_id, kind, at, label, test, number)";

        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&ids, &users, &kinds, &times, &labels, &tests];
        self.service.sql.execute(insert, &params).await.unwrap();

        ids
    }

    async fn one(&self, event: Stored) -> Uuid {
        self.store(&[event]).await[0]
    }

    /// Logs an attempt of the event's delivery.
    async fn log(&self, event: Uuid, outcome: &str) {
        let insert = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                      values ($1, $2, $3, $4, $5, 1, 1, now(), $6)";
        let id = Uuid::now_v7();
        let delivery = delivery_id(event, self.webhook);
        let sql = &self.service.sql;

        sql.execute(
            insert,
            &[&id, &self.webhook, &delivery, &event, &KIND, &outcome],
        )
        .await
        .unwrap();
    }

    async fn pend(&self, event: Uuid, attempt: i16) {
        let insert = "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at) values ($1, $2, $3, $4, now())";
        let delivery = delivery_id(event, self.webhook);
        self.service
            .sql
            .execute(insert, &[&delivery, &self.webhook, &event, &attempt])
            .await
            .unwrap();
    }

    async fn miss(&self, event: Uuid) {
        let insert = "insert into walhook.missed_event (webhook_id, event_id) values ($1, $2)";
        self.service
            .sql
            .execute(insert, &[&self.webhook, &event])
            .await
            .unwrap();
    }

    async fn post(&self, rest: &str, body: Value) -> Value {
        let is_dry_run = body["dry_run"] == true;
        self.api
            .post(&self.path(rest), body)
            .await
            .expect(if is_dry_run { 200 } else { 202 })
            .json()
    }

    /// Starts a replay of the last hours, and returns the job's id.
    async fn replay(&self, hours: i64) -> String {
        let started = self
            .post("/replay", json!({ "since": hours_ago(hours).to_string() }))
            .await;
        started["job_id"].as_str().unwrap().to_owned()
    }

    async fn job(&self, id: &str) -> Value {
        self.api
            .get(&self.path(&format!("/jobs/{id}")))
            .await
            .expect(200)
            .json()
    }

    async fn cancel(&self, id: &str) -> ApiAnswer {
        self.api.delete(&self.path(&format!("/jobs/{id}"))).await
    }

    /// Runs one step, without the pause before it.
    async fn step(&self) -> Step {
        let due = "update walhook.recovery set due_at = now() where kind = 'replay' and finished_at is null";
        self.service.sql.execute(due, &[]).await.unwrap();
        jobs::step(&self.service.store, &mut Turns::default())
            .await
            .unwrap()
    }

    /// Runs the next steps of the jobs until deliveries are pending, or all jobs have ended.
    /// Returns the deliveries in the order in which they were created.
    async fn chunk(&self) -> Vec<Uuid> {
        loop {
            let step = self.step().await;
            let pending =
                "select coalesce(array_agg(id order by ctid), '{}') from walhook.delivery";

            let mut pending: Vec<Uuid> = one(&self.service.sql, pending).await;
            if !pending.is_empty() || step == Step::Idle {
                let order = "select array_agg(delivery) from walhook.recovery, unnest(chunk) as delivery where finished_at is null";
                let order: Option<Vec<Uuid>> = one(&self.service.sql, order).await;
                let order = order.unwrap_or_default();

                pending.sort_by_key(|id| order.iter().position(|other| other == id));
                return pending;
            }
        }
    }

    /// Ends the pending deliveries as delivered.
    async fn deliver(&self) {
        let end = "with gone as (delete from walhook.delivery returning id, event_id, webhook_id)
                   insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                   select (overlay(gen_random_uuid()::text placing substr($1::text, 1, 18) from 1 for 18))::uuid, webhook_id, id,
                       event_id, 'delivery.failed', 1, 1, now(), 'delivered'
                   from gone";
        self.service
            .sql
            .execute(end, &[&Uuid::now_v7().to_string()])
            .await
            .unwrap();
    }

    /// Runs all jobs to their ends. Returns the deliveries in the order in which they were created.
    async fn work(&self) -> Vec<Uuid> {
        let mut all = Vec::new();

        loop {
            let chunk = self.chunk().await;
            if chunk.is_empty() {
                return all;
            }

            self.deliver().await;
            all.extend(chunk);
        }
    }

    fn deliveries(&self, events: &[Uuid]) -> Vec<Uuid> {
        events
            .iter()
            .map(|event| delivery_id(*event, self.webhook))
            .collect()
    }
}

#[tokio::test]
async fn a_replay_delivers_two_thousand_events_once_and_in_order() {
    let it = Scene::start().await;

    // A hundred in each millisecond.
    let start = hours_ago(25);
    let numbered: Vec<Stored> = (0..2_000)
        .map(|n| Stored::at(start + SignedDuration::from_millis(n / 100 * 4_000_000)))
        .collect();
    let new = it.store(&numbered).await;

    // None of these is replayed.
    it.store(&[
        Stored {
            user: "2",
            ..Stored::at(start)
        },
        Stored {
            kind: "transcode.failed",
            ..Stored::at(start)
        },
        Stored {
            is_test: true,
            ..Stored::at(start)
        },
        Stored::at(hours_ago(27)),
    ])
    .await;

    let dry = it
        .post(
            "/replay",
            json!({ "since": hours_ago(26), "dry_run": true }),
        )
        .await;

    assert_eq!(
        dry,
        json!({ "job_id": null, "count": 2_000, "exact": true })
    );
    assert_eq!(it.chunk().await, NONE, "a dry run starts nothing");

    let job = it.replay(26).await;

    // An event that is stored now has a delivery of its own.
    it.one(Stored::at(start)).await;
    let job_is = async |state: &str, done: u64| {
        let shown = it.job(&job).await;
        assert_eq!(
            (&shown["state"], &shown["done"]),
            (&json!(state), &json!(done)),
            "{shown}"
        );
        assert_eq!(
            (&shown["kind"], &shown["total"]),
            (&json!("replay"), &json!(2_000))
        );
        assert_eq!(shown["finished_at"].is_null(), state != "finished");
    };

    job_is("queued", 0).await;
    let first = it.chunk().await;

    job_is("running", first.len() as u64).await;
    it.deliver().await;

    let all = [first, it.work().await].concat();
    assert!(
        all == it.deliveries(&new),
        "they are in the order of their numbers, each once"
    );
    job_is("finished", 2_000).await;
}

#[tokio::test]
async fn a_replay_is_limited_to_a_period_event_types_and_labels() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api
        .create_webhook(URL, &[KIND, "delivery.completed", "takedown.completed"])
        .await;
    let it = Scene {
        webhook: id.parse().unwrap(),
        service,
        api,
        id,
    };

    let mut expected = HashMap::new();

    for kind in [KIND, "delivery.completed", "takedown.completed"] {
        for label in [None, Some(7), Some(8), Some(9)] {
            for hours in [2, 4, 6] {
                let event = it
                    .one(Stored {
                        kind,
                        label,
                        ..Stored::at(hours_ago(hours))
                    })
                    .await;
                expected.insert(event, (kind, label, hours));
            }
        }
    }

    let body = json!({
        "since": hours_ago(5), "until": hours_ago(3), "events": [KIND, "takedown.completed", KIND], "label_ids": [9, 7, 7],
    });

    assert_eq!(it.post("/replay", body).await["count"], 4);

    // The webhook is not interested in these any more.
    let events = json!({ "events": [KIND, "delivery.completed"] });
    it.api.patch(&it.path(""), events).await.expect(200);

    let wanted = |(_, what): &(&Uuid, &(&str, Option<i64>, i64))| {
        what.0 == KIND && matches!(what.1, Some(7 | 9)) && what.2 == 4
    };

    let mut wanted: Vec<Uuid> = expected
        .iter()
        .filter(wanted)
        .map(|(event, _)| *event)
        .collect();
    wanted.sort_unstable_by_key(|event| expected[event].1);
    assert_eq!(it.work().await, it.deliveries(&wanted));
}

#[tokio::test]
async fn a_chunk_waits_for_the_backlog_and_for_the_first_attempts_of_the_last_chunk() {
    let it = Scene::start().await;
    it.store(&vec![Stored::at(hours_ago(2)); 400]).await;

    let fill = "insert into walhook.delivery (id, webhook_id, event_id, due_at) select gen_random_uuid(), $1, gen_random_uuid(), now()
                from generate_series(1, 500)";
    it.service.sql.execute(fill, &[&it.webhook]).await.unwrap();

    let job = it.replay(3).await;
    let count = async || one::<i64>(&it.service.sql, "select count(*) from walhook.delivery").await;

    for _ in 0..3 {
        assert_eq!(it.step().await, Step::Worked);
    }

    assert_eq!(
        (count().await, it.job(&job).await["state"].clone()),
        (500, json!("queued"))
    );
    it.service
        .sql
        .execute("delete from walhook.delivery", &[])
        .await
        .unwrap();

    let chunk = it.chunk().await.len() as i64;
    assert!((10..=50).contains(&chunk), "{chunk}");

    let attempted = "update walhook.delivery set attempt = 2, due_at = now() + interval '1 hour'
                     where id in (select id from walhook.delivery where attempt = 1 limit $1)";
    it.service
        .sql
        .execute(attempted, &[&(chunk / 2)])
        .await
        .unwrap();

    for _ in 0..3 {
        assert_eq!(it.step().await, Step::Worked);
    }

    assert_eq!(count().await, chunk, "half of them were not attempted");
    it.service
        .sql
        .execute(attempted, &[&(chunk / 2)])
        .await
        .unwrap();
    assert_eq!(it.step().await, Step::Worked);
    assert!(count().await > chunk, "it does not wait for retries");
}

#[tokio::test]
async fn a_cancelled_job_creates_nothing_more_and_stays_cancelled() {
    let it = Scene::start().await;
    it.store(&vec![Stored::at(hours_ago(2)); 400]).await;

    let job = it.replay(3).await;
    let queued = it.replay(3).await;
    let chunk = it.chunk().await.len();

    for id in [&job, &job, &queued] {
        it.cancel(id).await.expect(204);
    }

    assert_eq!(it.step().await, Step::Idle);
    let shown = it.job(&job).await;

    assert_eq!(
        (&shown["state"], &shown["done"], &shown["total"]),
        (&json!("cancelled"), &json!(chunk), &json!(400))
    );
    assert!(shown["finished_at"].is_string());

    let pending: i64 = one(&it.service.sql, "select count(*) from walhook.delivery").await;

    assert_eq!(pending, chunk as i64, "what was created remains");
    it.deliver().await;

    let rest = it.replay(3).await;
    assert_eq!(it.work().await.len(), 400 - chunk);
    it.cancel(&rest).await.expect(204);
    assert_eq!(
        it.job(&rest).await["state"],
        "finished",
        "a job that has ended stays as it is"
    );
    it.cancel(&Uuid::now_v7().to_string()).await.expect(404);
    it.cancel("nothing").await.expect(404);

    let audited = "select array_agg(action order by id) from walhook.audit where action ~ 'replay|job' and subject_id = $1";
    let audited: Vec<String> = it
        .service
        .sql
        .query_one(audited, &[&it.webhook])
        .await
        .unwrap()
        .get(0);

    let [started, cancelled] = ["webhook.replay_started", "webhook.job_cancelled"];
    assert_eq!(audited, [started, started, cancelled, cancelled, started]);
}

#[tokio::test]
async fn jobs_end_with_their_webhook_and_unfinished_ones_are_limited() {
    let it = Scene::start().await;
    it.store(&[Stored::at(hours_ago(2))]).await;

    let body = json!({ "since": hours_ago(3) });
    let job = it.replay(3).await;

    it.api
        .patch(&it.path(""), json!({ "active": false }))
        .await
        .expect(200);
    let rejected = it
        .api
        .post(&it.path("/replay"), body.clone())
        .await
        .expect(409);

    assert_eq!(rejected.json()["type"], "/problems/webhook-inactive");
    let dry = json!({ "since": hours_ago(3), "dry_run": true });

    assert_eq!(
        it.post("/replay", dry).await["count"],
        1,
        "a dry run works for an inactive webhook"
    );
    assert_eq!(it.work().await, NONE);
    assert_eq!(it.job(&job).await["state"], "cancelled");
    it.api
        .patch(&it.path(""), json!({ "active": true }))
        .await
        .expect(200);

    for n in 0..10 {
        it.post(
            if n % 2 == 0 { "/replay" } else { "/recover" },
            body.clone(),
        )
        .await;
    }

    let rejected = it.api.post(&it.path("/replay"), body).await.expect(409);
    assert_eq!(rejected.json()["type"], "/problems/too-many-recoveries");
    it.api.delete(&it.path("")).await.expect(204);
    assert_eq!(it.work().await, NONE);

    let open = "select count(*) from walhook.recovery where finished_at is null";
    assert_eq!(one::<i64>(&it.service.sql, open).await, 0);

    it.api.get(&it.path("/jobs")).await.expect(404);
}

#[tokio::test]
async fn jobs_are_listed_newest_first_in_pages() {
    let it = Scene::start().await;
    assert_eq!(
        it.api.get(&it.path("/jobs")).await.expect(200).json(),
        json!({ "data": [], "next_cursor": null })
    );

    let mut expected = Vec::new();
    let body = json!({ "since": hours_ago(3) });

    for n in 0..7 {
        let kind = if n % 3 == 0 { "recover" } else { "replay" };
        let started = it.post(&format!("/{kind}"), body.clone()).await;
        expected.insert(0, (started["job_id"].clone(), json!(kind)));
    }

    let mut listed = Vec::new();
    let mut cursor = String::new();

    loop {
        let page = it
            .api
            .get(&it.path(&format!("/jobs?limit=3{cursor}")))
            .await
            .expect(200)
            .json();

        let jobs = page["data"].as_array().unwrap();
        listed.extend(
            jobs.iter()
                .map(|job| (job["id"].clone(), job["kind"].clone())),
        );

        for job in jobs {
            let keys: Vec<&str> = job
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            assert_eq!(
                keys,
                [
                    "id",
                    "kind",
                    "state",
                    "done",
                    "total",
                    "created_at",
                    "finished_at"
                ]
            );
        }

        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };

        assert_eq!(jobs.len(), 3);
        cursor = format!("&cursor={next}");
    }

    assert_eq!(listed, expected);
    let problem = it
        .api
        .get(&it.path("/jobs?limit=0&cursor=x"))
        .await
        .expect(400)
        .json();

    assert_eq!(problem["errors"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn every_error_of_a_replay_is_listed() {
    let it = Scene::start().await;
    let since = "2026-03-02T00:00:00Z";
    for (body, pointers) in [
        (json!({}), "/since"),
        (json!({ "since": "yesterday" }), "/since"),
        (json!({ "since": since, "until": since }), "/until"),
        (json!({ "since": since, "events": [] }), "/events"),
        (json!({ "since": since, "events": KIND }), "/events"),
        (
            json!({ "since": since, "events": [KIND, "transcode.failed", "x", 1] }),
            "/events/1 /events/2 /events/3",
        ),
        (json!({ "since": since, "label_ids": [] }), "/label_ids"),
        (
            json!({ "since": since, "label_ids": [1, "2", 3.5, 1e30] }),
            "/label_ids/1 /label_ids/2 /label_ids/3",
        ),
        (
            json!({ "since": since, "label_ids": vec![1; 101] }),
            "/label_ids",
        ),
        (json!({ "since": since, "outcome": "failed" }), "/outcome"),
        (
            json!({ "since": "9000-01-01T00:00:00Z", "events": ["x"], "label_ids": null, "dry_run": 1, "limit": 1 }),
            "/events/0 /label_ids /dry_run /since /limit",
        ),
    ] {
        let problem = it
            .api
            .post(&it.path("/replay"), body.clone())
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

    let body = json!({ "since": since, "events": ["transcode.failed"] });
    let problem = it
        .api
        .post(&it.path("/replay"), body)
        .await
        .expect(422)
        .json();

    assert_eq!(
        problem["detail"],
        "/events/0: is not one of the webhook's events"
    );
}

/// A replay reads each day's events of a user by their numbers: it never sorts or scans a day.
#[tokio::test]
async fn the_next_events_are_read_by_an_index() {
    const BY_INDEX: &str = walhook::sql::store::server::PLAN_BY_INDEX;
    const SCAN: &str = walhook::sql::store::event::SCAN_REPLAY;

    let it = Scene::start().await;
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();

    walhook::store::partitions::maintain(&it.service.store, today, 30)
        .await
        .unwrap();

    for days in [-1, 0, 1] {
        let at = Timestamp::now() + SignedDuration::from_hours(24 * days);
        let users = ["1", "2", "3", "4", "5"];
        let events: Vec<Stored> = (0..2_000)
            .map(|n| Stored {
                user: users[n % 5],
                ..Stored::at(at)
            })
            .collect();

        it.store(&events).await;
    }

    let sql = &it.service.sql;
    run_sql(sql, "analyze").await;
    sql.batch_execute(&BY_INDEX.replace(", true)", ", false)"))
        .await
        .unwrap();

    let types = "text, bigint, bigint, uuid, uuid, bigint, uuid, text[], bigint[], timestamptz, timestamptz, bigint";
    let nil = Uuid::nil();
    let max = Uuid::max();
    let arguments = format!(
        "'1', 100, 1000000, '{nil}', '{max}', 500, '{nil}', '{{}}', null, now(), now(), 50"
    );

    for plan in plans(sql, SCAN, types, &arguments).await {
        let (_, examined) = plan.split_once("CTE examined").unwrap();
        let (examined, _) = examined.split_once("CTE found").unwrap();
        assert!(examined.contains("Merge Append"), "{plan}");
        assert!(
            !examined.contains("Sort  (") && !examined.contains("Seq Scan"),
            "{plan}"
        );
    }
}
