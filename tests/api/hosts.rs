//! URLs whose host names resolve to blocked addresses, or not at all. The resolver is a stand-in,
//! the guard is the real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::sync::Semaphore;
use walhook::deliver::guard::{AddressLookup, Guard, Unreachable};

use crate::fixture::Service;
use crate::support::eventually;

/// The addresses are in the name's first label, joined by `_`, with `x` for dots.
fn resolver() -> AddressLookup {
    Arc::new(|host, port| {
        let first = host
            .split('.')
            .next()
            .unwrap_or_default()
            .replace('x', ".")
            .replace('-', ":");

        let addresses: Result<Vec<_>, _> = first
            .split('_')
            .map(|address| {
                address
                    .parse()
                    .map(|ip: std::net::IpAddr| (ip, port).into())
            })
            .collect();

        Box::pin(async move { addresses.map_err(|_| Unreachable::Unresolved) })
    })
}

#[tokio::test]
async fn every_address_of_a_name_must_be_reachable_from_the_internet() {
    let guard = Guard::new(false, Vec::new()).with_lookup(resolver());
    let service = Service::start_guarded(guard).await;
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
    ] {
        let problem = api.post("/webhooks", body(host)).await.expect(422).json();
        assert_eq!(problem["errors"][0]["pointer"], "/url", "{host}");
        let reason = problem["errors"][0]["detail"].as_str().unwrap();
        assert!(
            reason.contains("not reachable from the internet"),
            "{host}: {reason}"
        );
        // Otherwise anybody could look up the names of the internal network.
        assert!(
            !reason.contains(|c: char| c.is_ascii_digit() || c == ':'),
            "{host}: {reason}"
        );
    }

    assert!(api.webhooks().await.is_empty());
    let created = api
        .post("/webhooks", body("1x1x1x1_2606-4700--1111.example"))
        .await
        .expect(201)
        .json();
    let id = created["id"].as_str().unwrap();
    let changed = json!({ "url": "https://1x1x1x1_10x0x0x1.example/in" });

    api.patch(&format!("/webhooks/{id}"), changed)
        .await
        .expect(422);
    assert_eq!(
        api.webhook(id).await["url"],
        "https://1x1x1x1_2606-4700--1111.example/in"
    );
}

#[tokio::test]
async fn an_invalid_request_causes_no_lookup_and_its_response_lists_every_error() {
    let lookups = Arc::<AtomicUsize>::default();
    let count = lookups.clone();
    let addresses = resolver();
    let lookup: AddressLookup = Arc::new(move |host, port| {
        count.fetch_add(1, Ordering::Relaxed);
        addresses(host, port)
    });

    let service = Service::start_guarded(Guard::new(false, Vec::new()).with_lookup(lookup)).await;
    let api = service.api("1").await;
    let valid =
        json!({ "name": "x", "url": "https://1x1x1x1.example/in", "events": ["delivery.failed"] });

    let id = api
        .post("/webhooks", valid.clone())
        .await
        .expect(201)
        .json()["id"]
        .as_str()
        .unwrap()
        .to_owned();

    assert_eq!(lookups.load(Ordering::Relaxed), 1);

    for (member, wrong) in [
        ("name", json!("")),
        ("events", json!([1])),
        ("active", json!("no")),
        ("secret", json!("s")),
    ] {
        let mut body = valid.clone();
        body[member] = wrong;
        for answer in [
            api.post("/webhooks", body.clone()).await,
            api.patch(&format!("/webhooks/{id}"), body).await,
        ] {
            let errors = answer.expect(422).json()["errors"].clone();
            assert!(
                errors[0]["pointer"]
                    .as_str()
                    .unwrap()
                    .starts_with(&format!("/{member}")),
                "{errors}"
            );
        }
    }

    assert_eq!(lookups.load(Ordering::Relaxed), 1, "no lookup was made");

    for url in [
        "http://1x1x1x1.example/",
        "https://10.0.0.1/",
        "https://localhost/",
    ] {
        let body = json!({ "name": "", "url": url, "events": [] });
        let errors = api.post("/webhooks", body).await.expect(422).json()["errors"].clone();
        let pointers: Vec<&str> = errors
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["pointer"].as_str().unwrap())
            .collect();
        assert_eq!(pointers, ["/name", "/url", "/events"], "{url}");
    }

    assert_eq!(lookups.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_unresolved_name_is_saved_with_a_warning_and_a_blocked_one_is_rejected() {
    let service =
        Service::start_guarded(Guard::new(false, Vec::new()).with_lookup(resolver())).await;
    let api = service.api("1").await;
    let body = |host: &str| json!({ "name": "x", "url": format!("https://{host}/in"), "events": ["delivery.failed"] });
    let created = api
        .post("/webhooks", body("unknown.example"))
        .await
        .expect(201)
        .json();
    let expected = json!([{ "pointer": "/url", "detail": "the host's name does not resolve" }]);

    assert_eq!(created["warnings"], expected);
    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let edited = api.patch(&path, body("unknown.example.")).await.expect(200);

    assert_eq!(edited.json()["warnings"], expected);
    assert!(edited.header("etag").is_some());
    assert_eq!(
        api.get(&path).await.expect(200).json()["warnings"],
        json!(null),
        "only responses to changes have warnings"
    );
    api.patch(&path, body("10x0x0x1.example")).await.expect(422);

    let resolved = api
        .patch(&path, body("1x1x1x1.example"))
        .await
        .expect(200)
        .json();
    assert_eq!(resolved["warnings"], json!(null));
}

/// A lookup whose nameserver does not answer takes seconds.
#[tokio::test]
async fn a_user_has_two_lookups_at_a_time() {
    let lookups = Arc::<AtomicUsize>::default();
    let gate = Arc::new(Semaphore::new(0));
    let count = lookups.clone();
    let closed = gate.clone();

    let lookup: AddressLookup = Arc::new(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        let closed = closed.clone();
        Box::pin(async move {
            closed.acquire().await.unwrap().forget();
            Err(Unreachable::Unanswered)
        })
    });

    let guard = Guard::new(false, Vec::new()).with_lookup(lookup);
    let service = Service::start_guarded(guard).await;
    let body = |host: &str| json!({ "name": "x", "url": format!("https://{host}/in"), "events": ["delivery.failed"] });
    let hostile = service.api("1").await;
    let other = service.api("2").await;

    let requests = async {
        tokio::join!(
            hostile.post("/webhooks", body("a.example")),
            hostile.post("/webhooks", body("b.example")),
            other.post("/webhooks", body("c.example")),
        )
    };

    let third = async {
        let in_progress = || async { (lookups.load(Ordering::Relaxed) == 3).then_some(()) };
        eventually("three lookups", in_progress).await;

        let answer = hostile
            .post("/webhooks", body("d.example"))
            .await
            .expect(201)
            .json();
        assert!(
            answer["warnings"][0]["detail"]
                .as_str()
                .unwrap()
                .contains("was not looked up"),
            "{answer}"
        );

        assert_eq!(lookups.load(Ordering::Relaxed), 3);
        gate.add_permits(3);
    };

    let (answers, ()) = tokio::join!(requests, third);
    for answer in [answers.0, answers.1, answers.2] {
        let warnings = answer.expect(201).json()["warnings"].clone();
        assert!(
            warnings[0]["detail"]
                .as_str()
                .unwrap()
                .contains("nameservers do not answer"),
            "{warnings}"
        );
    }
}
