//! Requests to receivers: TLS, HTTP/2, the proxy, and receivers that misbehave.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{
    Answer, Authority, Bench, Hostile, Misdeed, Receiver, TunnelProxy, attempt, eventually,
    full_listener,
};
use axum::http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use walhook::clock::SystemClock;
use walhook::config::{Config, Period};
use walhook::deliver::guard::{AddressLookup, Guard};
use walhook::deliver::{Sender, Settings};
use walhook::domain::delivery::{Answer as Outcome, Attempt};

/// The name in every certificate. Resolves to loopback.
pub const NAME: &str = "receiver.example";

pub fn config() -> Config {
    let mut config = Config::default();
    config.delivery.allow_http = true;
    config.delivery.timeout = Period(Duration::from_secs(20));
    config
}

/// Creates a sender for which names that start with `inside` resolve to a private address, and
/// others to loopback, which is allowed. Lookups of names that start with `slow` take a moment.
pub fn sender(config: &Config) -> Sender {
    let lookup: AddressLookup = Arc::new(|name, port| {
        let ip: IpAddr = if name.starts_with("inside") {
            "10.0.0.1"
        } else {
            "127.0.0.1"
        }
        .parse()
        .unwrap();

        let delay = Duration::from_millis(if name.starts_with("slow") { 100 } else { 0 });
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            Ok(vec![SocketAddr::new(ip, port)])
        })
    });

    let guard = Guard::new(
        config.delivery.allow_http,
        vec!["127.0.0.0/8".parse().unwrap()],
    )
    .with_lookup(lookup);
    let settings = Settings {
        guard,
        ..Settings::from_config(config).unwrap()
    };

    Sender::new(&settings, Arc::new(SystemClock)).unwrap()
}

fn kind(attempt: &Attempt) -> Option<&'static str> {
    attempt.answer.error().map(|kind| kind.as_str())
}

async fn kind_at(sender: &Sender, url: &str) -> Option<&'static str> {
    kind(&attempt(sender, url).await.unwrap())
}

#[tokio::test]
async fn tls_is_verified_with_the_extra_authority_and_http_2_is_used_if_offered() {
    let authority = Authority::new();
    let file = authority.file();
    let mut config = config();

    config.delivery.extra_ca_file = Some(file.path().to_owned());
    let trusting = sender(&config);
    let other = sender(&self::config());

    for (offered, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let receiver = Receiver::start_tls(authority.server(NAME, offered)).await;
        let url = receiver.url_at(NAME, "/in?a=b");
        for _ in 0..2 {
            assert_eq!(
                attempt(&trusting, &url).await.unwrap().answer,
                Outcome::Accepted { status: 200 },
                "{offered:?}"
            );
        }
        let requests = receiver.requests();
        assert_eq!(
            (requests[1].version, requests[1].path.as_str()),
            (version, "/in?a=b"),
            "{offered:?}"
        );
        assert_eq!(
            kind_at(&other, &url).await,
            Some("tls"),
            "without the extra authority it is not trusted"
        );
    }

    let wrong_name = Receiver::start_tls(authority.server("other.example", &[])).await;
    assert_eq!(
        kind_at(&trusting, &wrong_name.url_at(NAME, "/")).await,
        Some("tls")
    );

    let expired = Receiver::start_tls(authority.expired(NAME)).await;
    assert_eq!(
        kind_at(&trusting, &expired.url_at(NAME, "/")).await,
        Some("tls")
    );

    let self_signed = Receiver::start_tls(Authority::new().server(NAME, &[])).await;
    assert_eq!(
        kind_at(&trusting, &self_signed.url_at(NAME, "/")).await,
        Some("tls")
    );

    let plain = Receiver::start().await;
    assert_eq!(
        kind_at(
            &trusting,
            &plain.url_at(NAME, "/").replace("http:", "https:")
        )
        .await,
        Some("tls")
    );

    let none = [&wrong_name, &expired, &self_signed, &plain]
        .iter()
        .all(|receiver| receiver.requests().is_empty());
    assert!(none, "nothing is sent to an unverified receiver");
}

#[tokio::test]
async fn a_proxy_gets_checked_addresses_and_no_names() {
    let authority = Authority::new();
    let file = authority.file();
    let proxy = TunnelProxy::start().await;
    let mut config = config();

    config.delivery.extra_ca_file = Some(file.path().to_owned());
    config.delivery.proxy = Some(format!("http://walhook:p%40ss@{}", proxy.address).into());

    let sender = sender(&config);

    let receiver = Receiver::start_tls(authority.server(NAME, &["h2"])).await;
    let sent = attempt(&sender, &receiver.url_at(NAME, "/in"))
        .await
        .unwrap();

    assert_eq!(sent.answer, Outcome::Accepted { status: 200 });
    assert_eq!(receiver.requests()[0].version, Version::HTTP_2);

    let address = receiver.url_at("127.0.0.1", "").replace("https://", "");
    let [connect] = proxy.take_requests().try_into().unwrap();

    assert_eq!(connect[0], format!("CONNECT {address} HTTP/1.1"));
    assert!(
        connect.contains(&"Proxy-Authorization: Basic d2FsaG9vazpwQHNz".to_owned()),
        "{connect:?}"
    );
    assert!(!connect.concat().contains(NAME), "{connect:?}");

    // Plain http uses a tunnel too: the receiver gets its own name, the proxy does not, and the
    // password does not leak.
    let plain = Receiver::start().await;
    attempt(&sender, &plain.url_at(NAME, "/in")).await.unwrap();

    let [connect] = proxy.take_requests().try_into().unwrap();
    assert_eq!(
        connect[0],
        format!("CONNECT {} HTTP/1.1", plain.url("").replace("http://", ""))
    );

    let request = &plain.requests()[0];
    assert_eq!(
        request.header("host"),
        plain.url_at(NAME, "").replace("http://", "")
    );

    assert_eq!(
        (
            request.path.as_str(),
            request.headers.get("proxy-authorization")
        ),
        ("/in", None)
    );

    for url in [
        "https://inside.example/",
        "http://inside.example/",
        "https://10.0.0.1/",
        "https://[::1]/",
    ] {
        assert_eq!(
            kind_at(&sender, url).await,
            Some("blocked_address"),
            "{url}"
        );
    }

    assert!(
        proxy.take_requests().is_empty(),
        "the proxy gets no request"
    );
    let wrong_name = Receiver::start_tls(authority.server("other.example", &[])).await;

    assert_eq!(
        kind_at(&sender, &wrong_name.url_at(NAME, "/")).await,
        Some("tls"),
        "the certificate checked is the receiver's"
    );
    let closed = walhook::private_postgres::free_port().unwrap();

    assert_eq!(
        kind_at(&sender, &format!("https://{NAME}:{closed}/")).await,
        Some("connect_refused")
    );
    proxy.refuse(407);

    let fault = attempt(&sender, &wrong_name.url_at(NAME, "/"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        fault.contains("delivery.proxy")
            && fault.contains("authorization")
            && !fault.contains("ss@"),
        "{fault}"
    );
}

#[tokio::test]
async fn while_the_proxy_is_down_no_attempt_is_used_up() {
    let mut bench = Bench::new().await;
    let address = SocketAddr::from((
        [127, 0, 0, 1],
        walhook::private_postgres::free_port().unwrap(),
    ));

    bench.config.delivery.proxy = Some(format!("http://{address}").into());
    let receiver = Receiver::start().await;
    let (webhook, _) = bench.webhook(&receiver.url("/")).await;
    let delivery = bench.delivery(webhook).await;
    let running = bench.run();

    // A try that did not reach the proxy releases its budget after a while, and the lease runs out.
    let free = || running.handoff.budget.counters().free();
    eventually("a first try", async || {
        (free() < walhook::handoff::CAPACITY).then_some(())
    })
    .await;
    eventually("its budget to be released", async || {
        (free() == walhook::handoff::CAPACITY).then_some(())
    })
    .await;
    assert!(bench.is_pending(delivery).await && bench.log(delivery).await.is_empty());
    assert_eq!(bench.counters(webhook).await, (0, 0, 0, false, false));

    let proxy = TunnelProxy::start_at(address).await;
    bench
        .client
        .execute("update walhook.delivery set due_at = now()", &[])
        .await
        .unwrap();
    bench.wait_for_end(delivery).await;
    running.stop().await;
    assert_eq!(
        bench.log(delivery).await,
        [(1, "delivered".to_owned(), None, Some(200))]
    );
    assert_eq!(proxy.take_requests().len(), 1);
}

#[tokio::test]
async fn an_attempt_is_not_used_up_if_the_proxys_host_does_not_answer() {
    let (listener, _held) = full_listener("127.0.0.1:0".parse().unwrap()).await;
    let address = listener.local_addr().unwrap();
    let mut config = config();

    config.delivery.timeout = Period(Duration::from_secs(2));
    config.delivery.proxy = Some(format!("http://{address}").into());

    let fault = attempt(&sender(&config), "http://slow.example/")
        .await
        .unwrap_err()
        .to_string();
    assert!(fault.contains("delivery.proxy"), "{fault}");
}

#[tokio::test]
async fn misbehaving_receivers_are_cut_off_at_the_deadline_and_reported_by_kind() {
    let mut config = config();
    let patient = sender(&config);

    config.delivery.timeout = Period(Duration::from_secs(2));
    let hasty = sender(&config);
    let expected = [
        (Misdeed::Reset, "http", Some("connection_reset"), None),
        (Misdeed::Greeting, "http", Some("connection_reset"), None),
        (Misdeed::Greeting, "https", Some("tls"), None),
        (Misdeed::Silence, "http", Some("response_timeout"), None),
        (Misdeed::Silence, "https", Some("connect_timeout"), None),
        (Misdeed::Trickle, "http", None, Some(200)),
        (Misdeed::Gigabytes, "http", None, Some(200)),
        (Misdeed::EndlessHead, "http", Some("connection_reset"), None),
        (Misdeed::Interim, "http", Some("connection_reset"), None),
    ];
    for (misdeed, scheme, error, status) in expected {
        let hostile = Hostile::start(misdeed).await;
        let waits = matches!(misdeed, Misdeed::Silence | Misdeed::Trickle);
        let attempt = attempt(if waits { &hasty } else { &patient }, &hostile.url(scheme))
            .await
            .unwrap();

        assert_eq!(
            (kind(&attempt), attempt.answer.status()),
            (error, status),
            "{misdeed:?} {:?}",
            attempt.answer
        );

        let sent = attempt.sent.unwrap();
        assert!(sent.excerpt.len() <= 4_096, "{misdeed:?}");

        if misdeed == Misdeed::Gigabytes {
            assert_eq!(sent.excerpt, [b'x'; 4_096]);
            let taken = hostile.sent.load(Ordering::Relaxed);
            assert!(
                taken < 64 << 20,
                "the connection is closed before the end of the body: {taken}"
            );
        }
    }
}

#[tokio::test]
async fn gigabytes_over_http_2_are_cut_off_too() {
    let authority = Authority::new();
    let file = authority.file();
    let mut config = config();

    config.delivery.extra_ca_file = Some(file.path().to_owned());
    let sender = sender(&config);
    let receiver = Receiver::start_tls(authority.server(NAME, &["h2"])).await;

    receiver.answer(|_| Answer::Full(500, Vec::new(), vec![b'y'; 64 << 20]));
    let attempt = attempt(&sender, &receiver.url_at(NAME, "/")).await.unwrap();
    assert_eq!(
        (kind(&attempt), attempt.answer.status()),
        (Some("http_status"), Some(500))
    );
    assert_eq!(attempt.sent.unwrap().excerpt, [b'y'; 4_096]);
}

/// Serves HTTP/2 with a window of 16 bytes, less than any body. Answers each request with 200
/// before it has read the body. Returns its bodies, which are never read.
fn answer_early(listener: TcpListener, acceptor: TlsAcceptor) -> Arc<Mutex<Vec<Incoming>>> {
    let unread = Arc::<Mutex<Vec<Incoming>>>::default();
    let kept = unread.clone();

    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream = TokioIo::new(acceptor.accept(stream).await.unwrap());
            let kept = kept.clone();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                kept.lock()
                    .expect("nobody panics with this lock")
                    .push(request.into_body());
                async { Ok::<_, Infallible>(Response::new(String::from("ok"))) }
            });

            tokio::spawn(async move {
                let mut server = auto::Builder::new(TokioExecutor::new());
                server.http2().initial_stream_window_size(16);
                let _ = server.serve_connection(stream, service).await;
            });
        }
    });

    unread
}

#[tokio::test]
async fn an_answer_over_http_2_before_the_body_was_read_counts() {
    let authority = Authority::new();
    let file = authority.file();
    let mut config = config();

    config.delivery.extra_ca_file = Some(file.path().to_owned());
    let sender = sender(&config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{NAME}:{}/", listener.local_addr().unwrap().port());
    let unread = answer_early(listener, TlsAcceptor::from(authority.server(NAME, &["h2"])));

    // The first request may be sent before the window is known. The second one is not sent whole.
    for number in 1..=2 {
        let early = attempt(&sender, &url).await.unwrap();
        assert_eq!(early.answer, Outcome::Accepted { status: 200 }, "{number}");
        assert_eq!(early.sent.unwrap().excerpt, b"ok", "{number}");
    }

    assert_eq!(unread.lock().unwrap().len(), 2);
}
