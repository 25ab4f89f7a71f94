//! Receivers that must not be called: rejected when a webhook is saved, and again when they are
//! dialled.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Answer, Receiver, TestApp};
use serde_json::json;

use walhook::clock::SystemClock;
use walhook::config::Config;
use walhook::deliver::guard::{AddressLookup, Guard, Unreachable};

use walhook::deliver::{Sender, Settings};
use walhook::domain::delivery::ErrorKind;

/// Exempts nothing that a test could call: the network is reserved for documentation.
const NOTHING: &str = "192.0.2.0/24";

/// Rejected URLs by address family and notation, with a part of the error message.
const REFUSED: &[(&str, &str)] = &[
    // Special IPv4 networks.
    ("https://0.0.0.0/", "not reachable"),
    ("https://10.0.0.1/", "not reachable"),
    ("https://100.64.0.1/", "not reachable"),
    ("https://127.0.0.1/", "not reachable"),
    ("https://169.254.169.254/latest/meta-data/", "not reachable"),
    ("https://172.16.0.1/", "not reachable"),
    ("https://192.0.0.8/", "not reachable"),
    ("https://192.168.1.1/", "not reachable"),
    ("https://198.18.0.1/", "not reachable"),
    ("https://203.0.113.9/", "not reachable"),
    ("https://224.0.0.1/", "not reachable"),
    ("https://255.255.255.255/", "not reachable"),
    // Other notations of 127.0.0.1 and the metadata address.
    ("https://2130706433/", "not reachable"),
    ("https://2852039166/", "not reachable"),
    ("https://0x7f000001/", "not reachable"),
    ("https://0x7f.0x0.0x0.0x1/", "not reachable"),
    ("https://0177.0.0.1/", "not reachable"),
    ("https://017700000001/", "not reachable"),
    ("https://127.1/", "not reachable"),
    ("https://127.0.1/", "not reachable"),
    ("https://0/", "not reachable"),
    ("https://127.0.0.1./", "not reachable"),
    ("https://169.254.169.254.:443/", "not reachable"),
    ("https://%31%32%37.0.0.1/", "not reachable"),
    ("https://１２７.0.0.1/", "not reachable"),
    ("https://①②⑦.0.0.1/", "not reachable"),
    ("https://127。0。0。1/", "not reachable"),
    ("https:127.0.0.1/", "not reachable"),
    ("https:\\\\127.0.0.1/", "not reachable"),
    // IPv6, and IPv4 embedded in it.
    ("https://[::]/", "not reachable"),
    ("https://[::1]/", "not reachable"),
    ("https://[0:0:0:0:0:0:0:1]:8443/", "not reachable"),
    ("https://[::7f00:1]/", "not reachable"),
    ("https://[::ffff:127.0.0.1]/", "not reachable"),
    ("https://[::ffff:a9fe:a9fe]/", "not reachable"),
    ("https://[2002:7f00:1::]/", "not reachable"),
    ("https://[2002:a9fe:a9fe::1]/", "not reachable"),
    ("https://[64:ff9b::7f00:1]/", "not reachable"),
    ("https://[64:ff9b::169.254.169.254]/", "not reachable"),
    ("https://[64:ff9b:1::a00:1]/", "not reachable"),
    ("https://[2001:0:4136:e378::1]/", "not reachable"),
    ("https://[2001:db8::1]/", "not reachable"),
    ("https://[fc00::1]/", "not reachable"),
    ("https://[fd00:ec2::254]/", "not reachable"),
    ("https://[fe80::1]/", "not reachable"),
    ("https://[ff02::1]/", "not reachable"),
    // Names.
    ("https://localhost/", "localhost"),
    ("https://LOCALHOST:8443/", "localhost"),
    ("https://localhost./", "localhost"),
    ("https://admin.localhost/", "localhost"),
    ("https://ⓛocalhost/", "localhost"),
    ("https://loc\u{ad}alhost/", "localhost"),
    ("https://ｌｏｃａｌｈｏｓｔ/", "localhost"),
    // Not the URL of a receiver.
    ("http://1.1.1.1/", "https://"),
    ("HTTP://1.1.1.1/", "https://"),
    ("ftp://1.1.1.1/", "https://"),
    ("file:///etc/passwd", "https://"),
    ("gopher://1.1.1.1/", "https://"),
    ("https://user@1.1.1.1/", "user name"),
    ("https://user:password@1.1.1.1/", "user name"),
    ("https://1.1.1.1@127.0.0.1/", "user name"),
    ("https://[fe80::1%25eth0]/", "not a URL"),
    ("https://[::1/", "not a URL"),
    ("https://256.256.256.256/", "not a URL"),
    ("https://1.1.1.1:99999/", "not a URL"),
    ("https://1.1.1.1/a b", "spaces"),
    ("https://1.1.1.1/\r\nHost: x", "spaces"),
    ("https://1.1.1.1/\u{0}", "spaces"),
    ("https://", "host"),
];

#[tokio::test]
async fn special_addresses_are_rejected_in_every_notation() {
    let mut app = TestApp::prepare().await;
    app.set("delivery.allow_http", "false")
        .set("delivery.allow_networks", NOTHING);
    app.set("limits.requests_per_second", "0");
    app.setup().await;
    app.run_with(&["--roles", "api"]).await;

    let api = app.api("1").await;
    let (id, _) = api
        .create_webhook("https://1.1.1.1/in", &["delivery.failed"])
        .await;
    let before = api.webhook(&id).await;
    let too_long = format!("https://1.1.1.1/{}", "x".repeat(2_049 - 16));
    let swelling = format!("https://1.1.1.1/{}", "é".repeat(900));
    let more = [
        (too_long.as_str(), "2048 bytes"),
        (swelling.as_str(), "2048 bytes"),
    ];

    for (url, word) in REFUSED.iter().copied().chain(more) {
        let body = json!({ "name": "x", "url": url, "events": ["delivery.failed"] });
        for answer in [
            api.post("/webhooks", body).await,
            api.patch(&format!("/webhooks/{id}"), json!({ "url": url }))
                .await,
        ] {
            assert_eq!(answer.status, 422, "{url}: {answer:?}");
            let problem = answer.json();
            assert_eq!(
                problem["errors"].as_array().unwrap().len(),
                1,
                "{url}: {problem}"
            );
            assert_eq!(problem["errors"][0]["pointer"], "/url", "{url}");
            let reason = problem["errors"][0]["detail"].as_str().unwrap();
            assert!(
                reason.replace("be at most ", "").contains(word),
                "{url}: {reason}"
            );
        }
    }

    assert_eq!(api.webhooks().await, [before], "nothing was saved");
    let longest = format!("https://1.1.1.1/{}", "x".repeat(2_048 - 16));
    api.patch(&format!("/webhooks/{id}"), json!({ "url": longest }))
        .await
        .expect(200);
}

#[tokio::test]
async fn an_address_that_is_no_longer_allowed_is_refused_when_it_is_dialled() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let port = receiver.url("").rsplit_once(':').unwrap().1.to_owned();
    let mut webhooks = Vec::new();

    for host in ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/in");
        webhooks.push(
            api.create_webhook(&url, &["payment.statement_ready"])
                .await
                .0,
        );
    }

    app.set("delivery.allow_networks", NOTHING);
    app.restart().await;
    platform.payment(user, "ready").await;

    let api = api.at(&app.sidecar().api_url);

    for webhook in &webhooks {
        let logs = api
            .wait_for_logs(webhook, "an attempt", |logs| !logs.is_empty())
            .await;
        assert_eq!(logs[0]["error"]["kind"], "blocked_address", "{}", logs[0]);
        assert_eq!(
            (&logs[0]["outcome"], &logs[0]["response_status"]),
            (&json!("failed"), &json!(null))
        );

        let test = api
            .post(&format!("/webhooks/{webhook}/test"), json!({}))
            .await
            .expect(200)
            .json();
        assert_eq!(test["error"]["kind"], "blocked_address", "{test}");
    }

    app.set("delivery.allow_networks", "127.0.0.0/8")
        .set("delivery.allow_http", "false");
    app.restart().await;

    let api = api.at(&app.sidecar().api_url);
    let test = api
        .post(&format!("/webhooks/{}/test", webhooks[0]), json!({}))
        .await
        .expect(200)
        .json();
    assert_eq!(test["error"]["kind"], "blocked_address", "{test}");
    assert!(receiver.requests().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let app = TestApp::start().await;
    let receiver = Receiver::start().await;
    let hidden = Receiver::start().await;
    let api = app.api("1").await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/in"), &["delivery.failed"])
        .await;

    for status in [301, 302, 303, 307, 308] {
        let location = hidden.url("/private");
        receiver.answer(move |_| {
            Answer::Full(status, vec![("location", location.clone())], Vec::new())
        });

        let test = api
            .post(&format!("/webhooks/{webhook}/test"), json!({}))
            .await
            .expect(200)
            .json();
        assert_eq!(test["delivered"], false, "{test}");
        assert_eq!(
            (&test["response_status"], &test["error"]["kind"]),
            (&json!(status), &json!("http_status"))
        );
    }

    assert_eq!(receiver.requests().len(), 5);
    assert!(hidden.requests().is_empty());
}

/// Returns one set of addresses per lookup, and the last set from then on.
fn resolver(answers: &'static [&'static [&'static str]]) -> (AddressLookup, Arc<AtomicUsize>) {
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = lookups.clone();

    let lookup: AddressLookup = Arc::new(move |_, port| {
        let answer = answers[count.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1)];
        let addresses: Vec<SocketAddr> = answer
            .iter()
            .map(|ip| SocketAddr::new(ip.parse().unwrap(), port))
            .collect();
        Box::pin(async move { Ok(addresses) })
    });

    (lookup, lookups)
}

async fn attempt(guard: Guard, url: &str) -> Option<ErrorKind> {
    let mut config = Config::default();
    config.delivery.timeout.0 = Duration::from_secs(5);

    let settings = Settings {
        guard,
        ..Settings::from_config(&config).unwrap()
    };

    let sender = Sender::new(&settings, Arc::new(SystemClock)).unwrap();
    let attempt = crate::support::attempt(&sender, url).await.unwrap();
    attempt.answer.error()
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_when_it_is_dialled_is_not_called() {
    let receiver = Receiver::start().await;
    let url = receiver.url("/in").replace("127.0.0.1", "rebound.example");

    for inside in [
        &["127.0.0.1"][..],
        &["1.1.1.1", "127.0.0.1"],
        &["127.0.0.1", "1.1.1.1"],
        &["::ffff:127.0.0.1"],
    ] {
        let answers: &'static [&'static [&'static str]] =
            Box::leak(Box::new([&["1.1.1.1"][..], inside]));
        let (lookup, lookups) = resolver(answers);
        let guard = Guard::new(true, Vec::new()).with_lookup(lookup);
        let parsed = guard.check_url(&url).unwrap();
        guard
            .check_reachable(&parsed)
            .await
            .expect("the name resolves to a public address when it is saved");
        assert_eq!(
            attempt(guard, &url).await,
            Some(ErrorKind::BlockedAddress),
            "{inside:?}"
        );
        assert_eq!(
            lookups.load(Ordering::Relaxed),
            2,
            "the dialled addresses are those that were checked"
        );
    }

    assert!(receiver.requests().is_empty());

    // If the address is allowed, the checked one is dialled, and not that of a third lookup.
    let (lookup, lookups) = resolver(&[&["127.0.0.1"], &["127.0.0.1"], &["192.0.2.1"]]);
    let guard = Guard::new(true, vec!["127.0.0.0/8".parse().unwrap()]).with_lookup(lookup);

    guard
        .check_reachable(&guard.check_url(&url).unwrap())
        .await
        .unwrap();
    assert_eq!(attempt(guard, &url).await, None);
    assert_eq!(
        (receiver.requests().len(), lookups.load(Ordering::Relaxed)),
        (1, 2)
    );
}

#[tokio::test]
async fn a_name_without_addresses_does_not_resolve() {
    let (lookup, _) = resolver(&[&[]]);
    let guard = Guard::new(true, Vec::new()).with_lookup(lookup);
    let url = guard.check_url("http://empty.example/").unwrap();

    assert_eq!(
        guard.check_reachable(&url).await,
        Err(Unreachable::Unresolved)
    );
    assert_eq!(attempt(guard, url.as_str()).await, Some(ErrorKind::Dns));
}

#[tokio::test]
async fn a_denied_network_is_refused_at_save_and_at_dial_even_if_it_is_allowed() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/in"), &["payment.statement_ready"])
        .await;

    app.set("delivery.deny_networks", "127.0.0.0/30,1.1.1.0/24");
    app.restart().await;

    let api = api.at(&app.sidecar().api_url);
    platform.payment(user, "ready").await;

    let logs = api
        .wait_for_logs(&webhook, "an attempt", |logs| !logs.is_empty())
        .await;
    assert_eq!(logs[0]["error"]["kind"], "blocked_address", "{}", logs[0]);
    assert!(receiver.requests().is_empty(), "nothing was sent");

    // Global, allowed, and in other notations.
    for host in [
        "1.1.1.1",
        "127.0.0.2",
        "[::ffff:1.1.1.1]",
        "[64:ff9b::101:101]",
        "[2002:101:101::]",
    ] {
        let body = json!({ "name": "x", "url": format!("https://{host}/in"), "events": ["delivery.failed"] });
        let problem = api.post("/webhooks", body).await.expect(422).json();
        assert!(
            problem["errors"][0]["detail"]
                .as_str()
                .unwrap()
                .contains("denied"),
            "{host}: {problem}"
        );
    }

    for host in ["1.1.2.1", "127.0.0.4"] {
        api.create_webhook(&format!("https://{host}/in"), &["delivery.failed"])
            .await;
    }
}
