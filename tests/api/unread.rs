//! Clients that do not read their responses, or do not send their bodies, seen from outside: they
//! take little memory and delay nobody else.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::feed_streams::wait_for_streams;
use crate::support::{Api, TestApp, eventually};

const URL: &str = "https://receiver.example/in";
/// How much the process may grow, whatever clients do.
const MAX_GROWTH_KIB: u64 = 64 << 10;
/// A small buffer, so that the kernel does not take the response on behalf of a client.
const READ_BUFFER: u32 = 4 << 10;
const CLIENTS: usize = 300;

async fn start() -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set("limits.requests_per_second", "0");
    app.setup().await;
    app.run_with(&["--roles", "api"]).await;
    app
}

/// Sends `text` over a new connection, from which nothing is read.
async fn send(address: &str, text: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(READ_BUFFER).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();

    // The server may have closed the connection before everything was sent.
    let _ = stream.write_all(text.as_bytes()).await;
    stream
}

async fn flood(count: usize, address: &str, text: &str) -> Vec<TcpStream> {
    join_all((0..count).map(|_| send(address, text))).await
}

fn address(api: &Api) -> String {
    let url = url::Url::parse(&api.url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
}

fn request(api: &Api, method: &str, path: &str, headers: &str) -> String {
    format!(
        "{method} /api/public{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n{headers}\r\n",
        api.token
    )
}

#[tokio::test]
async fn a_tenant_who_reads_no_responses_takes_little_memory_and_locks_nobody_out() {
    let mut app = start().await;
    let hostile = app.api("1").await;
    let other = app.api("2").await;
    let metadata: serde_json::Map<String, Value> = (0..20)
        .map(|number| (format!("key{number}"), "\u{1F3B5}".repeat(500).into()))
        .collect();

    for _ in 0..10 {
        let webhook =
            json!({ "name": "x", "url": URL, "events": ["delivery.failed"], "metadata": metadata });
        hostile.post("/webhooks", webhook).await.expect(201);
    }

    let list = hostile.get("/webhooks").await.expect(200);
    assert!(list.body.len() > 400_000, "{} bytes", list.body.len());

    let before = app.sidecar().peak_memory_kib();

    let get = request(&hostile, "GET", "/webhooks", "");
    let clients = flood(CLIENTS, &address(&hostile), &get).await;

    for _ in 0..20 {
        // Before the hostile requests are authenticated, they delay others.
        let served = async || (other.get("/webhooks").await.status == 200).then_some(());
        eventually("a response to another tenant", served).await;
    }

    let grown = app.sidecar().peak_memory_kib().saturating_sub(before);
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB");
    drop(clients);
    hostile.get("/webhooks").await.expect(200);
}

#[tokio::test]
async fn unread_pages_and_documents_that_anybody_may_get_take_little_memory() {
    let mut app = start().await;
    let api = app.api("1").await;
    for path in ["/ui/login", "/api/public/openapi.json", "/api/public/docs"] {
        let before = app.sidecar().peak_memory_kib();
        let get = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let clients = flood(CLIENTS / 3, &address(&api), &get.repeat(40)).await;

        for _ in 0..20 {
            api.get("/webhooks").await.expect(200);
        }

        let grown = app.sidecar().peak_memory_kib().saturating_sub(before);
        assert!(grown < MAX_GROWTH_KIB, "{path}: {grown} KiB");
        drop(clients);
    }
}

#[tokio::test]
async fn bodies_that_do_not_arrive_delay_nobody() {
    let mut app = start().await;
    let hostile = app.api("1").await;
    let other = app.api("2").await;
    let before = app.sidecar().peak_memory_kib();
    let form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 200000\r\n";
    let anonymous = format!("POST /ui/login HTTP/1.1\r\nHost: x\r\n{form}\r\ntoken=");
    let json = "Content-Type: application/json\r\nContent-Length: 60000\r\n";
    let authenticated = request(&hostile, "POST", "/webhooks", json) + "{";
    let mut clients = Vec::new();

    for (text, bytes) in [
        (&anonymous, 0),
        (&anonymous, 100_000),
        (&authenticated, 0),
        (&authenticated, 50_000),
    ] {
        clients.extend(
            flood(
                CLIENTS,
                &address(&other),
                &format!("{text}{}", "x".repeat(bytes)),
            )
            .await,
        );
        for _ in 0..20 {
            other.get("/webhooks").await.expect(200);
        }
        // A large one, which waits for those that have not arrived.
        let large =
            json!({ "name": "x".repeat(30_000), "url": URL, "events": ["delivery.failed"] });
        let rejected =
            async || (other.post("/webhooks", large.clone()).await.status == 422).then_some(());
        eventually("a response to a large body", rejected).await;
    }

    let grown = app.sidecar().peak_memory_kib().saturating_sub(before);
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB");
    drop(clients);
    hostile.get("/webhooks").await.expect(200);
}

#[tokio::test]
async fn a_client_that_does_not_read_a_stream_of_events_is_disconnected() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let stream = send(
        &address(&api),
        &request(&api, "GET", "/events", "Accept: text/event-stream\r\n"),
    )
    .await;

    wait_for_streams(app.sidecar(), 1).await;
    let pay = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         select n, $1, repeat('x', 200), 1, 1, 'ready' from generate_series(1, 2000) as n";

    platform.execute(pay, &[&user]).await;
    app.wait_for_events(2_000).await;
    wait_for_streams(app.sidecar(), 0).await;
    drop(stream);
}

#[tokio::test]
async fn a_client_that_does_not_read_an_export_is_disconnected() {
    let mut app = start().await;
    let hostile = app.api("1").await;
    let other = app.api("2").await;
    let (webhook, _) = hostile.create_webhook(URL, &["delivery.failed"]).await;

    // Some 25 MB as a file.
    let fill = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - n), 12, '0') || '70008' || substr(gen_random_uuid()::text, 21))::uuid,
                    $1::text::uuid, gen_random_uuid(), gen_random_uuid(), 'delivery.failed', 1, 1, now(), 'delivered'
                from generate_series(1, 50000) as n";
    app.store().await.execute(fill, &[&webhook]).await.unwrap();

    let before = app.sidecar().peak_memory_kib();
    let export = request(&hostile, "GET", "/logs?format=ndjson", "");
    let mut unread = send(&address(&hostile), &export).await;
    let mut status = [0; 12];
    unread.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");

    // A user has one export at a time.
    let small = "/logs?format=ndjson&outcome=failed";
    hostile.get(small).await.expect(429);
    other.get(small).await.expect(200);

    let ended = async || (hostile.get(small).await.status == 200).then_some(());
    eventually("the client is disconnected", ended).await;
    let grown = app.sidecar().peak_memory_kib().saturating_sub(before);
    assert!(grown < MAX_GROWTH_KIB / 4, "{grown} KiB");
    drop(unread);
}
