//! `walhook token`, and requests with its tokens.

use crate::fixture::Service;
use crate::support::{Api, TestApp};
use serde_json::{Value, json};

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
