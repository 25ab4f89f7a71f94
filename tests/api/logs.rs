//! Reading the delivery log.

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixture::Service;
use crate::support::{Api, run_sql};

const URL: &str = "https://receiver.example/in";

struct Attempt<'a> {
    id: Uuid,
    kind: &'a str,
    outcome: &'a str,
    at: Timestamp,
}

impl Attempt<'_> {
    /// An attempt whose id contains its time. `n` distinguishes attempts of the same time.
    fn at(at: &str, n: u64) -> Attempt<'static> {
        let at: Timestamp = at.parse().unwrap();
        let id = (at.as_millisecond() as u128) << 80 | 0x7000_8000_0000_0000_0000 | u128::from(n);
        Attempt {
            id: Uuid::from_u128(id),
            kind: "delivery.failed",
            outcome: "delivered",
            at,
        }
    }
}

async fn insert(service: &Service, webhook: &str, attempt: &Attempt<'_>) {
    let webhook: Uuid = webhook.parse().unwrap();
    let Attempt {
        id,
        kind,
        outcome,
        at,
    } = attempt;

    let sql =
        "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at,
                   duration_ms, outcome, response_status)
               values ($1, $2, $1, $1, $3, 1, 2, $4, 31, $5, 200)";
    service
        .sql
        .execute(sql, &[id, &webhook, kind, at, outcome])
        .await
        .unwrap();
}

async fn ids(api: &Api, path: &str) -> Vec<Uuid> {
    let page = api.get(path).await.expect(200).json();
    page["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["id"].as_str().unwrap().parse().unwrap())
        .collect()
}

#[tokio::test]
async fn an_entry_has_the_documented_shape() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;

    insert(&service, &id, &Attempt::at("2026-03-01T09:05:00.123Z", 1)).await;
    let log = &api.logs(&id).await[0];
    assert_eq!(
        *log,
        json!({
            "id": log["id"], "webhook_id": id, "about": null, "delivery_id": log["id"], "event_id": log["id"], "sequence": null, "event_type": "delivery.failed", "response_status": 200,
            "duration_ms": 31, "attempt": 2, "round": 1, "timestamp": "2026-03-01T09:05:00.123+00:00",
            "outcome": "delivered", "error": null, "test": false, "repaired": false,
        })
    );
}

#[tokio::test]
async fn filters_select_by_event_outcome_and_time() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let first = Attempt {
        outcome: "failed",
        ..Attempt::at("2026-03-01T09:00:00Z", 1)
    };

    let second = Attempt {
        kind: "transcode.failed",
        ..Attempt::at("2026-03-01T10:00:00Z", 2)
    };

    let third = Attempt {
        outcome: "permanently_failed",
        ..Attempt::at("2026-03-03T09:00:00Z", 3)
    };

    for attempt in [&second, &first, &third] {
        insert(&service, &id, attempt).await;
    }

    let cases = [
        ("", vec![third.id, second.id, first.id]),
        ("event=transcode.failed", vec![second.id]),
        ("event=payment.statement_ready", vec![]),
        ("outcome=failed", vec![first.id]),
        ("outcome=cancelled", vec![]),
        (
            "event=delivery.failed&outcome=permanently_failed",
            vec![third.id],
        ),
        ("since=2026-03-01T10:00:00Z", vec![third.id, second.id]),
        ("until=2026-03-01T10:00:00Z", vec![first.id]),
        (
            "since=2026-03-01T11:00:00%2B01:00&until=2026-03-01T10:00:00.001Z",
            vec![second.id],
        ),
        (
            "since=2026-03-01T11:00:00.000+01:00",
            vec![third.id, second.id],
        ),
        (
            "since=-000044-03-15T00:00:00Z&until=9999-12-30T00:00:00Z",
            vec![third.id, second.id, first.id],
        ),
        ("limit=2", vec![third.id, second.id]),
    ];
    for (query, expected) in cases {
        assert_eq!(
            ids(&api, &format!("/webhooks/{id}/logs?{query}")).await,
            expected,
            "{query}"
        );
    }
}

#[tokio::test]
async fn pages_are_complete_and_disjoint_while_entries_are_added() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let (other, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let times = [
        "2026-03-01T09:00:00Z",
        "2026-03-01T23:59:59.999Z",
        "2026-03-02T00:00:00Z",
    ];
    let mut expected = Vec::new();

    for n in 0..23 {
        let attempt = Attempt::at(times[n % 3], n as u64);
        insert(&service, &id, &attempt).await;
        insert(&service, &other, &Attempt::at(times[n % 3], 100 + n as u64)).await;
        expected.push(attempt.id);
    }

    expected.sort_unstable_by(|one, other| other.cmp(one));
    let mut seen = Vec::new();
    let mut cursor = String::new();

    loop {
        let page = api
            .get(&format!("/webhooks/{id}/logs?limit=5{cursor}"))
            .await
            .expect(200)
            .json();
        seen.extend(
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| entry["id"].as_str().unwrap().to_owned()),
        );

        insert(
            &service,
            &id,
            &Attempt::at("2026-03-04T00:00:00Z", seen.len() as u64),
        )
        .await;

        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }

    assert_eq!(
        seen,
        expected.iter().map(Uuid::to_string).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_single_entry_has_the_request_and_the_response() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let attempt = Attempt::at("2026-03-01T09:05:00.123Z", 1);

    insert(&service, &id, &attempt).await;
    let path = format!("/webhooks/{id}/logs/{}", attempt.id);
    let without = api.get(&path).await.expect(200).json();
    let entry = api.logs(&id).await[0].clone();

    for key in [
        "request_url",
        "request_headers",
        "request_body",
        "response_body",
    ] {
        assert_eq!(without[key], Value::Null, "nothing was sent: {key}");
    }

    let event = "insert into walhook.event (id, user_id, kind, occurred_at, data)
                 values ($1, '1', 'delivery.failed', now(), '{\"amount\": 10.00}')";
    service.sql.execute(event, &[&attempt.id]).await.unwrap();

    let sent =
        "update walhook.attempt set url = 'https://then.example/', signature = '\\xABCD', standard_signature = '\\x01',
                response_body = '\\x6F6BFF'";
    run_sql(&service.sql, sent).await;

    let with = api.get(&path).await.expect(200).json();
    let expected = json!({
        "request_url": "https://then.example/",
        "request_headers": { "X-Webhook-Id": id, "X-Webhook-Signature": "abcd" },
        "request_body": "delivery.failed 2 {\"amount\": 10.00}",
        "response_body": "ok\u{FFFD}",
    });

    for (key, value) in entry
        .as_object()
        .unwrap()
        .iter()
        .chain(expected.as_object().unwrap())
    {
        assert_eq!(with[key], *value, "{key}");
    }

    assert_eq!(with.as_object().unwrap().len(), 23);
    let (other, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    api.get(&format!("/webhooks/{other}/logs/{}", attempt.id))
        .await
        .expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_searches_without_pause_has_to_wait_and_nobody_else_does() {
    let service = Service::start().await;
    let hasty = service.api("1").await;
    let other = service.api("2").await;
    let (searched, _) = hasty.create_webhook(URL, &["delivery.failed"]).await;
    let (others, _) = other.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{searched}/logs?outcome=failed");
    let refused = loop {
        let response = hasty.get(&path).await;
        if response.status != 200 {
            break response.expect(429);
        }
    };

    let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(wait >= 1, "{wait}");
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("filtered requests")
    );

    hasty
        .get(&format!("/webhooks/{searched}/logs"))
        .await
        .expect(200);
    other
        .get(&format!("/webhooks/{others}/logs?outcome=failed"))
        .await
        .expect(200);
}
