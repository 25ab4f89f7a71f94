//! Requests of browsers: links between pages, other origins, and the API reference.

use serde_json::Value;

use crate::fixture::{BASE, Service};
use crate::support::Api;

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

#[tokio::test]
async fn the_reference_is_a_page_without_scripts() {
    let service = Service::start().await;
    let nobody = Api::new(&service.url, "");
    let page = nobody.get("/docs").await.expect(200);

    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = page.header("content-security-policy").unwrap();

    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"),
        "{policy}"
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
        assert!(!page.body.contains(absent), "{absent}");
    }

    assert!(
        page.body.contains("<code>next_cursor</code>"),
        "backticks mark code"
    );
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
        assert!(page.body.contains(&name), "{name}");
    }

    for (prefix, pointer) in [("event-", "/webhooks"), ("schema-", "/components/schemas")] {
        for name in names(pointer) {
            assert!(
                page.body.contains(&format!("id=\"{prefix}{name}\"")),
                "{name}"
            );
        }
    }

    for target in page.body.split("href=\"#").skip(1) {
        let target = &target[..target.find('"').unwrap()];
        assert!(
            page.body.contains(&format!("id=\"{target}\"")),
            "{target} is linked but does not exist"
        );
    }
}
