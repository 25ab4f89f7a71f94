//! Receivers that refuse a request over HTTP/2, or close its connection, before they process it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use walhook::domain::delivery::Answer as Outcome;

use crate::connections::senders;
use crate::frames;
use crate::outbound::NAME;
use crate::support::{Authority, TunnelProxy, attempt};

const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// How a receiver declines a request.
#[derive(Clone, Copy, Debug)]
enum Decline {
    /// It resets the stream.
    Reset(u32),
    /// It does not process streams after the last one that it has answered, and closes the
    /// connection or keeps it.
    GoAway { reason: u32, closes: bool },
    /// It closes the connection.
    Close,
}

const ALL: [Decline; 6] = [
    Decline::Reset(REFUSED_STREAM),
    Decline::Reset(NO_ERROR),
    Decline::GoAway {
        reason: NO_ERROR,
        closes: true,
    },
    Decline::GoAway {
        reason: NO_ERROR,
        closes: false,
    },
    Decline::GoAway {
        reason: ENHANCE_YOUR_CALM,
        closes: true,
    },
    Decline::Close,
];

/// A receiver that answers `answers` requests on each connection, and declines the others.
struct Declining {
    url: String,
    connections: Arc<AtomicUsize>,
}

impl Declining {
    async fn start(
        authority: &Authority,
        decline: Decline,
        answers: &'static [usize],
    ) -> Declining {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://{NAME}:{}/in",
            listener.local_addr().unwrap().port()
        );
        let acceptor = TlsAcceptor::from(authority.server(NAME, &["h2"]));
        let connections = Arc::<AtomicUsize>::default();
        let opened = connections.clone();

        tokio::spawn(async move {
            for count in answers {
                let (stream, _) = listener.accept().await.unwrap();
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(acceptor.clone(), stream, decline, *count));
            }
        });

        Declining { url, connections }
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, decline: Decline, answers: usize) {
    let mut stream = acceptor.accept(stream).await.unwrap();
    assert!(frames::begin(&mut stream).await);

    let mut last = 0;

    for _ in 0..answers {
        let Some(request) = frames::next_request(&mut stream).await else {
            return;
        };

        last = request;
        stream.write_all(&frames::ok(request)).await.unwrap();
        stream.flush().await.unwrap();
    }

    let Some(request) = frames::next_request(&mut stream).await else {
        return;
    };

    let (refusal, closes) = match decline {
        Decline::Reset(reason) => (frames::reset(request, reason), false),
        Decline::GoAway { reason, closes } => (frames::go_away(last, reason), closes),
        Decline::Close => (Vec::new(), true),
    };

    stream.write_all(&refusal).await.unwrap();
    stream.flush().await.unwrap();

    if closes {
        stream.shutdown().await.unwrap();
    }

    // Until the other end closes the connection.
    while frames::next_request(&mut stream).await.is_some() {}
}

#[tokio::test]
async fn a_request_that_is_not_processed_over_http_2_is_sent_again() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    for (way, sender) in senders(&authority, &proxy) {
        for decline in ALL {
            let receiver = Declining::start(&authority, decline, &[1, 1]).await;

            for number in 1..=2 {
                let answer = attempt(&sender, &receiver.url).await.unwrap().answer;
                assert_eq!(
                    answer,
                    Outcome::Accepted { status: 200 },
                    "{way}, {decline:?}, {number}"
                );
            }

            assert_eq!(
                receiver.connections.load(Ordering::Relaxed),
                2,
                "{way}, {decline:?}: on a new connection"
            );
        }
    }
}

#[tokio::test]
async fn a_request_that_is_declined_twice_fails_with_a_plain_message() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    let [(_, sender), _] = senders(&authority, &proxy);

    let messages = [
        "the receiver refused the request on its HTTP/2 stream (REFUSED_STREAM)",
        "the receiver refused the request on its HTTP/2 stream (NO_ERROR)",
        "the receiver closed the HTTP/2 connection without processing the request (NO_ERROR)",
        "the receiver closed the HTTP/2 connection without processing the request (NO_ERROR)",
        "the receiver closed the HTTP/2 connection without processing the request (ENHANCE_YOUR_CALM)",
        "the receiver closed the connection before it answered",
    ];
    for (decline, message) in ALL.into_iter().zip(messages) {
        let receiver = Declining::start(&authority, decline, &[0, 0]).await;
        let answer = attempt(&sender, &receiver.url).await.unwrap().answer;
        assert_eq!(
            answer.error().map(|kind| kind.as_str()),
            Some("connection_reset"),
            "{decline:?}"
        );
        assert_eq!(answer.message(), Some(message), "{decline:?}");
    }
}
