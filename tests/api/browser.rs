//! Requests of browsers: links between pages, other origins, and the API reference.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::fixture::{BASE, Service};
use crate::support::{Api, ApiAnswer};

const ORIGIN: &str = "https://app.example";

#[tokio::test]
async fn lists_link_to_their_next_page() {
    let service = Service::start().await;
    let api = service.api("1").await;

    for _ in 0..3 {
        api.create_webhook("https://receiver.example/in", &["delivery.failed"])
            .await;
    }

    let origin = service.url.strip_suffix(BASE).unwrap();
    let mut next = Some(format!("{BASE}/webhooks?limit=1"));
    let mut seen = Vec::new();

    while let Some(path) = next {
        let page = api.at(origin).get(&path).await.expect(200);
        seen.push(page.json()["data"][0]["id"].clone());

        next = page.header("link").map(|link| {
            let target = link
                .strip_prefix('<')
                .unwrap()
                .strip_suffix(">; rel=\"next\"")
                .unwrap();
            assert!(
                target.starts_with(&format!("{BASE}/webhooks?limit=1&cursor=")),
                "{target}"
            );

            target.to_owned()
        });

        assert_eq!(next.is_some(), !page.json()["next_cursor"].is_null());
    }

    let all: Vec<Value> = api
        .webhooks()
        .await
        .into_iter()
        .map(|webhook| webhook["id"].clone())
        .collect();

    assert_eq!(seen, all);
}

async fn preflight(api: &Api, origin: &str) -> crate::support::ApiAnswer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "PATCH"),
        (
            "access-control-request-headers",
            "authorization,content-type,if-match",
        ),
    ];
    api.send("OPTIONS", "/webhooks/x", &headers, None).await
}

#[tokio::test]
async fn only_configured_origins_are_allowed() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let answer = preflight(&api, ORIGIN).await.expect(405);

    assert_eq!(answer.header("access-control-allow-origin"), None);
    let answer = api
        .send("GET", "/webhooks", &[("origin", ORIGIN)], None)
        .await
        .expect(200);

    assert_eq!(answer.header("access-control-allow-origin"), None);

    let service =
        Service::start_with(|config| config.http.cors_origins = vec![ORIGIN.to_owned()]).await;
    let api = service.api("1").await;
    let answer = preflight(&api, ORIGIN).await.expect(200);

    assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN));
    assert!(
        answer
            .header("access-control-allow-methods")
            .unwrap()
            .contains("PATCH")
    );

    assert!(
        answer
            .header("access-control-allow-headers")
            .unwrap()
            .contains("if-match")
    );

    assert_eq!(answer.header("access-control-allow-credentials"), None);

    // Pages can read problems too.
    for (path, status) in [("/webhooks", 200), ("/nothing", 404)] {
        let answer = api
            .send("GET", path, &[("origin", ORIGIN)], None)
            .await
            .expect(status);
        assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN));
        assert!(
            answer
                .header("access-control-expose-headers")
                .unwrap()
                .contains("etag")
        );
    }

    let answer = preflight(&api, "https://evil.example").await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
}

/// The limit for a page before compression.
const MAX_PAGE_BYTES: usize = 60_000;

#[tokio::test]
async fn the_reference_is_small_pages_without_scripts() {
    let service = Service::start().await;
    let nobody = Api::new(&service.url, "");
    let mut pages = BTreeMap::new();
    let mut unread = vec!["/docs".to_owned()];

    // Follows all links.
    while let Some(path) = unread.pop() {
        let page = nobody.get(&path).await.expect(200);
        check_reference(&path, &page);
        let link = format!("href=\"{BASE}/docs");

        let linked = page.body.split(&link).skip(1).map(|rest| {
            let rest = &rest[..rest.find('"').unwrap()];
            format!("/docs{rest}")
        });

        pages.insert(path, page.body.clone());
        unread.extend(linked.filter(|path| !pages.contains_key(path)));
    }

    let document: Value =
        serde_json::from_str(&walhook::api::openapi_document(BASE, &Default::default())).unwrap();
    let names = |pointer: &str| -> Vec<String> {
        document
            .pointer(pointer)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };

    for name in names("/paths") {
        assert!(pages["/docs"].contains(&name), "{name}");
    }

    for (prefix, pointer) in [("event-", "/webhooks"), ("schema-", "/components/schemas")] {
        for name in names(pointer) {
            let path = format!("/docs/{prefix}{name}");
            assert!(pages.contains_key(&path), "{path} is linked");
        }
    }

    let has_code = |page: &String| page.contains("<code>next_cursor</code>");
    assert!(pages.values().any(has_code), "backticks mark code");
    nobody.get("/docs/nonsense").await.expect(404);
}

fn check_reference(path: &str, page: &ApiAnswer) {
    let policy = page.header("content-security-policy").unwrap();

    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert!(
        page.body.len() < MAX_PAGE_BYTES,
        "{path}: {}",
        page.body.len()
    );

    for absent in [
        "<script",
        "javascript:",
        "http-equiv",
        "style=",
        "<link",
        "<img",
        "//cdn",
    ] {
        assert!(!page.body.contains(absent), "{path}: {absent}");
    }
}
