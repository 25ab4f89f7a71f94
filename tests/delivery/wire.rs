//! The requests that are sent: sizes, timestamps, signatures and addresses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Bench, Receiver, TestApp, attempt, full_listener};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use walhook::clock::SystemClock;
use walhook::config::Period;
use walhook::deliver::guard::{AddressLookup, Guard};
use walhook::deliver::{Sender, Settings};
use walhook::domain::delivery::Answer;

const READY: &str = "payment.statement_ready";
const MAX_PAYLOAD: usize = 65_536;

/// Inserts a payment whose invoice number has `characters` characters.
async fn pay(app: &TestApp, user: i64, id: i64, characters: usize) {
    let statement = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) \
                     values ($1, $2, repeat('x', $3), 10.50, 10.50, 'ready')";
    app.platform()
        .await
        .execute(statement, &[&id, &user, &(characters as i32)])
        .await;
}

#[tokio::test]
async fn a_body_of_65536_bytes_is_delivered_and_one_byte_more_is_not_sent() {
    let app = TestApp::start().await;
    let user = app.platform().await.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, secret) = api.create_webhook(&receiver.url("/"), &[READY]).await;

    // Ids of the same length: the bodies differ in the length of the invoice number only.
    pay(&app, user, 900_001, 1).await;
    let smallest = receiver.wait_for(1).await[0].body.len();
    let fitting = MAX_PAYLOAD - smallest + 1;

    pay(&app, user, 900_002, fitting).await;
    let largest = receiver.wait_for(2).await.remove(1);

    assert_eq!(largest.body.len(), MAX_PAYLOAD);
    largest.assert_sound(&secret);
    pay(&app, user, 900_003, fitting + 1).await;

    let logs = api
        .wait_for_logs(&webhook, "the third delivery's end", |logs| logs.len() == 3)
        .await;
    assert_eq!(logs[0]["outcome"], "permanently_failed");
    assert_eq!(logs[0]["error"]["kind"], "payload_too_large");
    assert_eq!(
        (&logs[0]["attempt"], &logs[0]["response_status"]),
        (&json!(1), &json!(null))
    );
    assert_eq!(receiver.requests().len(), 2, "nothing was sent");

    let webhook = api.webhook(&webhook).await;
    assert_eq!(
        (&webhook["success_count"], &webhook["failure_count"]),
        (&json!(2), &json!(0))
    );
    app.wait_for_count("select count(*) from walhook.pending", 0)
        .await;
}

#[tokio::test]
async fn a_new_secret_signs_the_very_next_event() {
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, mut secret) = api.create_webhook(&receiver.url("/"), &[READY]).await;

    for round in 1..=5 {
        platform.payment(user, "ready").await;
        receiver.wait_for(2 * round - 1).await[2 * round - 2].assert_sound(&secret);

        let answer = api
            .post(&format!("/webhooks/{webhook}/regenerate-secret"), json!({}))
            .await
            .expect(200)
            .json();
        let old = std::mem::replace(&mut secret, answer["secret"].as_str().unwrap().to_owned());

        platform.payment(user, "ready").await;
        let next = receiver.wait_for(2 * round).await.remove(2 * round - 1);
        next.assert_sound(&secret);
        assert!(!next.is_signed_with(&old));
    }
}

/// Creates a sender that resolves every name to these addresses, in this order.
fn sender(addresses: &'static [&'static str]) -> Sender {
    let lookup: AddressLookup = Arc::new(move |_, port| {
        let found = addresses
            .iter()
            .map(|ip| SocketAddr::new(ip.parse().unwrap(), port))
            .collect();
        Box::pin(async move { Ok(found) })
    });

    let mut config = walhook::config::Config::default();
    config.delivery.timeout = Period(Duration::from_secs(10));

    let networks = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap());
    let guard = Guard::new(true, networks.into()).with_lookup(lookup);
    let settings = Settings {
        guard,
        ..Settings::from_config(&config).unwrap()
    };

    Sender::new(&settings, Arc::new(SystemClock)).unwrap()
}

#[tokio::test]
async fn an_unreachable_first_address_leaves_time_for_the_second() {
    let receiver = Receiver::start().await;
    let url = receiver.url_at("receiver.example", "/in");

    let port: u16 = receiver
        .url("")
        .rsplit_once(':')
        .unwrap()
        .1
        .parse()
        .unwrap();

    let sender = sender(&["127.0.0.2", "127.0.0.1"]);

    // Nothing listens on the first.
    let refused = attempt(&sender, &url).await.unwrap();
    assert_eq!(refused.answer, Answer::Accepted { status: 200 });

    let _silent = full_listener(SocketAddr::from(([127, 0, 0, 2], port))).await;
    let sender = self::sender(&["127.0.0.2", "127.0.0.1"]);
    let unanswered = attempt(&sender, &url).await.unwrap();

    assert_eq!(unanswered.answer, Answer::Accepted { status: 200 });
    assert_eq!(receiver.requests().len(), 2);
}

/// Answers every request with 200 before it has read the body, and keeps the connection open.
fn answer_early(listener: TcpListener) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut held = Vec::new();

        while let Ok((mut stream, _)) = listener.accept().await {
            let mut first = [0; 16];
            stream.read_exact(&mut first).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await
                .unwrap();
            held.push(stream);
        }
    })
}

#[tokio::test]
async fn a_receiver_that_has_an_ipv6_address_only_is_reached() {
    let listener = TcpListener::bind("[::1]:0")
        .await
        .expect("IPv6 on loopback");
    let port = listener.local_addr().unwrap().port();
    let server = answer_early(listener);
    let sender = sender(&["::1"]);

    for host in ["[::1]", "receiver.example"] {
        let reached = attempt(&sender, &format!("http://{host}:{port}/"))
            .await
            .unwrap();
        assert_eq!(reached.answer, Answer::Accepted { status: 200 }, "{host}");
    }

    server.abort();
}

#[tokio::test]
async fn an_answer_before_the_body_was_read_counts() {
    let mut bench = Bench::new().await;

    // More than the buffers of both sockets hold, so that a part of the body stays unsent: the
    // kernel's largest send buffer, and the receive buffer below.
    let buffers = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap();
    let bytes = buffers
        .split_whitespace()
        .last()
        .unwrap()
        .parse::<usize>()
        .unwrap()
        + (1 << 20);

    bench.config.delivery.max_payload_bytes = 2 * bytes;
    let socket = TcpSocket::new_v4().unwrap();

    socket.set_recv_buffer_size(2_048).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();

    let listener = socket.listen(8).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = answer_early(listener);
    let (webhook, _) = bench.webhook(&url).await;
    let data = json!({ "text": "x".repeat(bytes) }).to_string();
    let delivery = bench.delivery_of(webhook, bench.event(&data).await).await;
    let running = bench.run();

    bench.wait_for_end(delivery).await;
    assert_eq!(
        bench.log(delivery).await,
        [(1, "delivered".to_owned(), None, Some(200))]
    );
    running.stop().await;
    server.abort();
}
