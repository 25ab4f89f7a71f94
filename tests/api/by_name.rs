//! `PUT /webhooks/by-name/{name}`.

use serde_json::{Value, json};

use crate::fixture::{BLOCKED_URL, Service};
use crate::support::{Api, ApiAnswer, run_sql};

const URL: &str = "https://receiver.example/in";
const PATH: &str = "/webhooks/by-name/Catalogue%20%2F%20shop";

fn body() -> Value {
    json!({ "url": URL, "events": ["delivery.failed"] })
}

async fn put(api: &Api, path: &str, headers: &[(&str, &str)], body: &Value) -> ApiAnswer {
    api.send("PUT", path, headers, Some(body)).await
}

#[tokio::test]
async fn a_webhook_is_created_then_replaced_and_a_repetition_changes_nothing() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let mut wanted = body();
    wanted["metadata"] = json!({ "team": "shop" });
    wanted["headers"] = json!({ "X-Key": "of the gateway" });

    let created = put(&api, PATH, &[], &wanted).await.expect(201);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        created.header("location"),
        Some(&*format!("/api/public/webhooks/{id}"))
    );
    assert!(
        created.json()["secret"]
            .as_str()
            .unwrap()
            .starts_with("whsec_")
    );
    assert_eq!(created.json()["name"], "Catalogue / shop");
    assert_eq!(created.json()["active"], true);

    // What the body does not have gets its default, except whether the webhook is active.
    api.patch(
        &format!("/webhooks/{id}"),
        json!({ "active": false, "ordering": "strict" }),
    )
    .await
    .expect(200);
    let mut other = body();
    other["headers"] = json!({ "X-Key": "***" });
    let replaced = put(&api, PATH, &[], &other).await.expect(200);
    let webhook = replaced.json();

    assert!(webhook["secret"].is_null());
    assert_eq!(
        (&webhook["id"], &webhook["metadata"], &webhook["ordering"]),
        (&json!(id), &json!({}), &json!("none"))
    );
    assert_eq!(webhook["active"], false);

    let repeated = put(&api, PATH, &[], &other).await.expect(200);
    assert_eq!(repeated.json(), webhook);
    assert_eq!(repeated.header("etag"), replaced.header("etag"));

    let read = api.get(PATH).await.expect(200);
    assert_eq!(read.header("etag"), replaced.header("etag"));
    let changes = api.get(&format!("/audit?subject={id}")).await.expect(200);
    assert_eq!(changes.json()["data"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_put_can_depend_on_the_version_or_on_the_absence() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let mut changed = body();
    changed["description"] = json!("new");

    let expect = async |headers: &[(&str, &str)], status: u16| {
        put(&api, PATH, headers, &changed).await.expect(status)
    };

    expect(&[("if-match", "*")], 412).await;
    expect(&[("if-match", "\"any\"")], 412).await;
    let created = put(&api, PATH, &[("if-none-match", "*")], &body())
        .await
        .expect(201);
    let etag = created.header("etag").unwrap().to_owned();

    expect(&[("if-none-match", "*")], 412).await;
    expect(&[("if-match", "\"old\"")], 412).await;
    let updated = expect(&[("if-match", &etag)], 200).await;
    assert_ne!(updated.header("etag"), Some(&*etag));
    expect(&[("if-match", "*")], 200).await;
    api.get("/webhooks/by-name/nobody").await.expect(404);
}

#[tokio::test]
async fn errors_name_their_field_and_duplicates_are_a_conflict() {
    let service = Service::start_with(|config| config.limits.webhooks_per_user = 3).await;
    let api = service.api("1").await;
    let stranger = service.api("2").await;
    let with = |key: &str, value: Value| {
        let mut changed = body();
        changed[key] = value;
        changed
    };

    let cases = [
        (PATH, json!({}), "/url"),
        (PATH, with("name", json!("another")), "/name"),
        (PATH, with("url", json!(BLOCKED_URL)), "/url"),
        (PATH, with("secret", json!("mine")), "/secret"),
        ("/webhooks/by-name/%E2%80%AEx", body(), "/name"),
    ];

    for (path, body, pointer) in cases {
        let problem = put(&api, path, &[], &body).await.expect(422).json();
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }

    let unknown = put(&api, &format!("{PATH}?x=1"), &[], &body()).await;
    assert_eq!(unknown.expect(400).json()["errors"][0]["pointer"], "/x");

    let (first, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let (second, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let problem = put(&api, "/webhooks/by-name/test", &[], &body())
        .await
        .expect(409)
        .json();
    let detail = problem["detail"].as_str().unwrap();

    assert_eq!(problem["type"], "/problems/ambiguous-name");
    assert!(
        detail.contains(&first) && detail.contains(&second),
        "{detail}"
    );
    api.get("/webhooks/by-name/test").await.expect(409);
    stranger.get("/webhooks/by-name/test").await.expect(404);

    put(&api, PATH, &[], &body()).await.expect(201);
    let limit = put(&api, "/webhooks/by-name/more", &[], &body()).await;
    assert_eq!(
        limit.expect(409).json()["type"],
        "/problems/webhook-limit-reached"
    );
    put(&stranger, PATH, &[], &body()).await.expect(201);
}

/// Otherwise both would create one, and the name would identify neither.
#[tokio::test]
async fn concurrent_puts_create_one_webhook() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let holder = service.app.store().await;
    let lock = "begin; select pg_advisory_xact_lock(hashtextextended('walhook webhooks of 1', 0))";

    run_sql(&holder, lock).await;
    let release = async {
        service.wait_until_blocked(2).await;
        run_sql(&holder, "commit").await;
    };
    let wanted = body();
    let (one, other, ()) = tokio::join!(
        put(&api, PATH, &[], &wanted),
        put(&api, PATH, &[], &wanted),
        release
    );

    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
    assert_eq!(api.webhooks().await.len(), 1);
}
