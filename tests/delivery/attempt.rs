//! Single attempts against receivers that misbehave.

use std::time::Duration;

use crate::support::{Answer, Bench, Receiver, attempt, full_listener};

use walhook::config::Period;
use walhook::deliver::Sender;
use walhook::domain::delivery as domain;

/// Every way in which a request to a receiver can end.
#[tokio::test]
async fn failures_are_reported_by_kind() {
    let mut bench = Bench::new().await;
    let mut receiver = Receiver::start().await;

    // Two timeouts: one that no answer of a slow machine exceeds, and one that ends soon what never
    // answers.
    let patient = bench.sender();
    bench.config.delivery.timeout = Period(Duration::from_secs(2));

    let hasty = bench.sender();
    let probe = async |sender: &Sender, url: String| {
        let attempt = attempt(sender, &url).await.unwrap();
        (
            attempt.answer.error().map(|kind| kind.as_str()),
            attempt.answer.status(),
            attempt.sent.unwrap().excerpt,
        )
    };

    receiver.answer_in_turn(&[
        Answer::Full(200, Vec::new(), vec![b'x'; 200_000]),
        Answer::Status(404),
        Answer::Hang,
        Answer::Reset,
    ]);

    let url = receiver.url("/");
    assert_eq!(
        probe(&patient, url.clone()).await,
        (None, Some(200), vec![b'x'; 4_096])
    );
    assert_eq!(
        probe(&patient, url.clone()).await,
        (Some("http_status"), Some(404), Vec::new())
    );
    assert_eq!(
        probe(&hasty, url.clone()).await,
        (Some("response_timeout"), None, Vec::new())
    );
    assert_eq!(
        probe(&patient, url.clone()).await,
        (Some("connection_reset"), None, Vec::new())
    );
    assert_eq!(
        probe(&patient, url.replace("http:", "https:")).await.0,
        Some("tls")
    );
    receiver.close().await;
    assert_eq!(probe(&patient, url).await.0, Some("connect_refused"));
    assert_eq!(
        probe(&patient, "http://no-such-host.invalid/".into())
            .await
            .0,
        Some("dns")
    );

    for blocked in [
        "http://10.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://0.0.0.0/",
    ] {
        assert_eq!(
            probe(&patient, blocked.into()).await.0,
            Some("blocked_address"),
            "{blocked}"
        );
    }

    let (listener, _held) = full_listener("127.0.0.1:0".parse().unwrap()).await;
    let address = listener.local_addr().unwrap();
    assert_eq!(
        probe(&hasty, format!("http://{address}/")).await.0,
        Some("connect_timeout")
    );
}

#[tokio::test]
async fn a_2xx_in_time_is_delivered_even_if_its_body_never_ends_or_breaks_off() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut bench = Bench::new().await;
    bench.config.delivery.timeout = Period(Duration::from_secs(2));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());

    let server = tokio::spawn(async move {
        let mut held = Vec::new();

        for keep in [true, false] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4_096]).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
                .await
                .unwrap();

            if keep {
                held.push(stream);
            }
        }

        std::future::pending::<()>().await;
    });

    let sender = bench.sender();
    let endless = attempt(&sender, &url).await.unwrap();

    assert_eq!(endless.answer, domain::Answer::Accepted { status: 200 });
    assert_eq!(endless.sent.unwrap().excerpt, b"some");

    let broken = attempt(&sender, &url).await.unwrap();
    assert_eq!(broken.answer, domain::Answer::Accepted { status: 200 });
    server.abort();
}

#[tokio::test]
async fn parts_of_opening_a_connection_are_timed_once_per_connection() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let sender = bench.sender();
    let timing = async |url: &str| attempt(&sender, url).await.unwrap().sent.unwrap().timing;
    let url = receiver.url("/");

    let opened = timing(&url).await;
    assert!(
        opened.connect.is_some() && opened.wait.is_some(),
        "{opened:?}"
    );
    assert_eq!((opened.dns, opened.tls), (None, None));

    let reused = timing(&url).await;
    assert_eq!((reused.dns, reused.connect, reused.tls), (None, None, None));
    assert!(reused.wait.is_some());

    let unknown = timing("http://no-such-host.invalid/").await;
    assert!(unknown.dns.is_some(), "{unknown:?}");
    assert_eq!((unknown.connect, unknown.wait), (None, None));
}
