//! Keys in the API: the options of webhooks, replacing secrets, and the published keys.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::fixture::Service;
use crate::support::{Api, eventually, fetch, run_sql};

const URL: &str = "https://receiver.example/in";

async fn published(service: &Service, query: &str) -> (u16, Value) {
    published_when(service, query, |_| true).await
}

/// Waits until the response is as wanted: the keys are read again once in a second.
async fn published_when(
    service: &Service,
    query: &str,
    wanted: impl Fn(&Value) -> bool,
) -> (u16, Value) {
    let read = || async { Some(read(service, query).await).filter(|(_, body)| wanted(body)) };
    eventually("the published keys", read).await
}

async fn read(service: &Service, query: &str) -> (u16, Value) {
    let origin = service
        .url
        .strip_suffix("/api/public")
        .expect("the default base path");
    let (status, body) = fetch(&format!("{origin}/.well-known/walhook-keys.json{query}"))
        .await
        .expect("an answer");
    (status, serde_json::from_str(&body).expect("JSON"))
}

async fn with_ed25519(api: &Api) -> Value {
    let body = json!({ "name": "x", "url": URL, "events": ["delivery.failed"], "signing": "hmac+ed25519" });
    api.post("/webhooks", body).await.expect(201).json()
}

#[tokio::test]
async fn a_key_pair_is_created_and_removed_with_the_option() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let before = api.get(&path).await.expect(200);

    assert_eq!(
        (&before.json()["signing"], &before.json()["public_key"]),
        (&json!("hmac"), &Value::Null)
    );

    let on = api
        .patch(&path, json!({ "signing": "hmac+ed25519" }))
        .await
        .expect(200);
    assert_ne!(on.header("etag"), before.header("etag"));

    let key = on.json()["public_key"].as_str().unwrap().to_owned();
    assert_eq!(key.strip_prefix("whpk_").unwrap().len(), 44, "{key}");

    for edit in [
        json!({ "name": "y" }),
        json!({ "signing": "hmac+ed25519", "active": false }),
    ] {
        assert_eq!(
            api.patch(&path, edit).await.expect(200).json()["public_key"],
            key,
            "other edits keep it"
        );
    }

    let query = format!("?webhook={id}");
    let keys = published_when(&service, &query, |body| body["keys"] != json!([]))
        .await
        .1["keys"]
        .clone();

    assert_eq!(
        (&keys[0]["public_key"], &keys[0]["algorithm"]),
        (&json!(key), &json!("ed25519"))
    );

    let off = api
        .patch(&path, json!({ "signing": "hmac" }))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&off["signing"], &off["public_key"]),
        (&json!("hmac"), &Value::Null)
    );
    published_when(&service, &query, |body| body["keys"] == json!([])).await;

    let again = api
        .patch(&path, json!({ "signing": "hmac+ed25519" }))
        .await
        .expect(200)
        .json();
    assert_ne!(
        again["public_key"], key,
        "a removed key pair does not come back"
    );
}

#[tokio::test]
async fn invalid_values_are_named() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, secret) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");

    for signing in [json!("ed25519"), json!(""), json!(null), json!(1)] {
        let problem = api
            .patch(&path, json!({ "signing": signing }))
            .await
            .expect(422)
            .json();
        assert_eq!(problem["errors"][0]["pointer"], "/signing", "{problem}");
    }

    let regenerate = format!("{path}/regenerate-secret");

    for overlap in [
        json!("169h"),
        json!("-1h"),
        json!("soon"),
        json!(3600),
        json!(null),
    ] {
        let problem = api
            .post(&regenerate, json!({ "overlap": overlap }))
            .await
            .expect(422)
            .json();
        assert_eq!(problem["errors"][0]["pointer"], "/overlap", "{problem}");
    }

    let problem = api
        .post(&regenerate, json!({ "after": "1h" }))
        .await
        .expect(422)
        .json();
    assert_eq!(problem["errors"][0]["pointer"], "/after", "{problem}");
    assert_eq!(
        service.stored_secret(&id).await,
        secret,
        "nothing was replaced"
    );

    let other = service.api("2").await;
    other
        .post(&regenerate, json!({ "overlap": "nonsense" }))
        .await
        .expect(404);
}

#[tokio::test]
async fn anybody_can_read_public_keys_and_learns_nothing_about_webhooks() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let webhook = with_ed25519(&api).await;
    let (_, all) = published(&service, "").await;

    assert_eq!(all["keys"][0]["public_key"], webhook["public_key"]);
    assert_eq!(all["next_cursor"], Value::Null);
    assert!(!all.to_string().contains(webhook["id"].as_str().unwrap()));

    let unknown = published(&service, "?webhook=0195504c-a3a0-7abc-8def-0123456789ab").await;
    assert_eq!((unknown.0, &unknown.1["keys"]), (200, &json!([])));

    for (query, status, pointer) in [
        ("?webhook=x", 422, "/webhook"),
        ("?cursor=ab", 400, "/cursor"),
    ] {
        let (answered, problem) = published(&service, query).await;
        assert_eq!(
            (answered, &problem["errors"][0]["pointer"]),
            (status, &json!(pointer))
        );
    }

    let origin = service.url.strip_suffix("/api/public").unwrap();
    let answer = Api::new(origin, "none")
        .get("/.well-known/walhook-keys.json")
        .await
        .expect(200);

    assert_eq!(answer.header("cache-control"), Some("public, max-age=300"));

    let many = "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id, signing, public_key)
                select gen_random_uuid(), 'u', 'n', 'u', '{delivery.failed}', '', '', 'hmac+ed25519', sha256(n::text::bytea)
                from generate_series(1, 1000) as n";
    service.sql.execute(many, &[]).await.unwrap();

    let (_, first) = published_when(&service, "", |body| body["next_cursor"].is_string()).await;
    let cursor = first["next_cursor"].as_str().expect("a second page");
    let (_, second) = published(&service, &format!("?cursor={cursor}")).await;
    let ids = [&first, &second]
        .map(|page| page["keys"].as_array().unwrap().clone())
        .concat();
    let distinct: std::collections::HashSet<&str> =
        ids.iter().map(|key| key["id"].as_str().unwrap()).collect();

    assert_eq!(
        (ids.len(), distinct.len(), &second["next_cursor"]),
        (1_001, 1_001, &Value::Null)
    );
}

async fn read_forever(service: &Service, query: &str, answers: &UnboundedSender<(u16, Value)>) {
    while answers.send(read(service, query).await).is_ok() {}
}

/// One reader would otherwise deny the keys to every receiver.
#[tokio::test]
async fn readers_of_public_keys_are_not_limited_and_cost_the_store_one_statement_at_a_time() {
    let service = Service::start_with(|config| {
        (config.limits.requests_per_second, config.limits.burst) = (1, 2)
    })
    .await;
    let webhook = with_ed25519(&service.api("1").await).await;
    let own = format!("?webhook={}", webhook["id"].as_str().unwrap());

    for number in 0..50 {
        let query = if number % 2 == 0 {
            own.clone()
        } else {
            format!("?webhook={}", uuid::Uuid::now_v7())
        };
        assert_eq!(published(&service, &query).await.0, 200);
    }

    let holder = service.app.store().await;
    run_sql(&holder, "begin; lock table walhook.webhook").await;

    // One of them waits for the store, once the keys are old.
    let (done, mut answers) = unbounded_channel::<(u16, Value)>();
    let enough = async {
        service.wait_until_blocked(1).await;

        for _ in 0..50 {
            let (status, body): (u16, Value) = answers.recv().await.unwrap();
            assert_eq!(
                (status, &body["keys"][0]["public_key"]),
                (200, &webhook["public_key"])
            );
        }
    };

    tokio::select! {
        () = enough => {}
        _ = join_all((0..4).map(|_| read_forever(&service, &own, &done))) => {}
    }
    run_sql(&holder, "commit").await;
}
