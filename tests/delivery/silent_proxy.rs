//! A proxy that accepts connections and does not answer: whose fault that is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Bench, attempt};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};
use walhook::config::Period;
use walhook::deliver::Sender;

/// A port for which the proxy answers 502. It keeps all others waiting.
const ANSWERED: &str = ":9";

/// Starts a proxy. It notifies of each request that it keeps waiting.
async fn start() -> (SocketAddr, Arc<Notify>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let waits = Arc::new(Notify::new());
    let notify = waits.clone();

    tokio::spawn(async move {
        let held = Arc::new(Mutex::new(Vec::new()));

        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, notify.clone(), held.clone()));
        }
    });

    (address, waits)
}

async fn serve(stream: TcpStream, waits: Arc<Notify>, held: Arc<Mutex<Vec<BufReader<TcpStream>>>>) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head).await.unwrap();
    }

    if head.contains(&format!("{ANSWERED} ")) {
        stream
            .write_all(b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        return;
    }

    held.lock().await.push(stream);
    waits.notify_one();
}

async fn bench() -> (Bench, Arc<Notify>) {
    let mut bench = Bench::new().await;
    let (address, waits) = start().await;

    bench.config.delivery.timeout = Period(Duration::from_secs(5));
    bench.config.delivery.proxy = Some(format!("http://{address}").into());
    (bench, waits)
}

fn kind(sent: &walhook::domain::delivery::Attempt) -> Option<&'static str> {
    sent.answer.error().map(|kind| kind.as_str())
}

#[tokio::test]
async fn no_attempt_is_used_up_if_the_proxy_answers_no_request_for_a_tunnel() {
    let (bench, _) = bench().await;
    let fault = attempt(&bench.sender(), "http://127.0.0.1:7/")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        fault.contains("delivery.proxy") && fault.contains("CONNECT"),
        "{fault}"
    );
}

#[tokio::test]
async fn the_receiver_did_not_answer_if_the_proxy_answers_other_requests_for_tunnels() {
    let (bench, waits) = bench().await;
    let sender: Sender = bench.sender();
    let silent = tokio::spawn({
        let sender = sender.clone();
        async move { attempt(&sender, "http://127.0.0.1:7/").await }
    });

    waits.notified().await;
    let refused = attempt(&sender, &format!("http://127.0.0.1{ANSWERED}/"))
        .await
        .unwrap();
    assert_eq!(kind(&refused), Some("connect_refused"));
    assert_eq!(
        kind(&silent.await.unwrap().unwrap()),
        Some("connect_timeout")
    );
}
