//! Malicious requests. Their response is a client error or a success, never a 5xx.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{BASE, Service};
use crate::support::{Api, DEADLINE};

const URL: &str = "https://receiver.example/in";

async fn service() -> Service {
    Service::start_with(|config| {
        config.limits.requests_per_second = 0;
        config.limits.webhooks_per_user = 1_000;
    })
    .await
}

/// Sends these bytes and returns everything that the server sends until it closes the connection.
async fn send_raw(service: &Service, request: &[u8]) -> String {
    exchange(service, request, false).await
}

/// As [`send_raw`]. With `end`, the client closes its side of the connection after the request.
async fn exchange(service: &Service, request: &[u8], end: bool) -> String {
    let address = service
        .url
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix(BASE)
        .unwrap();

    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();

    // The server may reject the request and close the connection before it has read everything.
    let exchange = async {
        let _ = stream.write_all(request).await;

        if end {
            let _ = stream.shutdown().await;
        }

        let _ = stream.read_to_end(&mut answer).await;
    };

    tokio::time::timeout(DEADLINE, exchange)
        .await
        .expect("the server responds or closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The statuses of the responses on one connection.
fn statuses(answers: &str) -> Vec<u16> {
    answers
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|answer| answer[..3].parse().unwrap())
        .collect()
}

fn post(api: &Api, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let token = &api.token;
    let head =
        format!("POST {BASE}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
    format!("{head}Content-Type: application/json\r\n{headers}\r\n{body}").into_bytes()
}

#[tokio::test]
async fn malformed_and_hostile_bodies_cause_no_server_error() {
    let service = service().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let with_name =
        |name: &str| format!(r#"{{"name":{name},"url":"{URL}","events":["delivery.failed"]}}"#);
    let with_url =
        |url: &str| format!(r#"{{"name":"x","url":"{url}","events":["delivery.failed"]}}"#);
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(10_000), close.repeat(10_000));

    let bodies = [
        (with_name(r#""a\u0000b""#), 422),
        (with_name(r#""\ud800""#), 400),
        (with_name(r#""\udc00\ud800""#), 400),
        (with_name(r#""\ufffe\uffff""#), 201),
        (with_name(r#""\u202e\ufeff""#), 422),
        (with_name(&format!("\"{}\"", "\u{10FFFF}".repeat(200))), 201),
        (with_name("1e999"), 400),
        (with_name("123456789012345678901234567890"), 422),
        (with_name(&deep("[", "]")), 400),
        (with_name(&deep("{\"a\":", "}")), 400),
        (with_url(r"https://receiver.example/\u0000"), 422),
        (with_url(r"https://receiver.example/%00%ff"), 201),
        (with_url(r"https://receiver.example\u0000.evil/"), 422),
        (with_url("https://'; drop table walhook.webhook; --/"), 422),
        (
            r#"{"name":"x","url":"https://a.example/","events":[{"a":1},null,[],"\u0000"]}"#.into(),
            422,
        ),
        (r#"{"\u0000":1}"#.into(), 422),
        (
            format!(
                "{{{}}}",
                (0..5_000)
                    .map(|n| format!("\"k{n}\":1"))
                    .collect::<Vec<_>>()
                    .join(",")
            ),
            422,
        ),
        ("null".into(), 422),
        ("{}{}".into(), 400),
        ("[".repeat(60_000), 400),
    ];
    for (body, expected) in bodies {
        let headers = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
        let answer = send_raw(&service, &post(&api, "/webhooks", &headers, &body)).await;

        assert_eq!(statuses(&answer), [expected], "{:.100} {answer:.600}", body);
        let body = body.replace("\"name\"", "\"event\"");

        for path in [
            format!("/webhooks/{id}/test"),
            format!("/webhooks/{id}/regenerate-secret"),
        ] {
            let headers = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
            let answer = send_raw(&service, &post(&api, &path, &headers, &body)).await;
            assert!(
                statuses(&answer).iter().all(|status| *status < 500),
                "{path} {:.100} {answer:.600}",
                body
            );
        }
    }
}

#[tokio::test]
async fn the_user_is_determined_by_the_token_only() {
    let service = service().await;
    let owner = service.api("owner").await;
    let stranger = service.api("stranger").await;
    let (id, _) = owner.create_webhook(URL, &["delivery.failed"]).await;

    for key in ["user", "user_id", "owner", "webhook_id", "id", "tenant"] {
        let mut body = json!({ "name": "x", "url": URL, "events": ["delivery.failed"] });
        body[key] = json!("owner");
        stranger.post("/webhooks", body).await.expect(422);
        stranger
            .get(&format!("/webhooks?{key}=owner"))
            .await
            .expect(400);
    }

    let headers = [
        "x-user",
        "x-user-id",
        "x-forwarded-user",
        "x-original-url",
        "x-rewrite-url",
        "x-http-method-override",
    ];
    for header in headers {
        for value in ["owner", &format!("{BASE}/webhooks/{id}"), "DELETE"] {
            let answer = stranger
                .send("GET", &format!("/webhooks/{id}"), &[(header, value)], None)
                .await;
            answer.expect(404);
        }
    }

    // Two tokens in one request count as none.
    let both = format!("Bearer {}", owner.token);
    stranger
        .send("GET", "/webhooks", &[("authorization", &both)], None)
        .await
        .expect(401);

    for path in [
        format!("/webhooks/{id}/../{id}"),
        format!("/webhooks/%2e%2e/webhooks/{id}"),
        format!("//webhooks/{id}"),
    ] {
        let head = format!("GET {BASE}{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        let answer = send_raw(
            &service,
            format!("{head}Authorization: Bearer {}\r\n\r\n", stranger.token).as_bytes(),
        )
        .await;
        assert_eq!(statuses(&answer), [404], "{path}");
    }

    owner.get(&format!("/webhooks/{id}")).await.expect(200);
}

#[tokio::test]
async fn malformed_queries_and_headers_cause_no_server_error() {
    let service = service().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let long = "a".repeat(10_000);

    let values = [
        long.as_str(),
        "%00",
        "%FF%FE",
        "%",
        "%zz",
        "-1",
        "0",
        "18446744073709551616",
        "1e3",
        "null",
        "'%20or%201=1--",
        "////////////////////////////////",
        "_____________________w",
        "AAAAAAAAAAAAAAAAAAAAAA",
        "9999-12-30T22:00:00.999999999Z",
        "9999-12-31T23:59:59Z",
        "-009999-01-02T01:59:59Z",
        "+999999-01-01T00:00:00Z",
        "0001-01-01T00:00:00%2B23:59",
        "2026-02-30T00:00:00Z",
        "2016-12-31T23:59:60Z",
    ];

    let paths = [
        "/webhooks".to_owned(),
        format!("/webhooks/{id}/logs"),
        format!("/webhooks/{id}"),
        "/webhooks/event-types".into(),
    ];
    for path in &paths {
        for name in [
            "limit", "cursor", "event", "outcome", "since", "until", "", "%00",
        ] {
            for value in values {
                let answer = api.get(&format!("{path}?{name}={value}")).await;
                assert!(
                    matches!(answer.status, 200 | 400 | 422),
                    "{path}?{name}={value:.60}: {answer:?}"
                );
            }
        }

        let many = vec!["limit=1"; 5_000].join("&");
        let answer = api.get(&format!("{path}?{many}")).await;
        assert!(matches!(answer.status, 200 | 414 | 422), "{answer:?}");
    }

    api.get(&format!("/webhooks/{long}")).await.expect(404);
    api.get(&format!("/webhooks/{id}/logs/{long}"))
        .await
        .expect(404);

    for name in [
        "if-match",
        "x-request-id",
        "content-type",
        "accept",
        "idempotency-key",
        "origin",
        "cookie",
        "range",
    ] {
        for value in [long.as_str(), "", "*", "\"", "W/\"x\"", ",,,,", "bytes=0-"] {
            for (method, body) in [("PATCH", Some(json!({ "name": "y" }))), ("GET", None)] {
                let answer = api
                    .send(
                        method,
                        &format!("/webhooks/{id}"),
                        &[(name, value)],
                        body.as_ref(),
                    )
                    .await;

                assert!(
                    answer.status < 500,
                    "{method} {name}: {value:.60}: {answer:?}"
                );
                assert!(
                    answer
                        .header("x-request-id")
                        .is_some_and(|id| id.len() <= 128),
                    "{name}: {answer:?}"
                );
            }
        }
    }

    let bytes = [
        b"GET /api/public/webhooks HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer ".as_slice(),
        &[0xFF, 0xFE],
        b"\r\nX-Request-Id: \xFF\r\n\r\n",
    ];
    assert_eq!(statuses(&send_raw(&service, &bytes.concat()).await), [401]);
    Api::new(&api.url, &long).get("/webhooks").await.expect(401);
}

#[tokio::test]
async fn wrong_content_lengths_and_smuggled_requests_are_rejected() {
    let service = service().await;
    let api = service.api("1").await;
    let stranger = service.api("2").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let body = format!(r#"{{"name":"x","url":"{URL}","events":["delivery.failed"]}}"#);
    let inner =
        format!("DELETE {BASE}/webhooks/{id} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let length = body.len();

    let requests = [
        (
            format!("Content-Length: {}\r\n", length + 100),
            body.clone(),
        ),
        (
            "Content-Length: 99999999999999999999\r\n".into(),
            body.clone(),
        ),
        ("Content-Length: -1\r\n".into(), body.clone()),
        ("Content-Length: +5\r\n".into(), body.clone()),
        ("Content-Length: 5, 6\r\n".into(), body.clone()),
        (
            format!("Content-Length: {length}\r\nContent-Length: 3\r\n"),
            body.clone(),
        ),
        (
            format!("Content-Length: 3\r\nContent-Length: {length}\r\n"),
            body.clone(),
        ),
        (
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n".into(),
            format!("{chunked}{inner}"),
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n".into(),
            format!("0\r\n\r\n{inner}"),
        ),
        (
            "Transfer-Encoding: chunked, identity\r\n".into(),
            chunked.clone(),
        ),
        ("Transfer-Encoding: xchunked\r\n".into(), chunked.clone()),
        ("Transfer-Encoding : chunked\r\n".into(), chunked.clone()),
        (
            "Transfer-Encoding: chunked\r\n".into(),
            "zz\r\nnope\r\n".into(),
        ),
        (
            "Transfer-Encoding: chunked\r\n".into(),
            "fffffffffffffffff\r\n{}\r\n".into(),
        ),
        (
            "Transfer-Encoding: chunked\r\n".into(),
            format!("{length:x}\r\n{body}"),
        ),
        (
            "X: y\r\n folded: z\r\nContent-Length: 2\r\n".into(),
            "{}".into(),
        ),
        (
            "Content-Length: 2\r\nExpect: 100-continue\r\n".into(),
            "{}".into(),
        ),
        (
            "Content-Length: 2\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n".into(),
            "{}".into(),
        ),
    ];
    for (headers, body) in requests {
        let headers = format!("Connection: close\r\n{headers}");
        let end = !body.ends_with("\r\n\r\n");
        let answer = exchange(
            &service,
            &post(&stranger, "/webhooks", &headers, &body),
            end,
        )
        .await;

        assert!(
            statuses(&answer).iter().all(|status| *status < 500),
            "{headers} {answer:.600}"
        );
    }

    // However the server split the stream into requests, none was authenticated by a token that it
    // did not contain.
    api.get(&format!("/webhooks/{id}")).await.expect(200);

    for (index, request) in [
        "\0\0\0\0",
        "GET",
        "GET / HTTP/9.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\r\n\r\n\r\n",
    ]
    .iter()
    .enumerate()
    {
        let answer = exchange(&service, request.as_bytes(), true).await;
        assert!(
            statuses(&answer).iter().all(|status| *status < 500),
            "{index}: {answer:.600}"
        );
    }

    let endless = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(20_000));
    assert!(
        statuses(&exchange(&service, endless.as_bytes(), true).await)
            .iter()
            .all(|status| *status < 500)
    );
}
