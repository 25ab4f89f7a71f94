//! Searching, exporting and following the delivery logs of an account.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;
use walhook::domain::about::catalogue_key;
use walhook::domain::event::delivery_id;

use crate::fixture::Service;
use crate::support::sse::Stream;
use crate::support::{Answer, Api, Receiver, TestApp};

const URL: &str = "https://receiver.example/in";

/// An attempt to insert, with its event.
#[derive(Clone)]
struct Made<'a> {
    user: &'a str,
    webhook: Uuid,
    data: Value,
    kind: &'a str,
    outcome: &'a str,
    status: Option<i16>,
    error: Option<&'a str>,
}

impl Made<'_> {
    /// Inserts the event and the attempt, and returns their ids.
    async fn insert(&self, service: &Service) -> (Uuid, Uuid) {
        let event = Uuid::now_v7();
        let log = Uuid::now_v7();
        let number = |key: &str| self.data[key].as_i64();
        let catalogue = self.data["release_cat"].as_str().map(catalogue_key);
        let data = self.data.to_string();
        let insert = "insert into walhook.event (id, user_id, kind, occurred_at, data, release_id, catalogue, track_id)
                      values ($1, $2, $3, now(), $4::text::json, $5, $6, $7)";
        service
            .sql
            .execute(
                insert,
                &[
                    &event,
                    &self.user,
                    &self.kind,
                    &data,
                    &number("release_id"),
                    &catalogue,
                    &number("track_id"),
                ],
            )
            .await
            .unwrap();

        let insert = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at,
                          duration_ms, outcome, response_status, error_kind, error_message)
                      values ($1, $2, $3, $4, $5, 1, 1, now(), 31, $6, $7, $8, '=cmd')";
        service
            .sql
            .execute(
                insert,
                &[
                    &log,
                    &self.webhook,
                    &delivery_id(event, self.webhook),
                    &event,
                    &self.kind,
                    &self.outcome,
                    &self.status,
                    &self.error,
                ],
            )
            .await
            .unwrap();

        (event, log)
    }
}

async fn found(api: &Api, query: &str) -> BTreeSet<Uuid> {
    let page = api.get(&format!("/logs?{query}")).await.expect(200).json();
    ids(page["data"].as_array().unwrap())
}

fn ids(entries: &[Value]) -> BTreeSet<Uuid> {
    let id = |entry: &Value| entry["id"].as_str().unwrap().parse().unwrap();
    entries.iter().map(id).collect()
}

#[tokio::test]
async fn every_filter_finds_its_entries_of_all_webhooks_and_none_of_others() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let stranger = service.api("2").await;
    let webhook = async |api: &Api| -> Uuid {
        let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
        id.parse().unwrap()
    };
    let (first, second) = (webhook(&api).await, webhook(&api).await);
    let other = webhook(&stranger).await;

    let spotify = json!({ "release_id": 7, "release_cat": "CAT-001", "outlet_id": 12, "outlet_name": "Example Music" });
    let delivered = Made {
        user: "1",
        webhook: first,
        data: spotify.clone(),
        kind: "delivery.completed",
        outcome: "delivered",
        status: Some(200),
        error: None,
    };
    let failed = Made {
        webhook: second,
        outcome: "permanently_failed",
        status: Some(503),
        error: Some("http_status"),
        ..delivered.clone()
    };
    let failed = Made {
        data: json!({ "release_id": 8, "release_cat": "CAT-002", "outlet_id": 13, "outlet_name": "Other" }),
        ..failed
    };
    let transcoded = Made {
        data: json!({ "release_id": 7, "track_id": 70 }),
        kind: "transcode.completed",
        user: "1",
        webhook: first,
        outcome: "delivered",
        status: Some(204),
        error: None,
    };
    let of_stranger = Made {
        user: "2",
        webhook: other,
        data: spotify,
        kind: "delivery.completed",
        outcome: "failed",
        status: None,
        error: Some("dns"),
    };

    let (event, a) = delivered.insert(&service).await;
    let (_, b) = failed.insert(&service).await;
    let (_, c) = transcoded.insert(&service).await;
    let (foreign, d) = of_stranger.insert(&service).await;
    let delivery = delivery_id(event, first);

    for (query, expected) in [
        (String::new(), vec![a, b, c]),
        ("release_id=7".into(), vec![a, c]),
        ("cat=cat-001".into(), vec![a, c]),
        ("cat=CAT-001&outlet_id=example+music".into(), vec![a]),
        ("cat=CAT-001&release_id=8".into(), vec![]),
        ("cat=CAT-003".into(), vec![]),
        ("track_id=70".into(), vec![c]),
        ("track_id=70&release_id=7".into(), vec![c]),
        ("outlet_id=13".into(), vec![b]),
        ("outcome=permanently_failed".into(), vec![b]),
        ("status=5xx".into(), vec![b]),
        ("status=204".into(), vec![c]),
        ("status=2xx&event=delivery.completed".into(), vec![a]),
        ("error=http_status".into(), vec![b]),
        ("error=dns".into(), vec![]),
        (format!("event_id={event}"), vec![a]),
        (format!("delivery={delivery}"), vec![a]),
        (format!("delivery={delivery}&release_id=8"), vec![]),
        (format!("event_id={foreign}"), vec![]),
        (format!("webhook={first}"), vec![a, c]),
        (format!("webhook={first}&release_id=7&status=200"), vec![a]),
        (
            "since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z".into(),
            vec![],
        ),
    ] {
        let expected: BTreeSet<Uuid> = expected.into_iter().collect();
        assert_eq!(found(&api, &query).await, expected, "{query}");
    }

    assert_eq!(found(&stranger, "").await, BTreeSet::from([d]));
    let foreign_webhook = format!("/logs?webhook={other}");
    api.get(&foreign_webhook).await.expect(404);
    let of_webhook = format!("/webhooks/{second}/logs?cat=cat-002");
    let page = api.get(&of_webhook).await.expect(200).json();
    assert_eq!(page["data"][0]["about"], "CAT-002 · Other");

    let problem = api.get("/logs?webhook=x").await.expect(422).json();
    assert_eq!(problem["detail"], "/webhook: expected an id");

    let wrong = "/logs?release_id=x&event_id=x&status=600&error=x&outlet_id=&format=xml";
    let problem = api.get(wrong).await.expect(422).json();
    let mut pointers: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        [
            "/error",
            "/event_id",
            "/format",
            "/outlet_id",
            "/release_id",
            "/status"
        ]
    );
}

#[tokio::test]
async fn pages_of_an_account_are_in_order_and_complete_and_exports_have_every_entry() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let mut webhooks = Vec::new();

    for _ in 0..3 {
        let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
        webhooks.push(id);
    }

    // The first webhook has most of the entries, so that the others have none on most pages.
    let fill = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - n), 12, '0') || '7000' || '8' || substr(gen_random_uuid()::text, 21))::uuid,
                    ($1::text[])[case when n % 50 = 0 then 2 when n % 70 = 0 then 3 else 1 end]::uuid,
                    gen_random_uuid(), gen_random_uuid(), 'delivery.failed', 1, 1, now(),
                    case when n % 100 = 0 then 'failed' else 'delivered' end
                from generate_series(1, 3000) as n";
    service.sql.execute(fill, &[&webhooks]).await.unwrap();

    for (query, count) in [
        ("", 3_000),
        ("&event=delivery.failed", 3_000),
        ("&outcome=failed", 30),
    ] {
        let mut seen: Vec<Uuid> = Vec::new();
        let mut cursor = String::new();

        loop {
            let path = format!("/logs?limit=100{query}{cursor}");
            let page = api.get(&path).await.expect(200).json();
            for entry in page["data"].as_array().unwrap() {
                seen.push(entry["id"].as_str().unwrap().parse().unwrap());
            }

            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }

        assert_eq!(seen.len(), count, "{query}");
        assert!(seen.is_sorted_by(|left, right| left > right), "{query}");
    }

    // Of 3,000 entries, a page examines two thirds.
    let nothing = api
        .get("/logs?event=transcode.failed")
        .await
        .expect(200)
        .json();
    assert_eq!(nothing["data"], json!([]));
    assert_eq!(nothing["partial"], true);
    let next = nothing["next_cursor"].as_str().unwrap();
    let rest = format!("/logs?event=transcode.failed&cursor={next}");
    let rest = api.get(&rest).await.expect(200).json();
    assert_eq!(rest["next_cursor"], Value::Null);
    assert_eq!(rest["partial"], Value::Null);

    let lines = api.get("/logs?format=ndjson").await.expect(200);
    let parsed: Vec<Value> = lines
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(ids(&parsed).len(), 3_000);
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));

    let csv = api.get("/logs?format=csv&outcome=failed").await.expect(200);
    let mut rows = csv.body.lines();
    assert!(
        rows.next()
            .unwrap()
            .starts_with("timestamp,webhook_id,event_type,about,")
    );
    assert_eq!(rows.count(), 30);
}

#[tokio::test]
async fn new_entries_are_streamed_to_their_owner_alone() {
    let mut app = TestApp::prepare().await;
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let api = app.api(&user.to_string()).await;
    let stranger = app.api("stranger").await;
    let receiver = Receiver::start().await;
    let event = "release.distributed";
    let (webhook, _) = api.create_webhook(&receiver.url("/in"), &[event]).await;
    receiver.answer_in_turn(&[Answer::Status(204), Answer::Status(500)]);

    let mut all = Stream::open_logs(&api, "").await;
    let mut failures = Stream::open_logs(&api, "?outcome=failed").await;
    let third = Stream::request_at(&api, "/logs", None).await.unwrap();
    assert_eq!(third.status().as_u16(), 429);

    let mut foreign = Stream::open_logs(&stranger, "").await;

    for _ in 0..2 {
        let release = platform.release(label).await;
        platform.set_delivery_status(release, "distributed").await;
    }

    let first = all.event().await.json();
    let second = all.event().await.json();
    assert_eq!(first["webhook_id"], webhook);
    assert_ne!(first["id"], second["id"]);

    let failed = failures.event().await.json();
    assert_eq!(failed["outcome"], "failed");
    assert_eq!(failed["response_status"], 500);

    // The next that the stranger gets is an own test.
    let (own, _) = stranger
        .create_webhook(&receiver.url("/in"), &[event])
        .await;
    let test = format!("/webhooks/{own}/test");
    stranger.post(&test, json!({})).await.expect(200);
    assert_eq!(foreign.event().await.json()["webhook_id"], own);
}
