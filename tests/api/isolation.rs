//! Slow, disconnected and numerous clients affect neither other clients nor deliveries.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use walhook::api::router;
use walhook::config::{Config, Http, Period};
use walhook::http::{Ending, ServeLimits, serve};
use walhook::private_postgres::free_port;

use crate::fixture::{BASE, Service, state};
use crate::support::{Api, DEADLINE, Receiver, TestApp, eventually, run_sql};

const URL: &str = "https://receiver.example/in";
const LONG: Period = Period::secs(3_600);

/// The API on a listener of its own.
struct Listening {
    service: Service,
    address: SocketAddr,
    _end: DropGuard,
}

impl Listening {
    async fn start(change: impl FnOnce(&mut Http)) -> Listening {
        Listening::start_with(|config, _| change(&mut config.http)).await
    }

    async fn start_with(change: impl FnOnce(&mut Config, &mut Duration)) -> Listening {
        let service = Service::start().await;
        let mut config = Config::default();
        let mut rejection_delay = Duration::ZERO;

        (config.http.header_timeout, config.http.idle_timeout) = (LONG, LONG);
        change(&mut config, &mut rejection_delay);

        let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let closed = CancellationToken::new();
        let ending = Ending {
            announced: CancellationToken::new(),
            closed: closed.clone(),
        };

        let limits = ServeLimits {
            rejection_delay,
            ..ServeLimits::new(&config.http, Duration::from_secs(3_600))
        };

        let router = router(state(&config, service.store.clone()));
        tokio::spawn(
            serve(address, "http.listen", router, limits, ending)
                .await
                .unwrap(),
        );

        Listening {
            service,
            address,
            _end: closed.drop_guard(),
        }
    }

    async fn api(&self, user: &str) -> Api {
        self.service
            .api(user)
            .await
            .at(&format!("http://{}{BASE}", self.address))
    }

    /// Opens a connection and sends `text`.
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn lock_webhooks(&self) {
        run_sql(
            &self.service.sql,
            "begin; lock table walhook.webhook in access exclusive mode",
        )
        .await;
    }
}

fn request(api: &Api, method: &str, path: &str, headers: &str) -> String {
    format!(
        "{method} {BASE}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n{headers}\r\n",
        api.token
    )
}

/// Reads until the server closes the connection.
async fn wait_for_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let end = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    // The server may also reset the connection.
    let _ = end.expect("the server closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn statements_are_cancelled_when_the_client_disconnects() {
    let it = Listening::start(|_| {}).await;
    let api = it.api("1").await;

    it.lock_webhooks().await;
    let client = it.send(&request(&api, "GET", "/webhooks", "")).await;

    it.service.wait_until_blocked(1).await;
    drop(client);

    // The lock is still held, so only a cancelled statement stops waiting for it.
    it.service.wait_until_blocked(0).await;
    run_sql(&it.service.sql, "commit").await;
    api.get("/webhooks").await.expect(200);
}

#[tokio::test]
async fn a_client_without_a_complete_head_is_disconnected() {
    let it = Listening::start(|http| http.header_timeout = Period(Duration::from_secs(2))).await;

    for part in ["", "GET /", "GET / HTTP/1.1\r\nHost: x\r\nX-Long: "] {
        let mut client = it.send(part).await;
        assert_eq!(wait_for_end(&mut client).await, "", "{part:?}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let it = Listening::start(|http| http.idle_timeout = Period(Duration::from_secs(2))).await;
    let mut client = it.send("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(wait_for_end(&mut client).await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn slow_clients_are_disconnected_for_new_ones() {
    let it = Listening::start(|http| http.max_connections = 4).await;
    let api = it.api("1").await;
    let mut slow = Vec::new();

    for part in [
        "",
        "GET /",
        "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
        "PRI * ",
    ]
    .iter()
    .cycle()
    .take(40)
    {
        slow.push(it.send(part).await);
    }

    api.get("/webhooks").await.expect(200);

    // The server has waited for the first client the longest.
    wait_for_end(&mut slow[0]).await;
}

#[tokio::test]
async fn incomplete_bodies_do_not_block_other_requests() {
    let it = Listening::start(|http| http.max_requests = 2).await;
    let api = it.api("1").await;
    let head = "Content-Type: application/json\r\nContent-Length: 1000\r\n";
    let mut slow = Vec::new();

    for _ in 0..6 {
        slow.push(
            it.send(&(request(&api, "POST", "/webhooks", head) + "{"))
                .await,
        );
    }

    api.get("/webhooks").await.expect(200);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_rejected() {
    let it = Listening::start(|http| http.max_requests = 2).await;
    let api = it.api("1").await;

    it.lock_webhooks().await;
    let get = request(&api, "GET", "/webhooks", "Connection: close\r\n");
    let mut served = [it.send(&get).await, it.send(&get).await];

    it.service.wait_until_blocked(2).await;
    let rejected = api.get("/webhooks").await.expect(503);

    assert_eq!(
        (rejected.header("retry-after"), &rejected.json()["type"]),
        (Some("1"), &json!("/problems/unavailable"))
    );
    run_sql(&it.service.sql, "commit").await;

    for client in &mut served {
        assert!(wait_for_end(client).await.starts_with("HTTP/1.1 200"));
    }
}

/// The store examines up to 50,000 entries for a count, over one of the eight connections that all
/// users share. The most responses to requests above the rate limit that wait at a time.
const WAITING: usize = 128;

#[tokio::test]
async fn some_responses_to_requests_above_the_rate_limit_wait_and_take_no_permit_meanwhile() {
    let it = Listening::start_with(|config, rejection_delay| {
        (config.limits.requests_per_second, config.limits.burst) = (1, 1);
        (config.http.max_requests, *rejection_delay) = (2, LONG.0);
    })
    .await;
    let greedy = it.api("1").await;
    let other = it.api("2").await;
    let mut requests = FuturesUnordered::new();

    for _ in 0..2 * WAITING {
        requests.push(greedy.get("/webhooks"));
    }

    // Those that do not wait. Some others are served, because sending all of them takes a while.
    let mut rejected = 0;
    while rejected < WAITING / 2 {
        rejected += usize::from(requests.next().await.unwrap().status == 429);
    }

    other.get("/webhooks").await.expect(200);
}

#[tokio::test]
async fn one_request_of_a_user_at_a_time_counts_what_a_job_would_cover() {
    let service = Service::start().await;
    let hasty = service.api("1").await;
    let other = service.api("2").await;
    let (webhook, _) = hasty.create_webhook(URL, &["delivery.failed"]).await;

    run_sql(
        &service.sql,
        "begin; lock table walhook.attempt, walhook.event in access exclusive mode",
    )
    .await;
    let body = json!({ "since": "2026-01-01T00:00:00Z", "dry_run": true });
    let mut counts: FuturesUnordered<_> = ["recover", "replay"]
        .into_iter()
        .cycle()
        .take(8)
        .map(|job| {
            let api = &hasty;
            let path = format!("/webhooks/{webhook}/{job}");
            let body = body.clone();
            async move { api.post(&path, body).await }
        })
        .collect();

    for _ in 0..7 {
        let refused = counts.next().await.unwrap().expect(429);
        assert_eq!(refused.header("retry-after"), Some("1"));
    }

    other.get("/webhooks").await.expect(200);
    run_sql(&service.sql, "commit").await;
    counts.next().await.unwrap().expect(200);
}

#[tokio::test]
async fn deliveries_continue_while_every_api_request_hangs() {
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let sql = app.store().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;

    api.create_webhook(&receiver.url("/"), &["payment.statement_ready"])
        .await;
    run_sql(
        &sql,
        "begin; lock table walhook.api_token in access exclusive mode",
    )
    .await;

    let hanging: Vec<_> = (0..40)
        .map(|_| {
            let api = api.at(&api.url);
            tokio::spawn(async move { api.get("/webhooks").await })
        })
        .collect();

    let waiting = "select count(*) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock' having count(*) >= 8";
    let watch = app.store().await;

    eventually("requests that hang", async || {
        watch.query_opt(waiting, &[]).await.unwrap()
    })
    .await;
    platform.payment(user, "ready").await;
    receiver.wait_for(1).await;
    app.wait_for_count(
        "select count(*) from walhook.attempt where outcome = 'delivered'",
        1,
    )
    .await;

    // The lock is still held, but requests time out.
    for answer in hanging {
        let answer = answer.await.unwrap().expect(503);
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }

    run_sql(&sql, "commit").await;
    api.get("/webhooks").await.expect(200);
}
