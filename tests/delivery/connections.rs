//! Connections to receivers: which are reused, and what happens when one was closed or none can be
//! opened.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Notify, watch};
use tokio_rustls::TlsAcceptor;
use walhook::deliver::Sender;
use walhook::domain::delivery::Answer as Outcome;

use crate::outbound::{NAME, config, sender};
use crate::support::{
    Answer, Authority, Bench, Platform, Receiver, TestApp, TunnelProxy, attempt, eventually,
};

/// A receiver that answers the first `answers[n]` requests on its connection `n`, and closes the
/// connection after reading one more. Counts requests and connections.
struct Closing {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Closing {
    async fn start(answers: &'static [usize]) -> Closing {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<AtomicUsize>::default();
        let connections = Arc::<AtomicUsize>::default();
        let seen = requests.clone();
        let opened = connections.clone();

        tokio::spawn(async move {
            for count in answers {
                let (stream, _) = listener.accept().await.unwrap();
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, *count, seen.clone()));
            }
        });

        Closing {
            address,
            requests,
            connections,
        }
    }

    fn url(&self) -> String {
        format!("http://{}/in", self.address)
    }

    fn seen(&self) -> (usize, usize) {
        (
            self.requests.load(Ordering::Relaxed),
            self.connections.load(Ordering::Relaxed),
        )
    }
}

async fn serve(mut stream: TcpStream, answers: usize, requests: Arc<AtomicUsize>) {
    for number in 0..=answers {
        if !read_request(&mut stream).await {
            return;
        }

        requests.fetch_add(1, Ordering::Relaxed);

        if number < answers {
            accept(&mut stream).await;
        }
    }
}

/// Reads one HTTP/1.1 request. Returns false if the connection ends.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut request = Vec::new();
    // Only the body ends like this.
    while !request.ends_with(b"}}") {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return false;
        }
    }

    true
}

pub async fn accept(stream: &mut (impl AsyncWrite + Unpin)) {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    stream.flush().await.unwrap();
}

const DELIVERED: Outcome = Outcome::Accepted { status: 200 };

#[tokio::test]
async fn an_idle_connection_that_the_receiver_closes_uses_up_no_attempt() {
    let sender = Bench::new().await.sender();
    let receiver = Closing::start(&[1, 1, 1]).await;

    for number in 1..=3 {
        assert_eq!(
            attempt(&sender, &receiver.url()).await.unwrap().answer,
            DELIVERED,
            "{number}"
        );
    }

    assert_eq!(
        receiver.seen(),
        (4, 3),
        "the second request was sent again, on a new connection that is not kept"
    );
}

#[tokio::test]
async fn a_new_connection_that_the_receiver_closes_is_a_failure() {
    let sender = Bench::new().await.sender();
    let receiver = Closing::start(&[0, 1, 0, 0]).await;

    let kind = async || {
        attempt(&sender, &receiver.url())
            .await
            .unwrap()
            .answer
            .error()
            .map(|kind| kind.as_str())
    };

    assert_eq!(kind().await, Some("connection_reset"));
    assert_eq!(receiver.seen(), (1, 1), "nothing is sent twice");
    assert_eq!(kind().await, None);
    assert_eq!(kind().await, Some("connection_reset"));
    assert_eq!(receiver.seen(), (4, 3), "sent again at most once");
}

/// Answers the first request on each connection, and closes the connection after reading another.
/// The first `idle` requests are answered together, so that they leave as many idle connections
/// behind.
async fn answer_once_per_connection(
    listener: TcpListener,
    idle: usize,
    requests: Arc<AtomicUsize>,
) {
    let all_arrived = Arc::new(Barrier::new(idle));

    for number in 0.. {
        let (mut stream, _) = listener.accept().await.unwrap();
        let all_arrived = all_arrived.clone();
        let requests = requests.clone();

        tokio::spawn(async move {
            if !read_request(&mut stream).await {
                return;
            }

            requests.fetch_add(1, Ordering::Relaxed);

            if number < idle {
                all_arrived.wait().await;
            }

            accept(&mut stream).await;

            if read_request(&mut stream).await {
                requests.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

#[tokio::test]
async fn a_request_is_sent_again_on_a_new_connection_although_others_are_idle() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;

    for idle in [2, 5] {
        for (way, sender) in senders(&authority, &proxy) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{NAME}:{}/in", listener.local_addr().unwrap().port());
            let requests = Arc::<AtomicUsize>::default();

            tokio::spawn(answer_once_per_connection(listener, idle, requests.clone()));

            for opening in join_all((0..idle).map(|_| attempt(&sender, &url))).await {
                assert_eq!(opening.unwrap().answer, DELIVERED, "{way}, {idle} idle");
            }

            for number in 1..=idle {
                let answer = attempt(&sender, &url).await.unwrap().answer;
                assert_eq!(answer, DELIVERED, "{way}, {idle} idle, {number}");
            }

            assert!(
                requests.load(Ordering::Relaxed) > 2 * idle,
                "{way}, {idle} idle: none of them was used"
            );
        }
    }
}

/// Creates a sender that reaches receivers directly, and one that reaches them through the proxy.
pub fn senders(authority: &Authority, proxy: &TunnelProxy) -> [(&'static str, Sender); 2] {
    let file = authority.file();
    let mut config = config();

    config.delivery.extra_ca_file = Some(file.path().to_owned());
    let direct = sender(&config);
    config.delivery.proxy = Some(format!("http://{}", proxy.address).into());

    [("directly", direct), ("through a proxy", sender(&config))]
}

/// Forwards connections to a receiver.
struct Relay {
    port: u16,
    opened: Arc<AtomicUsize>,
    closes: watch::Sender<()>,
}

impl Relay {
    async fn start(target: String) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Relay {
            port: listener.local_addr().unwrap().port(),
            opened: Arc::default(),
            closes: watch::channel(()).0,
        };

        let opened = relay.opened.clone();
        let closes = relay.closes.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(forward(client, target.clone(), closes.subscribe()));
            }
        });

        relay
    }

    /// Closes the connections that are open, as the kernel closes those of a process that ends: TLS
    /// gets no `close_notify`.
    fn close(&self) {
        self.closes.send_replace(());
    }
}

async fn forward(mut client: TcpStream, target: String, mut close: watch::Receiver<()>) {
    let mut server = TcpStream::connect(target).await.unwrap();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        closed = close.changed() => if closed.is_err() { return },
    }
    drop(server);
    client.shutdown().await.unwrap();

    // Without this, data that arrives later would turn the end of the connection into a reset.
    let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
}

#[tokio::test]
async fn an_idle_tls_connection_that_ends_without_notice_uses_up_no_attempt() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    for (way, sender) in senders(&authority, &proxy) {
        for offered in ["http/1.1", "h2"] {
            let receiver = Receiver::start_tls(authority.server(NAME, &[offered])).await;
            receiver.answer_in_turn(&[Answer::Status(200), Answer::Hang, Answer::Status(200)]);

            let relay = Relay::start(receiver.url("").replace("https://", "")).await;
            let url = format!("https://{NAME}:{}/in", relay.port);

            assert_eq!(
                attempt(&sender, &url).await.unwrap().answer,
                DELIVERED,
                "{way} {offered}"
            );
            let close = async {
                receiver.wait_for(2).await;
                relay.close();
            };

            let (second, ()) = tokio::join!(attempt(&sender, &url), close);
            assert_eq!(second.unwrap().answer, DELIVERED, "{way} {offered}");

            let seen = (
                receiver.requests().len(),
                relay.opened.load(Ordering::Relaxed),
            );
            assert_eq!(
                seen,
                (3, 2),
                "{way} {offered}: the second request was sent again, on a new connection"
            );
        }
    }
}

/// Serves a client that sends a request, and then another for which it opens a second connection.
/// The TLS handshake of that one does not begin, and the first connection becomes idle. When it has
/// brought the second request, it is closed. From then on, all connections are served.
async fn serve_the_first_connection_first(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    arrived: Arc<Notify>,
    requests: Arc<AtomicUsize>,
) {
    let mut first = acceptor
        .accept(listener.accept().await.unwrap().0)
        .await
        .unwrap();
    assert!(read_request(&mut first).await);
    requests.fetch_add(1, Ordering::Relaxed);
    arrived.notify_one();

    let (mut waiting, _) = listener.accept().await.unwrap();
    accept(&mut first).await;
    assert!(read_request(&mut first).await);
    requests.fetch_add(1, Ordering::Relaxed);
    first.shutdown().await.unwrap();
    drop(first);

    loop {
        let acceptor = acceptor.clone();
        let requests = requests.clone();

        tokio::spawn(async move {
            let Ok(mut stream) = acceptor.accept(waiting).await else {
                return;
            };

            while read_request(&mut stream).await {
                requests.fetch_add(1, Ordering::Relaxed);
                accept(&mut stream).await;
            }
        });

        (waiting, _) = listener.accept().await.unwrap();
    }
}

/// A request takes a connection that becomes idle before its own is established.
#[tokio::test]
async fn an_idle_connection_that_is_closed_uses_up_no_attempt_while_another_is_being_opened() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    for (way, sender) in senders(&authority, &proxy) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://{NAME}:{}/in",
            listener.local_addr().unwrap().port()
        );
        let arrived = Arc::<Notify>::default();
        let requests = Arc::<AtomicUsize>::default();
        let acceptor = TlsAcceptor::from(authority.server(NAME, &["http/1.1"]));

        tokio::spawn(serve_the_first_connection_first(
            listener,
            acceptor,
            arrived.clone(),
            requests.clone(),
        ));

        let second = async {
            arrived.notified().await;
            attempt(&sender, &url).await
        };

        let (first, second) = tokio::join!(attempt(&sender, &url), second);
        assert_eq!(first.unwrap().answer, DELIVERED, "{way}");
        assert_eq!(second.unwrap().answer, DELIVERED, "{way}");
        assert_eq!(
            requests.load(Ordering::Relaxed),
            3,
            "{way}: the second request was sent again"
        );
    }
}

/// Forbids the process to open another file descriptor, or restores its limit.
fn limit_descriptors(pid: u32, is_limited: bool) {
    let lowest_free =
        || (3..).find(|number| !std::path::Path::new(&format!("/proc/{pid}/fd/{number}")).exists());
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let current = if is_limited { lowest_free() } else { maximum };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap());

    rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

const DESCRIPTOR_FAULTS: &str = "walhook_own_faults_total{cause=\"descriptors\"}";

/// Starts the application. Its connections for lookups and for the metrics are open.
async fn start_app() -> (TestApp, Platform, i64) {
    let mut app = TestApp::start_with(|app| app.set("delivery.timeout", "5s")).await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    assert_eq!(app.sidecar().metric(DESCRIPTOR_FAULTS).await, Some(0.0));

    (app, platform, user)
}

#[tokio::test]
async fn without_free_file_descriptors_no_attempt_is_used_up() {
    let (mut app, platform, user) = start_app().await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/in"), &["payment.statement_ready"])
        .await;
    let sidecar = app.sidecar();

    limit_descriptors(sidecar.pid(), true);
    platform.payment(user, "ready").await;

    let met = || async { (sidecar.metric(DESCRIPTOR_FAULTS).await? >= 1.0).then_some(()) };
    eventually("a try without a file descriptor", met).await;
    assert!(receiver.requests().is_empty());
    limit_descriptors(sidecar.pid(), false);

    let logs = api
        .wait_for_logs(&webhook, "an attempt", |logs| !logs.is_empty())
        .await;
    assert_eq!(
        (logs.len(), &logs[0]["attempt"], &logs[0]["outcome"]),
        (1, &json!(1), &json!("delivered"))
    );
    assert_eq!(api.webhook(&webhook).await["failure_count"], 0);
}

/// A lookup needs a file descriptor too. Without one it ends at once, and nothing is known about
/// the name.
#[tokio::test]
async fn without_free_file_descriptors_no_name_is_unresolved() {
    let (mut app, platform, user) = start_app().await;
    let api = app.api(&user.to_string()).await;

    api.create_webhook("http://receiver.test/in", &["payment.statement_ready"])
        .await;
    let store = app.store().await;
    let sidecar = app.sidecar();
    let resolver_faults = async || {
        sidecar
            .metric("walhook_own_faults_total{cause=\"resolver\"}")
            .await
            .unwrap()
    };

    let attempts = async || {
        let counted = store
            .query_one("select count(*) from walhook.attempt", &[])
            .await
            .unwrap();
        counted.get::<_, i64>(0)
    };

    // The first lookup reads the files of this host, whose nameservers may answer or not.
    platform.payment(user, "ready").await;
    let looked_up =
        || async { (resolver_faults().await > 0.0 || attempts().await > 0).then_some(()) };

    eventually("a first lookup", looked_up).await;

    let before = (resolver_faults().await, attempts().await);
    limit_descriptors(sidecar.pid(), true);
    platform.payment(user, "ready").await;

    let met = || async { (sidecar.metric(DESCRIPTOR_FAULTS).await? >= 1.0).then_some(()) };
    eventually("a lookup without a file descriptor", met).await;
    assert_eq!((resolver_faults().await, attempts().await), before);
}
