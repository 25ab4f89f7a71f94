//! Idempotency keys: a repeated POST is executed once and gets the stored response.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::fixture::{BLOCKED_URL, Service};
use crate::support::{Api, ApiAnswer};

fn body() -> Value {
    json!({ "name": "x", "url": "https://receiver.example/in", "events": ["delivery.failed"] })
}

async fn post(api: &Api, path: &str, key: &str, body: Option<&Value>) -> ApiAnswer {
    api.send("POST", path, &[("idempotency-key", key)], body)
        .await
}

#[track_caller]
fn expect_problem(answer: ApiAnswer, status: u16, slug: &str) {
    assert_eq!(
        answer.expect(status).json()["type"],
        format!("/problems/{slug}")
    );
}

#[tokio::test]
async fn a_repeated_request_gets_the_stored_response_and_has_no_effect() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let other = service.api("2").await;
    let first = post(&api, "/webhooks", "key 1", Some(&body()))
        .await
        .expect(201);

    assert_eq!(first.header("idempotency-replayed"), None);

    // Keys belong to the user, not to the token.
    for again in [&api, &service.api("1").await] {
        let again = post(again, "/webhooks", "key 1", Some(&body()))
            .await
            .expect(201);
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("idempotency-replayed"), Some("true"));

        for header in ["etag", "location", "content-type"] {
            assert!(first.header(header).is_some());
            assert_eq!(again.header(header), first.header(header), "{header}");
        }

        assert_ne!(again.header("x-request-id"), first.header("x-request-id"));
    }

    assert_eq!(api.webhooks().await.len(), 1);
    let secret = first.json()["secret"].as_str().unwrap().to_owned();
    let rows = service
        .sql
        .query("select answer, i::text from walhook.idempotency i", &[])
        .await
        .unwrap();

    assert_eq!(rows.len(), 1);
    let stored = String::from_utf8_lossy(rows[0].get::<_, &[u8]>(0)).into_owned();

    assert!(
        !stored.contains(&secret)
            && !stored.contains("secret")
            && !rows[0].get::<_, &str>(1).contains("key 1")
    );

    post(&other, "/webhooks", "key 1", Some(&body()))
        .await
        .expect(201);
    assert_eq!(other.webhooks().await.len(), 1, "keys are per user");

    let path = format!(
        "/webhooks/{}/regenerate-secret",
        first.json()["id"].as_str().unwrap()
    );
    let renewed = post(&api, &path, "key 2", None).await.expect(200);
    assert_eq!(
        post(&api, &path, "key 2", None).await.expect(200).body,
        renewed.body
    );
    assert_ne!(
        post(&api, &path, "key 3", None).await.expect(200).body,
        renewed.body
    );
}

#[tokio::test]
async fn a_key_belongs_to_one_request() {
    let service = Service::start().await;
    let api = service.api("1").await;

    let id = post(&api, "/webhooks", "k", Some(&body()))
        .await
        .expect(201)
        .json()["id"]
        .as_str()
        .unwrap()
        .to_owned();

    let mut changed = body();
    changed["name"] = "y".into();

    let other_path = format!("/webhooks/{id}/test");
    expect_problem(
        post(&api, "/webhooks", "k", Some(&changed)).await,
        422,
        "idempotency-key-reused",
    );
    expect_problem(
        post(&api, &other_path, "k", None).await,
        422,
        "idempotency-key-reused",
    );

    // Client errors are stored too.
    let rejected = post(&api, "/webhooks", "bad", Some(&json!({})))
        .await
        .expect(422);
    let mut repeated = post(&api, "/webhooks", "bad", Some(&json!({})))
        .await
        .expect(422)
        .json();
    let mut rejected = rejected.json();
    let ids = [&mut repeated, &mut rejected].map(|problem| problem["request_id"].take());

    assert_eq!(repeated, rejected);
    assert_ne!(ids[0], ids[1], "each request has its own");

    expect_problem(
        post(&api, "/webhooks", "bad", Some(&body())).await,
        422,
        "idempotency-key-reused",
    );

    // Other methods ignore keys.
    for name in ["a", "b"] {
        let headers = [("idempotency-key", "k")];
        let patch = json!({ "name": name });
        let answer = api
            .send("PATCH", &format!("/webhooks/{id}"), &headers, Some(&patch))
            .await
            .expect(200);

        assert_eq!(answer.json()["name"], name);
    }
}

#[tokio::test]
async fn transient_errors_are_not_stored() {
    let service = Service::start_with(|config| config.limits.webhooks_per_user = 1).await;
    let api = service.api("1").await;

    // A name may resolve to another address later.
    let blocked = json!({ "name": "x", "url": BLOCKED_URL, "events": ["delivery.failed"] });

    for _ in 0..2 {
        let rejected = post(&api, "/webhooks", "dns", Some(&blocked))
            .await
            .expect(422);
        assert_eq!(rejected.header("idempotency-replayed"), None);
    }

    let first = post(&api, "/webhooks", "dns", Some(&body()))
        .await
        .expect(201)
        .json();

    // Webhooks may be deleted, so the limit may not be reached later.
    expect_problem(
        post(&api, "/webhooks", "limit", Some(&body())).await,
        409,
        "webhook-limit-reached",
    );

    api.send(
        "DELETE",
        &format!("/webhooks/{}", first["id"].as_str().unwrap()),
        &[],
        None,
    )
    .await
    .expect(204);

    let created = post(&api, "/webhooks", "limit", Some(&body()))
        .await
        .expect(201);
    assert_eq!(created.header("idempotency-replayed"), None);

    // A clock may be ahead, and the webhook's events can be changed.
    let webhook = created.json()["id"].as_str().unwrap().to_owned();
    let recover = format!("/webhooks/{webhook}/recover");
    let replay = format!("/webhooks/{webhook}/replay");
    let later = json!({ "since": (Timestamp::now() + SignedDuration::from_hours(1)).to_string() });

    for path in [&recover, &replay].repeat(2) {
        let rejected = post(&api, path, &format!("clock {path}"), Some(&later))
            .await
            .expect(422);
        assert_eq!(rejected.header("idempotency-replayed"), None);
    }

    let other = json!({ "since": "2026-01-01T00:00:00Z", "events": ["transcode.failed"] });
    post(&api, &replay, "events", Some(&other))
        .await
        .expect(422);

    let events = json!({ "events": ["delivery.failed", "transcode.failed"] });
    api.patch(&format!("/webhooks/{webhook}"), events)
        .await
        .expect(200);
    post(&api, &replay, "events", Some(&other))
        .await
        .expect(202);
}

#[tokio::test]
async fn keys_are_short_and_printable() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let longest = "k".repeat(255);

    post(&api, "/webhooks", &longest, Some(&body()))
        .await
        .expect(201);

    for wrong in [
        String::new(),
        "k".repeat(256),
        "schlüssel".into(),
        "a\tb".into(),
    ] {
        expect_problem(
            post(&api, "/webhooks", &wrong, Some(&body())).await,
            422,
            "idempotency-key-malformed",
        );
    }

    let twice = [("idempotency-key", "a"), ("idempotency-key", "b")];
    expect_problem(
        api.send("POST", "/webhooks", &twice, Some(&body())).await,
        422,
        "idempotency-key-malformed",
    );

    let nobody = Api::new(&api.url, "whk_");
    expect_problem(
        post(&nobody, "/webhooks", "k", Some(&body())).await,
        401,
        "unauthorized",
    );
    assert_eq!(api.webhooks().await.len(), 1);
}

#[tokio::test]
async fn simultaneous_requests_with_one_key_create_one_webhook() {
    let service = Service::start().await;
    let api = service.api("1").await;

    // Creations wait for this lock, so that all but the first find a request in progress.
    let mut sql = service.app.store().await;
    let lock = sql.transaction().await.unwrap();

    lock.execute(walhook::sql::store::webhook::LOCK_USER, &[&"1"])
        .await
        .unwrap();

    let body = body();
    let (first, rejected) = tokio::join!(post(&api, "/webhooks", "k", Some(&body)), async {
        service.wait_until_blocked(1).await;
        let mut rejected = Vec::new();

        for _ in 0..5 {
            rejected.push(post(&api, "/webhooks", "k", Some(&body)).await);
        }

        lock.commit().await.unwrap();
        rejected
    });

    for answer in rejected {
        assert!(answer.header("retry-after").is_some());
        expect_problem(answer, 409, "idempotency-key-in-use");
    }

    let mut seen = HashSet::from([first.expect(201).body]);
    let again =
        futures_util::future::join_all((0..10).map(|_| post(&api, "/webhooks", "k", Some(&body))))
            .await;

    seen.extend(again.into_iter().map(|answer| answer.expect(201).body));
    assert_eq!(seen.len(), 1);
    assert_eq!(api.webhooks().await.len(), 1);
}

#[tokio::test]
async fn a_client_that_disconnected_gets_the_stored_response() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let mut sql = service.app.store().await;
    let lock = sql.transaction().await.unwrap();

    lock.execute(walhook::sql::store::webhook::LOCK_USER, &[&"1"])
        .await
        .unwrap();

    let body = body();
    {
        let request = std::pin::pin!(post(&api, "/webhooks", "k", Some(&body)));
        tokio::select! {
            _ = request => panic!("the response does not wait for the lock"),
            () = service.wait_until_blocked(1) => {}
        }
    }

    lock.commit().await.unwrap();
    let found = crate::support::eventually("the response", || async {
        let answer = post(&api, "/webhooks", "k", Some(&body)).await;
        (answer.status == 201).then_some(answer)
    });

    assert_eq!(found.await.header("idempotency-replayed"), Some("true"));
    assert_eq!(api.webhooks().await.len(), 1);
}

#[tokio::test]
async fn internal_errors_are_not_stored() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api
        .create_webhook("https://receiver.example/in", &["transcode.failed"])
        .await;
    let path = format!("/webhooks/{id}/test");

    for _ in 0..2 {
        let broken = post(&api, &path, "k", None).await.expect(500);
        assert_eq!(broken.header("idempotency-replayed"), None);
    }

    // The key is removed and can be used for another request.
    post(&api, "/webhooks", "k", Some(&body()))
        .await
        .expect(201);
}

#[tokio::test]
async fn responses_are_stored_for_a_day_and_the_claim_of_a_dead_request_expires_within_minutes() {
    let service = Service::start().await;
    let api = service.api("1").await;

    let ids = async |key| {
        post(&api, "/webhooks", key, Some(&body()))
            .await
            .expect(201)
            .json()["id"]
            .to_string()
    };

    let first = ids("k").await;
    let sql = &service.sql;

    sql.execute(
        "update walhook.idempotency set claimed_at = now() - interval '23 hours 59 minutes'",
        &[],
    )
    .await
    .unwrap();

    walhook::store::idempotency::remove_old(&service.store)
        .await
        .unwrap();
    assert_eq!(ids("k").await, first);
    sql.execute(
        "update walhook.idempotency set claimed_at = now() - interval '24 hours 1 second'",
        &[],
    )
    .await
    .unwrap();

    let second = ids("k").await;
    assert_ne!(
        second, first,
        "an expired key can be claimed before it is removed"
    );

    sql.execute(
        "update walhook.idempotency set answer = null, key_id = null",
        &[],
    )
    .await
    .unwrap();

    expect_problem(
        post(&api, "/webhooks", "k", Some(&body())).await,
        409,
        "idempotency-key-in-use",
    );
    sql.execute("update walhook.idempotency set held_until = now()", &[])
        .await
        .unwrap();
    assert_ne!(ids("k").await, second);

    sql.execute(
        "update walhook.idempotency set claimed_at = now() - interval '25 hours'",
        &[],
    )
    .await
    .unwrap();

    assert_eq!(
        walhook::store::idempotency::remove_old(&service.store)
            .await
            .unwrap(),
        1
    );
}

#[tokio::test]
async fn beyond_the_limit_of_keys_new_ones_are_rejected_and_stored_responses_are_still_returned() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let other = service.api("2").await;
    let first = post(&api, "/webhooks", "stored", Some(&body()))
        .await
        .expect(201);
    let fill = "insert into walhook.idempotency (id, user_id, key_hash, fingerprint, held_until)
        select gen_random_uuid(), '1', sha256(n::text::bytea), sha256(''), now() from generate_series(2, 10000) n";

    assert_eq!(service.sql.execute(fill, &[]).await.unwrap(), 9_999);
    let rejected = post(&api, "/webhooks", "new", Some(&body())).await;

    assert!(rejected.header("retry-after").is_some());
    expect_problem(rejected, 429, "rate-limited");
    assert_eq!(
        api.webhooks().await.len(),
        1,
        "the request was not executed"
    );

    assert_eq!(
        post(&api, "/webhooks", "stored", Some(&body()))
            .await
            .expect(201)
            .body,
        first.body
    );

    api.post("/webhooks", body()).await.expect(201);
    post(&other, "/webhooks", "new", Some(&body()))
        .await
        .expect(201);

    let age = "update walhook.idempotency set claimed_at = now() - interval '25 hours' where user_id = '1'";
    service.sql.execute(age, &[]).await.unwrap();
    walhook::store::idempotency::remove_old(&service.store)
        .await
        .unwrap();
    post(&api, "/webhooks", "new", Some(&body()))
        .await
        .expect(201);
}

#[tokio::test]
async fn the_type_of_the_body_is_part_of_the_request() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = body();
    let typed = async |content_type: &str| {
        let headers = [("idempotency-key", "k"), ("content-type", content_type)];
        api.send("POST", "/webhooks", &headers, Some(&body)).await
    };

    // Beside the type that every request with a body has.
    typed("text/plain").await.expect(415);
    expect_problem(
        post(&api, "/webhooks", "k", Some(&body)).await,
        422,
        "idempotency-key-reused",
    );
    assert_eq!(api.webhooks().await.len(), 0);
}
