//! Receivers that send without end before the head of their response: over HTTP/1 and HTTP/2,
//! directly and through a proxy.

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::connections::{read_request, senders};
use crate::frames::{self, INTERIM, PING};
use crate::outbound::NAME;
use crate::scene::Scene;
use crate::support::{Authority, Hostile, Misdeed, TunnelProxy, attempt};

/// How often a flood repeats its bytes. All of them together are far more than a receiver may send.
const REPEATS: usize = 40_000;

/// What a receiver sends again and again instead of the head of its response.
#[derive(Clone, Copy)]
struct Flood {
    protocol: &'static str,
    /// Sent once before.
    start: &'static [u8],
    repeated: &'static [u8],
}

const FLOODS: [(&str, Flood); 5] = [
    (
        "interim responses",
        Flood {
            protocol: "http/1.1",
            start: b"",
            repeated: b"HTTP/1.1 102 Processing\r\n\r\n",
        },
    ),
    (
        "an unfinished head",
        Flood {
            protocol: "http/1.1",
            start: b"HTTP/1.1 200 OK\r\n",
            repeated: b"X-Field: some value\r\n",
        },
    ),
    (
        "an endless field",
        Flood {
            protocol: "http/1.1",
            start: b"HTTP/1.1 200 OK\r\nX-Field: ",
            repeated: b"value ",
        },
    ),
    (
        "interim responses over HTTP/2",
        Flood {
            protocol: "h2",
            start: b"",
            repeated: INTERIM,
        },
    ),
    (
        "pings",
        Flood {
            protocol: "h2",
            start: b"",
            repeated: PING,
        },
    ),
];

/// Sends the flood after a request, and waits until the other end closes the connection.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, flood: Flood, repeats: usize) {
    let is_requested = match flood.protocol {
        "h2" => {
            frames::begin(&mut stream).await && frames::next_request(&mut stream).await.is_some()
        }
        _ => read_request(&mut stream).await,
    };

    assert!(is_requested);
    let _ = stream.write_all(flood.start).await;
    let _ = stream.write_all(&flood.repeated.repeat(repeats)).await;
    let _ = stream.flush().await;
    let mut buffer = [0; 16 << 10];

    while stream.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
}

#[tokio::test]
async fn a_receiver_that_sends_too_much_before_its_response_is_cut_off() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    for (way, sender) in senders(&authority, &proxy) {
        for (name, flood) in FLOODS {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!(
                "https://{NAME}:{}/in",
                listener.local_addr().unwrap().port()
            );
            let acceptor = TlsAcceptor::from(authority.server(NAME, &[flood.protocol]));
            let receiver = tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                serve(acceptor.accept(stream).await.unwrap(), flood, REPEATS).await;
            });

            let answer = attempt(&sender, &url).await.unwrap().answer;
            let kind = answer.error().map(|kind| kind.as_str());

            assert_eq!(kind, Some("connection_reset"), "{way}, {name}: {answer:?}");
            let message = answer.message().unwrap_or_default();
            assert!(message.contains("64 KiB"), "{way}, {name}: {message}");
            receiver.await.expect("the connection is closed");
        }
    }
}

/// Receivers of new webhooks, each of which sends a large part of a head and waits.
#[tokio::test]
async fn unfinished_heads_are_not_held_in_memory() {
    const WEBHOOKS: usize = 150;
    const HEAD: usize = 400 << 10;

    let mut scene = Scene::begin(&[("limits.webhooks_per_user", "200")]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());

    for _ in 0..WEBHOOKS {
        scene
            .api
            .create_webhook(&url, &["payment.statement_ready"])
            .await;
    }

    scene.payment().await;
    scene.receiver.wait_for(1).await;

    let before = scene.app.sidecar().peak_memory_kib();
    let mut receivers = JoinSet::new();

    for _ in 0..WEBHOOKS {
        let (stream, _) = listener.accept().await.unwrap();
        let flood = Flood {
            protocol: "http/1.1",
            start: b"HTTP/1.1 200 OK\r\nX-Field: ",
            repeated: &[b'x'; HEAD],
        };

        receivers.spawn(serve(stream, flood, 1));
    }

    receivers.join_all().await;
    let grown = scene.app.sidecar().peak_memory_kib() - before;
    assert!(
        grown < (WEBHOOKS * HEAD / 2) as u64 >> 10,
        "{grown} KiB more"
    );
}

/// The delivery log says what happened, and deliveries of the same process to others go on.
#[tokio::test]
async fn other_deliveries_go_on_beside_a_receiver_that_sends_without_end() {
    let scene = Scene::begin(&[]).await;
    let hostile = Hostile::start(Misdeed::Interim).await;
    let (webhook, _) = scene
        .api
        .create_webhook(&hostile.url("http"), &["payment.statement_ready"])
        .await;

    for count in 1..=5 {
        scene.payment().await;
        scene.receiver.wait_for(count).await;
    }

    let logs = scene
        .api
        .wait_for_logs(&webhook, "five attempts", |logs| logs.len() >= 5)
        .await;
    for entry in logs {
        assert_eq!(entry["error"]["kind"], json!("connection_reset"), "{entry}");
        assert!(
            entry["error"]["message"]
                .as_str()
                .unwrap()
                .contains("interim responses"),
            "{entry}"
        );
    }
}
