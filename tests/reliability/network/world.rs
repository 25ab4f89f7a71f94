//! A sidecar with everything that it talks to, each behind a link that can be disturbed: the real
//! binary, a real Postgres, receivers, a mail server, a key server, a proxy for deliveries, and a
//! collector of traces.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use walhook::private_postgres::free_port;

use crate::support::collector::Collector;
use crate::support::proxy::{Direction, Proxy, Weather};
use crate::support::{
    Api, Authority, Issuer, NETWORK, Namespace, POLL, Platform, Received, Receiver, SmtpSink,
    TestApp, TunnelProxy, disable_webhooks, eventually, fetch, next_id, serve_tls,
};

const EVENT: &str = "payment.statement_ready";
/// Between two payments of each user.
const PAYMENT_INTERVAL: Duration = Duration::from_millis(100);
/// Between two looks at readiness and liveness.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// A wait for a payment starts over with so many requests, and so often: a fault can leave a
/// backlog of thousands.
const PROGRESS: usize = 1_000;
const MAX_WAITS: usize = 10;

/// Commits payments until it is stopped. Reconnects when the database restarts.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    fn start(url: String, users: Vec<i64>, interval: Duration) -> Load {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();

        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let Ok(client) = walhook::postgres::connect(&url).await else {
                    tokio::time::sleep(POLL).await;
                    continue;
                };

                let insert = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                              values ($1, $2, 'INV', 1, 1, 'ready')";

                'connected: while !stopped.load(Ordering::Relaxed) {
                    for user in &users {
                        if client.execute(insert, &[&next_id(), user]).await.is_err() {
                            break 'connected;
                        }
                    }

                    tokio::time::sleep(interval).await;
                }
            }
        });

        Load { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the load does not panic");
    }
}

/// What a sidecar connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    Primary,
    Store,
    /// The receiver of the first user. That of the second has a link that always works.
    Receiver,
    MailServer,
    KeyServer,
    DeliveryProxy,
    Collector,
}

/// How the network to a peer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Everything arrives 200 ms late, in both directions.
    Latency,
    /// A tenth of the packets is lost, in both directions.
    Loss,
    /// All packets to the peer are lost.
    SilentToPeer,
    /// All packets from the peer are lost.
    SilentFromPeer,
    /// Each connection is reset after a random time, a second on average.
    Resets,
    /// A proxy in between acknowledges everything, and forwards nothing to the peer.
    HeldToPeer,
    /// The same from the peer.
    HeldFromPeer,
}

impl Fault {
    /// Returns whether nothing arrives in one direction.
    pub fn is_silence(self) -> bool {
        !matches!(self, Fault::Latency | Fault::Loss | Fault::Resets)
    }
}

const LATENCY: Duration = Duration::from_millis(200);
const LOSS_PERCENT: u8 = 10;
const LIFETIME: Duration = Duration::from_secs(1);

/// The peers, and the links through which the sidecar reaches them.
pub struct Servers {
    links: BTreeMap<Peer, Proxy>,
    /// The link to the second receiver.
    other: Proxy,
    /// The first one is [`Peer::Receiver`].
    receivers: [Receiver; 2],
    mails: SmtpSink,
    collector: Collector,
    issuer: Issuer,
    /// The authority that the key server's certificate is from.
    certificates: tempfile::NamedTempFile,
    _tunnel: TunnelProxy,
    _key_server: AbortOnDropHandle<()>,
}

pub struct World {
    pub app: TestApp,
    namespace: Option<Arc<Namespace>>,
    servers: Servers,
    pub platform: Platform,
    /// The owners of the webhooks.
    pub users: [i64; 2],
    /// One for each receiver.
    pub webhooks: [String; 2],
    /// The API as the second user, with a token of Walhook.
    pub api: Api,
    /// A token of the platform, for the second user.
    pub jwt: String,
    notices: usize,
    load: Option<Load>,
    samples: Arc<Mutex<Samples>>,
    _samplers: [AbortOnDropHandle<()>; 2],
}

/// The responses of liveness and readiness.
#[derive(Default)]
pub struct Samples {
    /// Responses of `/healthz` other than 200, and requests without a response.
    pub not_alive: Vec<Option<(u16, String)>>,
    pub ready: usize,
    /// Responses of `/readyz` other than 200, and requests without a response.
    pub not_ready: Vec<Option<(u16, String)>>,
}

impl World {
    /// Starts everything, and a steady load. With `proxied`, deliveries go through the proxy. None
    /// if the mail server is not installed.
    pub async fn start(proxied: bool) -> Option<World> {
        if !SmtpSink::is_available() {
            return None;
        }

        let namespace = Namespace::create().map(Arc::new);
        let host = namespace
            .as_ref()
            .map_or(Ipv4Addr::LOCALHOST.into(), |namespace| namespace.host());
        let mut app = TestApp::prepare().await;
        let servers = Servers::start(&app, host).await;

        servers.configure(&mut app, host, proxied);

        if let Some(namespace) = &namespace {
            app.enter(namespace.clone());
        }

        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let users = [platform.user(&[]).await, platform.user(&[]).await];

        let urls = match proxied {
            true => servers
                .receivers
                .each_ref()
                .map(|receiver| receiver.url("/")),
            false => [&servers.links[&Peer::Receiver], &servers.other]
                .map(|link| format!("http://{host}:{}/", link.port)),
        };

        let first = app.api(&users[0].to_string()).await;
        let api = app.api(&users[1].to_string()).await;
        let webhooks = [
            first.create_webhook(&urls[0], &[EVENT]).await.0,
            api.create_webhook(&urls[1], &[EVENT]).await.0,
        ];
        let load = Load::start(app.source_url.clone(), users.to_vec(), PAYMENT_INTERVAL);
        let samples = Arc::<Mutex<Samples>>::default();
        let url = &app.sidecar().metrics_url;
        let samplers =
            ["/healthz", "/readyz"].map(|path| sample(format!("{url}{path}"), samples.clone()));
        let jwt = servers.token(users[1]);
        let load = Some(load);

        let mut world = World {
            app,
            namespace,
            servers,
            platform,
            users,
            webhooks,
            api,
            jwt,
            notices: 0,
            load,
            samples,
            _samplers: samplers,
        };

        world.assert_works().await;
        Some(world)
    }

    /// Returns how packets are lost, for the report.
    pub fn mechanism(&self) -> &'static str {
        if self.namespace.is_some() {
            "packet filter"
        } else {
            "proxy"
        }
    }

    /// Disturbs the link to a peer.
    pub fn disturb(&self, peer: Peer, fault: Fault) {
        let link = &self.servers.links[&peer];
        let one_way = |direction| match (&self.namespace, fault) {
            (Some(namespace), Fault::SilentToPeer | Fault::SilentFromPeer) => {
                namespace.drop_packets(link.port, direction, 100);
            }
            _ => link.weather_to(direction, Weather::Frozen),
        };

        match (fault, &self.namespace) {
            (Fault::Latency, _) => link.weather(Weather::Late(LATENCY)),
            (Fault::Loss, Some(namespace)) => {
                namespace.drop_packets(link.port, Direction::ToServer, LOSS_PERCENT);
                namespace.drop_packets(link.port, Direction::ToClient, LOSS_PERCENT);
            }
            (Fault::Loss, None) => link.weather(Weather::Lossy),
            (Fault::Resets, _) => link.reset_after(LIFETIME),
            (Fault::SilentToPeer | Fault::HeldToPeer, _) => one_way(Direction::ToServer),
            (Fault::SilentFromPeer | Fault::HeldFromPeer, _) => one_way(Direction::ToClient),
        }
    }

    pub fn link(&self, peer: Peer) -> &Proxy {
        &self.servers.links[&peer]
    }

    /// Ends all disturbances. Returns how many packets were dropped, or connections broken.
    pub fn heal(&self, fault: Fault) -> u64 {
        let mut broken = 0;

        for link in self.servers.links.values() {
            link.reset_after(Duration::ZERO);
            link.weather(Weather::Fair);
            broken += link.take_broken();

            if fault == Fault::Loss && self.namespace.is_none() {
                // Connections that died in simulated loss: the kernel of the peer would end them
                // after some minutes.
                link.reset();
            }
        }

        broken
            + self
                .namespace
                .as_ref()
                .map_or(0, |namespace| namespace.heal())
    }

    /// Discards all samples whose requests may have started earlier.
    pub async fn start_sampling(&self) {
        self.take_samples();

        // The first response may belong to a request from before.
        let enough = async || {
            (self
                .samples
                .lock()
                .expect("nobody panics with this lock")
                .ready
                > 1)
            .then_some(())
        };

        eventually("responses of /readyz", enough).await;
        self.take_samples();
    }

    /// Takes the samples since the last call.
    pub fn take_samples(&self) -> Samples {
        std::mem::take(&mut *self.samples.lock().expect("nobody panics with this lock"))
    }

    /// Commits a payment of a user and waits for its delivery, as long as others are delivered
    /// before it.
    pub async fn assert_delivers_to(&self, user: usize) {
        let payment = self.platform.payment(self.users[user], "ready").await;
        let mut read = 0;
        let mut has_arrived = false;

        for _ in 0..MAX_WAITS {
            let enough = read + PROGRESS;
            let progress = |requests: &[Received]| {
                has_arrived |= requests[read..]
                    .iter()
                    .any(|request| payment_of(request) == Some(payment));
                read = requests.len();
                has_arrived || read >= enough
            };

            self.servers.receivers[user]
                .wait_until(&format!("payment {payment} of user {user}"), progress)
                .await;

            if has_arrived {
                return;
            }
        }

        panic!("payment {payment} of user {user} does not arrive, but others do");
    }

    /// Queues a notice to an owner. It must arrive before the end.
    pub async fn notify(&mut self) {
        disable_webhooks(&self.app.store().await, &[&self.users[1].to_string()]).await;

        self.notices += 1;
    }

    pub async fn assert_notices_are_sent(&self) {
        self.app
            .wait_for_count(
                "select count(*) from walhook.notice where ended_at is null",
                0,
            )
            .await;
    }

    /// Waits until the sidecar is ready, delivers to both users, has sent all mails, exports spans
    /// and accepts the platform's tokens.
    pub async fn assert_works(&mut self) {
        self.app.sidecar().wait_until_ready().await;
        let exported = self.servers.collector.exports().len();

        tokio::join!(
            self.assert_delivers_to(0),
            self.assert_delivers_to(1),
            self.assert_notices_are_sent()
        );
        eventually("further spans", async || {
            (self.servers.collector.exports().len() > exported).then_some(())
        })
        .await;

        let url = self.app.sidecar().api_url.clone();
        self.assert_accepts_tokens_of_the_platform(&url).await;
    }

    pub async fn assert_accepts_tokens_of_the_platform(&self, url: &str) {
        let api = Api::new(url, &self.jwt);
        eventually("a token of the platform to be accepted", async || {
            (api.get("/webhooks").await.status == 200).then_some(())
        })
        .await;
    }

    /// Returns how many attempts failed since `since`, by webhook and kind of failure.
    pub async fn failures(&self, since: jiff::Timestamp) -> BTreeMap<(usize, String), i64> {
        let failed = "select webhook_id::text, error_kind, count(*) from walhook.attempt
                      where outcome <> 'delivered' and not test and started_at > $1 group by 1, 2";
        let rows = self
            .app
            .store()
            .await
            .query(failed, &[&since])
            .await
            .expect("attempts");

        let webhook = |id: &str| {
            self.webhooks
                .iter()
                .position(|webhook| webhook == id)
                .expect("one of the two")
        };

        rows.iter()
            .map(|row| ((webhook(row.get(0)), row.get(1)), row.get(2)))
            .collect()
    }

    /// Ends the load, waits until everything is delivered, and accounts: one event per committed
    /// payment, and one delivery, which ended delivered, once in the attempt log. Returns the
    /// number of payments.
    pub async fn account(&mut self) -> usize {
        self.load.take().expect("the load runs").stop().await;
        let source = self.app.source().await;
        let mut committed = 0;

        for (user, receiver) in self.users.iter().zip(&self.servers.receivers) {
            let rows = source
                .query("select id from payment where user_id = $1", &[user])
                .await
                .expect("payments");
            let wanted: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
            let mut paid = BTreeSet::new();
            let mut read = 0;
            let is_complete = |requests: &[Received]| {
                paid.extend(requests[read..].iter().filter_map(payment_of));
                read = requests.len();
                wanted.is_subset(&paid)
            };

            let received = receiver
                .wait_until(&format!("all payments of {user}"), is_complete)
                .await;
            assert_eq!(
                paid, wanted,
                "exactly the committed payments of {user} are delivered"
            );

            let paying = received
                .iter()
                .filter(|request| payment_of(request).is_some());
            let deliveries: HashSet<&str> = paying.map(Received::delivery).collect();
            assert_eq!(
                deliveries.len(),
                wanted.len(),
                "an event of {user} was delivered under two ids"
            );
            committed += wanted.len();
        }

        self.app
            .wait_for_count(
                "select count(*) from walhook.event where commit_lsn is not null",
                committed,
            )
            .await;

        self.app
            .wait_for_count("select count(*) from walhook.pending", 0)
            .await;
        let store = self.app.store().await;
        let count =
            async |query: &str| -> i64 { store.query_one(query, &[]).await.expect(query).get(0) };
        let ended = "select count(distinct delivery_id) from walhook.attempt where not test";

        assert_eq!(
            count(ended).await as usize,
            committed,
            "each event has one delivery"
        );
        // With what the log says of them, to explain a failure of this test.
        let wrong = "select concat_ws(' ', delivery_id,
                array_agg(concat_ws('/', outcome, error_kind, started_at, duration_ms) order by id))
            from walhook.attempt where not test group by delivery_id
            having count(*) filter (where outcome = 'delivered') <> 1
                or bool_or(outcome not in ('delivered', 'failed'))
            order by 1 limit 3";
        let wrong = store.query(wrong, &[]).await.expect("the log");
        let wrong: Vec<String> = wrong.iter().map(|row| row.get(0)).collect();

        assert!(
            wrong.is_empty(),
            "each delivery ended delivered, once: {wrong:#?}"
        );
        assert_eq!(
            count("select count(*) from walhook.gap").await,
            0,
            "nothing was reported as lost"
        );

        let mails = self.servers.mails.wait_for("taken", self.notices).await;
        let sent: BTreeSet<&str> = mails
            .iter()
            .filter_map(|mail| mail["message_id"].as_str())
            .collect();
        assert_eq!(
            sent.len(),
            self.notices,
            "each notice was sent under one id"
        );

        committed
    }
}

impl Servers {
    /// Starts the servers on loopback, and links to them at `host`.
    async fn start(app: &TestApp, host: IpAddr) -> Servers {
        let receivers = [Receiver::start().await, Receiver::start().await];
        let smtp = free_port().expect("a free port");
        let tunnel = TunnelProxy::start().await;
        let mails = SmtpSink::start(smtp, &[]).await;
        let collector = Collector::start(0).await;
        let issuer = Issuer::new();
        let authority = Authority::new();
        let (keys, key_server) = serve_keys(&issuer, &authority, host).await;

        let targets = [
            (Peer::Primary, app.server.port()),
            (Peer::Store, app.server.port()),
            (Peer::Receiver, port_of(&receivers[0])),
            (Peer::MailServer, smtp),
            (Peer::KeyServer, keys),
            (Peer::DeliveryProxy, tunnel.address.port()),
            (Peer::Collector, collector.port),
        ];

        let mut links = BTreeMap::new();

        for (peer, port) in targets {
            links.insert(peer, Proxy::start_at(host, port).await);
        }

        let other = Proxy::start_at(host, port_of(&receivers[1])).await;
        let certificates = authority.file();
        let _tunnel = tunnel;
        let _key_server = key_server;

        Servers {
            links,
            other,
            receivers,
            mails,
            collector,
            issuer,
            certificates,
            _tunnel,
            _key_server,
        }
    }

    /// Sets the addresses of the links, and short times.
    fn configure(&self, app: &mut TestApp, host: IpAddr, proxied: bool) {
        let at = |peer: Peer| format!("{host}:{}", self.links[&peer].port);
        let server = format!("127.0.0.1:{}", app.server.port());

        let [source, store] = [
            (&app.source_url, Peer::Primary),
            (&app.store_url, Peer::Store),
        ]
        .map(|(url, peer)| {
            assert!(url.contains(&server), "{url}");
            url.replace(&server, &at(peer))
        });

        app.set("source.url", &source)
            .set("store.url", &store)
            .set("source.heartbeat", "200ms")
            .set("delivery.allow_networks", &format!("127.0.0.0/8,{NETWORK}"))
            // Long, because a busy machine must not let an attempt fail. Half of it must pass
            // before the proxy is blamed.
            .set("delivery.timeout", if proxied { "5s" } else { "10s" })
            // Outlasts the longest fault.
            .set(
                "delivery.retry_schedule",
                "250ms,500ms,1s,2s,4s,10s,20s,30s,30s",
            )
            .set("delivery.retry_jitter", "0ms")
            .set("disable.threshold", "1000000000")
            .set("mail.smtp_url", &format!("smtp://{}", at(Peer::MailServer)))
            .set("mail.from", "Example <webhooks@example.com>")
            .set("auth.jwt.issuer", "https://platform.example")
            .set("auth.jwt.audience", "walhook")
            .set(
                "auth.jwt.jwks_url",
                &format!("https://{}/keys", at(Peer::KeyServer)),
            )
            .set(
                "tracing.otlp_endpoint",
                &format!("http://{}", at(Peer::Collector)),
            );

        if proxied {
            app.set(
                "delivery.proxy",
                &format!("http://{}", at(Peer::DeliveryProxy)),
            );
        }

        app.set_environment(
            "SSL_CERT_FILE",
            self.certificates.path().to_str().expect("a path in UTF-8"),
        );
    }

    /// Issues a token of the platform.
    fn token(&self, user: i64) -> String {
        let expires = jiff::Timestamp::now().as_second() + 24 * 3_600;
        let claims = json!({ "iss": "https://platform.example", "aud": "walhook", "sub": user.to_string(), "exp": expires });
        self.issuer.token(&claims)
    }
}

/// Serves the issuer's keys by https. Returns the port.
async fn serve_keys(
    issuer: &Issuer,
    authority: &Authority,
    host: IpAddr,
) -> (u16, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    let set = issuer.key_set().to_string();
    let router = Router::new().route("/keys", get(async move || set));
    let server = serve_tls(listener, authority.server(&host.to_string(), &[]), router);

    (port, AbortOnDropHandle::new(tokio::spawn(server)))
}

fn port_of(receiver: &Receiver) -> u16 {
    let url: url::Url = receiver.url("/").parse().expect("a URL");
    url.port().expect("a port")
}

/// Returns the payment that a request is about. None for a test.
fn payment_of(request: &Received) -> Option<i64> {
    if request.headers.contains_key("x-webhook-test") {
        return None;
    }

    request.data()["payment_request_id"].as_i64()
}

/// Samples `/healthz` or `/readyz` until the handle is dropped.
fn sample(url: String, samples: Arc<Mutex<Samples>>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let answer = fetch(&url).await;
            let is_good = answer.as_ref().is_some_and(|(status, _)| *status == 200);
            {
                let mut samples = samples.lock().expect("nobody panics with this lock");

                match (url.ends_with("/readyz"), is_good) {
                    (true, true) => samples.ready += 1,
                    (true, false) => samples.not_ready.push(answer),
                    (false, true) => {}
                    (false, false) => samples.not_alive.push(answer),
                }
            }

            tokio::time::sleep(SAMPLE_INTERVAL.max(POLL)).await;
        }
    }))
}
