//! Opens connections to receivers: directly or through `delivery.proxy`, with TLS if the URL says
//! so, and each of them metered.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFuture};
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt, service_fn};

use super::connection::{Counting, Metered, count, meter};
use super::timing::{Mark, mark};
use crate::config::Proxy;
use crate::deliver::guard::{Guard, Unreachable};
use crate::deliver::settings::Settings;

/// Interval of TCP keepalive probes, so that a connection whose other end disappeared is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Unanswered keepalive probes after which a connection is closed.
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay unacknowledged before the connection is closed.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;
/// Bytes to and from a receiver, outside TLS. In a tunnel, TLS to the proxy may be around them.
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type Dialer = BoxCloneSyncService<Uri, Stream, BoxError>;
type CountedStream = TokioIo<Counting<TokioIo<Stream>>>;
type Connecting = BoxFuture<
    'static,
    Result<TokioIo<Metered<TokioIo<MaybeHttpsStream<CountedStream>>>>, BoxError>,
>;

/// Opens connections. Clones are cheap: the client makes two for each request, also if it uses an
/// open connection.
#[derive(Clone)]
pub struct Connector(Arc<dyn Fn(Uri) -> Connecting + Send + Sync>);

impl Service<Uri> for Connector {
    type Response = <Connecting as TryFuture>::Ok;
    type Error = BoxError;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Connecting {
        (self.0)(url)
    }
}

/// No connection to the receiver was established in time.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub struct ConnectTimeout(pub Duration);

/// Creates the connector of the process.
pub fn connector(settings: &Settings, tls: rustls::ClientConfig) -> anyhow::Result<Connector> {
    let timeout = settings.timeout;
    let dialer = match &settings.proxy {
        None => direct(settings),
        Some(proxy) => through_proxy(settings, proxy, tls.clone())?,
    };

    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions();
    let https = https.wrap_connector(dialer.map_response(|stream| {
        mark(Mark::Connected);
        TokioIo::new(count(TokioIo::new(stream)))
    }));

    Ok(Connector(Arc::new(move |url: Uri| {
        let connecting = https.clone().call(url);
        let connect = async move {
            mark(Mark::Dialing);
            let connected = tokio::time::timeout(timeout, connecting).await;
            let stream = connected.unwrap_or_else(|_| Err(ConnectTimeout(timeout).into()))?;
            let metered = meter(TokioIo::new(stream));

            mark(Mark::Secured);
            metered.observer.connection.note_opened();
            Ok(TokioIo::new(metered))
        };

        connect.boxed()
    })))
}

/// Sets the options of TCP connections.
fn tcp<R>(mut tcp: HttpConnector<R>, connect_timeout: Duration) -> HttpConnector<R> {
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp.set_connect_timeout(Some(connect_timeout));

    tcp
}

/// Creates the dialer of connections directly to receivers. Names are resolved by the guard, which
/// returns checked addresses only; literal addresses are checked before a request is made.
fn direct(settings: &Settings) -> Dialer {
    let guard = settings.guard.clone();
    let resolver = service_fn(move |name: Name| {
        let guard = guard.clone();
        // The connector replaces port 0 by the URL's port.
        async move { Ok::<_, Unreachable>(resolve(&guard, name.as_str(), 0).await?.into_iter()) }
    });

    // The timeout is divided among the addresses of a name, so that a silent address leaves time
    // for the others.
    let tcp: HttpConnector<_> = tcp(HttpConnector::new_with_resolver(resolver), settings.timeout);
    BoxCloneSyncService::new(tcp.map_response(MaybeHttpsStream::Http).map_err(Into::into))
}

/// Looks up a receiver's name, and returns checked addresses.
async fn resolve(guard: &Guard, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unreachable> {
    mark(Mark::Resolving);
    let addresses = guard.resolve(host, port).await?;
    mark(Mark::Resolved);
    Ok(addresses)
}

/// Tunnels have this share of the timeout to open. Then a proxy that does not respond is noticed
/// before the connection's own timer blames the receiver, and TLS with a receiver that the proxy
/// reached late still has some time.
const TUNNEL_SHARE: f64 = 0.9;

type ToProxy = HttpsConnector<HttpConnector>;
type TunnelError = <Tunnel<ToProxy> as Service<Uri>>::Error;

/// The proxy could not reach the receiver.
#[derive(Debug, thiserror::Error)]
#[error("no connection through the proxy")]
pub struct NoTunnel;

/// The proxy itself failed. The receiver is not to blame.
#[derive(Debug, thiserror::Error)]
#[error("delivery.proxy: {0}")]
pub struct ProxyFault(String);

/// Creates the dialer of tunnels through `delivery.proxy`. The proxy is given addresses that the
/// guard has checked, never names: it would resolve them itself, perhaps to other addresses. TLS
/// inside the tunnel uses the receiver's own name.
fn through_proxy(
    settings: &Settings,
    proxy: &Proxy,
    tls: rustls::ClientConfig,
) -> anyhow::Result<Dialer> {
    let to_proxy = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1();

    // Half of the timeout: if the proxy's host does not answer, this must be noticed before the
    // tunnel's own timer blames the receiver.
    let to_proxy = to_proxy.wrap_connector(tcp(HttpConnector::new(), settings.timeout / 2));
    let tunnels = Tunnels::new(settings, proxy, to_proxy)?;
    Ok(BoxCloneSyncService::new(service_fn(move |url: Uri| {
        let tunnels = tunnels.clone();
        async move { tunnels.open(&url).await }
    })))
}

/// Opens tunnels through the proxy.
#[derive(Clone)]
struct Tunnels {
    guard: Guard,
    tunnel: Tunnel<ToProxy>,
    timeout: Duration,
    /// How many requests for tunnels the proxy has answered.
    answered: Arc<AtomicU64>,
}

impl Tunnels {
    fn new(settings: &Settings, proxy: &Proxy, to_proxy: ToProxy) -> anyhow::Result<Tunnels> {
        let mut tunnel = Tunnel::new(
            proxy.url.as_str().parse().context("delivery.proxy")?,
            to_proxy,
        );

        if let Some(authorization) = &proxy.authorization {
            let value =
                HeaderValue::from_str(authorization.expose_secret()).context("delivery.proxy")?;
            tunnel = tunnel.with_auth(value);
        }

        let guard = settings.guard.clone();
        let timeout = settings.timeout;
        Ok(Tunnels {
            guard,
            tunnel,
            timeout,
            answered: Arc::default(),
        })
    }

    /// Opens a tunnel to the receiver. If the proxy does not answer, it is to blame, unless it has
    /// answered other requests in the meantime: then it waits for the receiver.
    async fn open(&self, url: &Uri) -> Result<Stream, BoxError> {
        let before = self.answered.load(Ordering::Relaxed);
        let opened =
            tokio::time::timeout(self.timeout.mul_f64(TUNNEL_SHARE), self.open_any(url)).await;

        opened.unwrap_or_else(|_| match self.answered.load(Ordering::Relaxed) == before {
            true => Err(ProxyFault(format!(
                "no answer to CONNECT within {:?}",
                self.timeout.mul_f64(TUNNEL_SHARE)
            ))
            .into()),
            false => Err(ConnectTimeout(self.timeout).into()),
        })
    }

    /// Opens a tunnel to the first of the receiver's addresses that the proxy reaches. Plain http
    /// uses a tunnel too: in a request to the proxy itself, the address would have to replace the
    /// `Host`.
    async fn open_any(&self, url: &Uri) -> Result<Stream, BoxError> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_tls = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        for address in resolve(&self.guard, host, port).await? {
            let to = Uri::builder()
                .scheme("https")
                .authority(address.to_string())
                .path_and_query("/")
                .build()?;
            match self.tunnel.clone().oneshot(to).await {
                Ok(stream) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(TunnelError::TunnelUnsuccessful) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let causes = format!("{:#}", anyhow::Error::from(error));
                    return Err(ProxyFault(causes).into());
                }
            }
        }

        Err(NoTunnel.into())
    }
}
