//! `walhook token`, and requests with its tokens.

use crate::fixture::Service;
use crate::support::{Api, TestApp};

#[tokio::test]
async fn a_token_is_printed_once_works_and_can_be_revoked() {
    let service = Service::start().await;
    let printed = service
        .app
        .walhook_ok(&["token", "create", "--user", "user-7", "--name", "ci job"])
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

    service
        .app
        .walhook_ok(&["token", "create", "--user", "other"])
        .await;
    let list = service.app.walhook_ok(&["token", "list"]).await;

    assert_eq!(list.lines().count(), 2);
    let list = service
        .app
        .walhook_ok(&["token", "list", "--user", "user-7"])
        .await;

    assert!(!list.contains(random) && !list.contains("whk_"));
    let columns: Vec<&str> = list.trim_end().split('\t').collect();

    assert_eq!(
        (columns[1], columns[3], columns[4]),
        ("user-7", "-", "ci job")
    );

    service
        .app
        .walhook_ok(&["token", "revoke", columns[0]])
        .await;
    api.get(&format!("/webhooks/{webhook}")).await.expect(401);
    service
        .app
        .walhook_ok(&["token", "revoke", columns[0]])
        .await;

    let list = service
        .app
        .walhook_ok(&["token", "list", "--user", "user-7"])
        .await;
    assert_ne!(
        list.split('\t').nth(3),
        Some("-"),
        "the list shows when it was revoked"
    );
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
