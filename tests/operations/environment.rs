//! Environment variables for other programs, which must not affect Walhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::{Api, Authority, Receiver, TestApp, base64_url, eventually};

/// Sets all variables that name proxies, also for receivers on loopback.
fn set_proxies(app: &mut TestApp, proxy: &str) {
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        app.set_environment(name, proxy);
    }

    for name in ["no_proxy", "NO_PROXY"] {
        app.set_environment(name, "");
    }
}

async fn counting_listener() -> (String, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let answer = async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        json!({ "keys": [{ "kty": "RSA", "n": "AQAB", "e": "AQAB" }] }).to_string()
    };

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/keys", get(answer.clone()))
        .fallback(answer);

    tokio::spawn(async move { axum::serve(listener, router).await });
    (origin, count)
}

/// A proxy could replace the keys.
#[tokio::test]
async fn keys_are_not_fetched_through_a_proxy_of_the_environment() {
    let (keys, fetches) = counting_listener().await;
    let (proxy, proxied) = counting_listener().await;
    let mut app = TestApp::prepare().await;

    app.set("auth.jwt.issuer", "https://platform.example")
        .set("auth.jwt.audience", "walhook");
    app.set("auth.jwt.jwks_url", &format!("{keys}/keys"));
    set_proxies(&mut app, &proxy);
    app.setup().await;
    app.run().await;

    let header = json!({ "alg": "EdDSA", "kid": "any", "typ": "JWT" }).to_string();
    let token = format!(
        "{}.{}.{}",
        base64_url(header.as_bytes()),
        base64_url(b"{}"),
        base64_url(b"signature")
    );

    Api::new(&app.sidecar().api_url, &token)
        .get("/webhooks")
        .await
        .expect(401);

    assert_eq!(
        (
            fetches.load(Ordering::SeqCst),
            proxied.load(Ordering::SeqCst)
        ),
        (1, 0)
    );
}

/// A proxy would resolve the names of receivers itself, perhaps to addresses that are not allowed.
#[tokio::test]
async fn deliveries_are_not_sent_through_a_proxy_of_the_environment() {
    // Connections wait in its backlog.
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();

    let arrived = || {
        proxy
            .accept()
            .map(|(_, from)| from)
            .map_err(|error| error.kind())
    };

    let authority = Authority::new();
    let file = authority.file();
    let mut app = TestApp::prepare().await;

    app.set("delivery.extra_ca_file", file.path().to_str().unwrap());
    set_proxies(&mut app, &format!("http://{}", proxy.local_addr().unwrap()));
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let receivers = [
        Receiver::start().await,
        Receiver::start_tls(authority.server("127.0.0.1", &[])).await,
    ];

    for receiver in &receivers {
        api.create_webhook(&receiver.url("/"), &["payment.statement_ready"])
            .await;
    }

    platform.payment(user, "ready").await;
    let delivered = async { tokio::join!(receivers[0].wait_for(1), receivers[1].wait_for(1)) };
    tokio::select! {
        _ = delivered => {}
        () = eventually("a connection to the proxy", async || arrived().ok().map(drop)) => {
            panic!("the proxy got a connection")
        }
    }

    assert_eq!(arrived(), Err(std::io::ErrorKind::WouldBlock));
}
