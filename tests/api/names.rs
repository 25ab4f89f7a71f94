//! Names that resolve to something else than they seem to, through the API that saves them. The resolver is a stand-in; the
//! guard is the real one.

use std::io;
use std::sync::Arc;

use serde_json::json;
use walhook::app::url_check;
use walhook::deliver::guard::{Guard, Lookup};

use crate::fixture::Service;

/// The addresses are in the name's first label, joined by `_`, with `x` for dots.
fn resolver() -> Lookup {
    Arc::new(|host, port| {
        let first = host.split('.').next().unwrap_or_default().replace('x', ".").replace('-', ":");
        let addresses: Result<Vec<_>, _> =
            first.split('_').map(|address| address.parse().map(|ip: std::net::IpAddr| (ip, port).into())).collect();
        Box::pin(async move { addresses.map_err(|_| io::Error::other("no such name")) })
    })
}

#[tokio::test]
async fn every_address_of_a_name_must_be_reachable_from_the_internet() {
    let guard = Guard::new(false, Vec::new()).with_lookup(resolver());
    let service = Service::start_guarded(|_| {}, url_check(guard)).await;
    let api = service.api("1").await;
    let body = |host: &str| json!({ "name": "x", "url": format!("https://{host}/in"), "events": ["delivery.failed"] });
    for host in [
        "10x0x0x1.example",
        "1x1x1x1_10x0x0x1.example",
        "10x0x0x1_1x1x1x1.example",
        "1x1x1x1_8x8x8x8_169x254x169x254.example",
        "1x1x1x1_--1.example",
        "--ffff-127x0x0x1.example",
        "2606-4700--1111_fd00--1.example",
        "2002-7f00-1--.example.",
        "64-ff9b--a00-1.example",
        "100x64x0x1.example",
        "unknown.example",
        "unknown.example.",
    ] {
        let problem = api.post("/webhooks", body(host)).await.expect(422).json();
        assert_eq!(problem["errors"][0]["pointer"], "/url", "{host}");
        let reason = problem["errors"][0]["detail"].as_str().unwrap();
        let expected = if host.starts_with("unknown") { "does not resolve" } else { "not reachable from the internet" };
        assert!(reason.contains(expected), "{host}: {reason}");
    }
    assert!(api.webhooks().await.is_empty());
    let created = api.post("/webhooks", body("1x1x1x1_2606-4700--1111.example")).await.expect(201).json();
    let id = created["id"].as_str().unwrap();
    let changed = json!({ "url": "https://1x1x1x1_10x0x0x1.example/in" });
    api.patch(&format!("/webhooks/{id}"), changed).await.expect(422);
    assert_eq!(api.webhook(id).await["url"], "https://1x1x1x1_2606-4700--1111.example/in");
}
