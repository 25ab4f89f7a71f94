//! `walhook token`, and requests with its tokens.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::support::{Api, TestApp, one, run_sql};

const URL: &str = "https://receiver.example/in";

/// Creates a token by the API. Returns its id and a client that uses it.
async fn create(api: &Api, body: Value) -> (String, Api) {
    let created = api.post("/tokens", body).await.expect(201).json();
    let text = |key: &str| created[key].as_str().unwrap().to_owned();
    (text("id"), Api::new(&api.url, &text("token")))
}

#[tokio::test]
async fn owners_create_list_and_revoke_tokens() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = json!({ "name": " ci ", "expires_at": "2099-12-31T00:00:00Z" });
    let created = api.post("/tokens", body).await.expect(201);
    let location = created.header("location").unwrap().to_owned();
    let token = created.json();
    let id = token["id"].as_str().unwrap();
    let new = Api::new(&service.url, token["token"].as_str().unwrap());

    assert_eq!(location, format!("/api/public/tokens/{id}"));
    new.create_webhook(URL, &["delivery.failed"]).await;
    assert_eq!(api.webhooks().await.len(), 1, "it acts for the same user");

    let listed = api.get("/tokens?limit=1").await.expect(200).json();
    assert_eq!(listed["data"][0]["id"], id, "newest first");
    assert!(listed["next_cursor"].is_string());

    let read = api.get(&format!("/tokens/{id}")).await.expect(200).json();
    assert_eq!(
        (&read["name"], &read["scope"], &read["expires_at"]),
        (
            &json!("ci"),
            &json!("full"),
            &json!("2099-12-31T00:00:00.000+00:00")
        )
    );
    assert!(read["last_used_at"].is_string() && read["revoked_at"].is_null());
    assert!(!read.to_string().contains("whk_"), "{read}");

    for _ in 0..2 {
        api.delete(&format!("/tokens/{id}")).await.expect(204);
    }

    new.get("/webhooks").await.expect(401);
    let revoked = api.get(&format!("/tokens/{id}")).await.expect(200).json();
    assert!(revoked["revoked_at"].is_string(), "{revoked}");

    let records = api.get("/audit?action=token.revoked").await.expect(200);
    assert_eq!(records.json()["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn another_user_s_token_is_not_found() {
    let service = Service::start().await;
    let owner = service.api("owner").await;
    let stranger = service.api("stranger").await;
    let (id, token) = create(&owner, json!({ "name": "mine" })).await;

    for path in [format!("/tokens/{id}"), "/tokens/no-id".to_owned()] {
        stranger.get(&path).await.expect(404);
        stranger.delete(&path).await.expect(404);
    }

    let listed = stranger.get("/tokens").await.expect(200);
    assert!(!listed.body.contains(&id), "{listed:?}");
    token.get("/webhooks").await.expect(200);
}

#[tokio::test]
async fn a_token_ends_when_it_expires_and_its_sessions_too() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = json!({ "name": "x", "expires_at": "2099-12-31T00:00:00Z" });
    let (id, token) = create(&api, body).await;
    let session = format!(
        "insert into walhook.session (hash, user_id, token_id) values (sha256('session'), '1', '{id}')"
    );

    run_sql(&service.sql, &session).await;
    let cookie = [("cookie", "walhook_session=session")];
    let in_session = Api::new(&service.url, "");

    token.get("/webhooks").await.expect(200);
    let (status, _) = in_session.get_without_token("/webhooks", &cookie).await;
    assert_eq!(status, 200);

    run_sql(
        &service.sql,
        "update walhook.api_token set expires_at = now() where name = 'x'",
    )
    .await;
    token.get("/webhooks").await.expect(401);
    let (status, _) = in_session.get_without_token("/webhooks", &cookie).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn a_read_only_token_changes_nothing() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let body = json!({ "name": "x", "scope": "read_only" });
    let (own, reader) = create(&api, body).await;
    let path = format!("/webhooks/{id}");

    reader.get(&path).await.expect(200);
    reader.get("/audit").await.expect(200);
    let rejected = [
        reader.patch(&path, json!({ "name": "new" })).await,
        reader.delete(&path).await,
        reader.post(&format!("{path}/test"), json!({})).await,
        reader.post("/tokens", json!({ "name": "more" })).await,
        reader.delete(&format!("/tokens/{own}")).await,
        reader.post("/webhooks", json!({})).await,
    ];

    for answer in rejected {
        let problem = answer.expect(403).json();
        assert_eq!(problem["type"], "/problems/read-only-token");
    }

    assert_eq!(api.webhook(&id).await["name"], "test");
}

#[tokio::test]
async fn invalid_tokens_are_rejected_by_field_and_their_number_is_limited() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let cases = [
        (json!({}), "/name"),
        (json!({ "name": "\u{202e}" }), "/name"),
        (json!({ "name": "x", "scope": "admin" }), "/scope"),
        (
            json!({ "name": "x", "expires_at": "tomorrow" }),
            "/expires_at",
        ),
        (
            json!({ "name": "x", "expires_at": "2020-01-01T00:00:00Z" }),
            "/expires_at",
        ),
        (json!({ "name": "x", "user": "2" }), "/user"),
    ];

    for (body, pointer) in cases {
        let problem = api.post("/tokens", body).await.expect(422).json();
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }

    run_sql(
        &service.sql,
        "insert into walhook.api_token (id, user_id, name, hash, revoked_at)
         select gen_random_uuid(), '1', '', sha256(n::text::bytea), case when n > 49 then now() end
         from generate_series(1, 200) as n",
    )
    .await;
    let problem = api
        .post("/tokens", json!({ "name": "x" }))
        .await
        .expect(409);
    assert_eq!(problem.json()["type"], "/problems/token-limit-reached");

    run_sql(
        &service.sql,
        "update walhook.api_token set revoked_at = now() where hash = sha256('1')",
    )
    .await;
    api.post("/tokens", json!({ "name": "x" }))
        .await
        .expect(201);
    let ended = "select count(*) from walhook.api_token where revoked_at is not null";
    assert_eq!(
        one::<i64>(&service.sql, ended).await,
        100,
        "older ones are removed"
    );
}

/// The time of use is written once a minute, and no request waits for one that writes it.
#[tokio::test]
async fn the_last_use_is_written_once_a_minute() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let version = "select xmin::text::bigint from walhook.api_token";
    let used = "select extract(epoch from now() - used_at)::float8 < 30 from walhook.api_token";

    api.get("/webhooks").await.expect(200);
    assert!(one::<bool>(&service.sql, used).await);
    let first: i64 = one(&service.sql, version).await;

    for _ in 0..5 {
        api.get("/webhooks").await.expect(200);
    }

    assert_eq!(one::<i64>(&service.sql, version).await, first);
    run_sql(
        &service.sql,
        "update walhook.api_token set used_at = now() - interval '2 minutes'",
    )
    .await;

    let holder = service.app.store().await;
    run_sql(&holder, "begin; select from walhook.api_token for update").await;
    api.get("/webhooks").await.expect(200);
    run_sql(&holder, "rollback").await;
    assert!(!one::<bool>(&service.sql, used).await);
    api.get("/webhooks").await.expect(200);
    assert!(one::<bool>(&service.sql, used).await);
}

#[tokio::test]
async fn a_token_is_printed_once_works_and_can_be_revoked() {
    let service = Service::start().await;
    let create = ["token", "create", "--user", "user-7", "--name", "ci job"];
    let printed = service
        .app
        .walhook_ok(&[&create[..], &["--force"]].concat())
        .await;
    let token = printed.strip_suffix('\n').unwrap();
    let random = token.strip_prefix("whk_").unwrap();

    assert_eq!(random.len(), 43);
    assert!(
        random
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    );

    let api = Api::new(&service.url, token);
    let (webhook, _) = api
        .create_webhook("https://receiver.example/in", &["delivery.failed"])
        .await;
    let owner = service
        .sql
        .query_one("select user_id from walhook.webhook", &[])
        .await
        .unwrap();

    assert_eq!(owner.get::<_, &str>(0), "user-7");

    let stored = service
        .sql
        .query_one(
            "select t::text, octet_length(hash) from walhook.api_token t",
            &[],
        )
        .await
        .unwrap();

    assert!(!stored.get::<_, &str>(0).contains(random));
    assert_eq!(stored.get::<_, i32>(1), 32);

    service.app.token("other").await;
    let list = service.app.walhook_ok(&["token", "list"]).await;
    let starts: Vec<Option<usize>> = list
        .lines()
        .zip(["USER", "user-7", "other"])
        .map(|(line, user)| line.find(user))
        .collect();
    assert_eq!(starts, [starts[0]; 3], "{list}");
    assert!(starts[0].is_some() && list.contains("ci job"), "{list}");
    assert!(!list.contains(random) && !list.contains("whk_"));

    let listed = async || -> Value {
        let arguments = ["token", "list", "--user", "user-7", "--json"];
        let list = service.app.walhook_ok(&arguments).await;
        serde_json::from_str(&list).unwrap()
    };
    let shown = listed().await;
    assert_eq!(
        (&shown["user"], &shown["revoked_at"], &shown["name"]),
        (&json!("user-7"), &Value::Null, &json!("ci job"))
    );

    let id = shown["id"].as_str().unwrap();
    service.app.walhook_ok(&["token", "revoke", id]).await;
    api.get(&format!("/webhooks/{webhook}")).await.expect(401);
    service.app.walhook_ok(&["token", "revoke", id]).await;
    assert_ne!(listed().await["revoked_at"], Value::Null);
}

#[tokio::test]
async fn a_token_is_for_a_user_of_the_platform() {
    let mut app = TestApp::prepare().await;
    app.setup().await;
    let user = app.platform().await.user(&[]).await.to_string();

    let created = app.walhook(&["token", "create", "--user", &user]).await;
    assert!(created.status.success() && created.stderr.is_empty());

    // The platform's ids are numbers.
    for unknown in ["1", "nobody"] {
        let refused = app.walhook(&["token", "create", "--user", unknown]).await;
        let error = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            refused.stdout.is_empty() && error.contains("--force"),
            "{error}"
        );
    }

    // Nobody can be asked.
    let source = app.source_url.clone();
    for (key, value, back) in [
        ("source.tables.app_user.absent", "true", "false"),
        ("source.url", "postgres://127.0.0.1:9/none", &source),
    ] {
        app.set(key, value);
        let created = app.walhook(&["token", "create", "--user", "1"]).await;
        let warning = String::from_utf8_lossy(&created.stderr);
        assert!(created.stdout.starts_with(b"whk_"), "{warning}");
        assert!(
            warning.contains("not known whether user 1 exists"),
            "{warning}"
        );
        app.set(key, back);
    }
}

#[tokio::test]
async fn errors_are_printed_on_standard_error() {
    let app = TestApp::prepare().await;
    let early = app.walhook(&["token", "list"]).await;

    assert_eq!(early.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&early.stderr).contains("walhook setup"));
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    for (arguments, code) in [
        (vec!["token", "create"], 2),
        (vec!["token", "create", "--user", ""], 2),
        (vec!["token", "create", "--user", "1", "--name", "a\tb"], 2),
        (vec!["token", "create", "--user", "1", "--name", " "], 2),
        (
            vec!["token", "create", "--user", "1", "--name", "a\u{202e}b"],
            2,
        ),
        (vec!["token", "revoke", "no-id"], 2),
        (
            vec!["token", "revoke", "00000000-0000-0000-0000-000000000000"],
            1,
        ),
    ] {
        let output = app.walhook(&arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
}
