//! Environment variables for other programs, which must not affect Walhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::{Api, TestApp, base64_url};

async fn counting_listener() -> (String, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let answer = async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        json!({ "keys": [{ "kty": "RSA", "n": "AQAB", "e": "AQAB" }] }).to_string()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/keys", get(answer.clone())).fallback(answer);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (origin, count)
}

/// A proxy could replace the keys.
#[tokio::test]
async fn keys_are_not_fetched_through_a_proxy_of_the_environment() {
    let (keys, fetches) = counting_listener().await;
    let (proxy, proxied) = counting_listener().await;
    let mut app = TestApp::prepare().await;
    app.set("auth.jwt.issuer", "https://platform.example").set("auth.jwt.audience", "walhook");
    app.set("auth.jwt.jwks_url", &format!("{keys}/keys"));
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        app.set_environment(name, &proxy);
    }
    for name in ["no_proxy", "NO_PROXY"] {
        app.set_environment(name, "");
    }
    app.setup().await;
    app.run().await;
    let header = json!({ "alg": "EdDSA", "kid": "any", "typ": "JWT" }).to_string();
    let token = format!("{}.{}.{}", base64_url(header.as_bytes()), base64_url(b"{}"), base64_url(b"signature"));
    Api::new(&app.sidecar().api_url, &token).get("/webhooks").await.expect(401);
    assert_eq!((fetches.load(Ordering::SeqCst), proxied.load(Ordering::SeqCst)), (1, 0));
}
