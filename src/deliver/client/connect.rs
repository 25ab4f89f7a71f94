//! Opens connections to receivers, directly or through `delivery.proxy`, TLS included. Every address that is dialled has been
//! checked by the guard. Literal addresses in URLs are checked before a request is made.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Uri;
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt, service_fn};

use super::reuse;
use super::tunnel::Tunnels;
use crate::deliver::settings::Settings;

/// Bytes that a receiver may send ahead of what is read: of an HTTP/1 response, or on one HTTP/2 stream.
const BUFFER_BYTES: usize = 64 << 10;
/// The same for all streams of one HTTP/2 connection together.
const HTTP2_BUFFER_BYTES: u32 = 1 << 20;
/// Servers close idle connections, some after five seconds. Ours are closed first, so that no request meets a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Interval of TCP keepalive probes, so that a connection whose other end disappeared is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Unanswered probes after which a connection is closed.
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay unacknowledged before the connection is closed.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;
/// A byte stream to a receiver, or to a proxy that may itself speak TLS.
type Outer = MaybeHttpsStream<TokioIo<TcpStream>>;
pub type HttpClient = legacy::Client<BoxCloneSyncService<Uri, MaybeHttpsStream<Outer>, BoxError>, Full<Bytes>>;

/// No connection was established in the time allowed.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub struct ConnectTimeout(Duration);

/// Creates the HTTP client of the process. It follows no redirects and ignores the proxy settings of the environment.
pub fn client(settings: &Settings, tls: rustls::ClientConfig) -> anyhow::Result<HttpClient> {
    let timeout = settings.timeout;
    let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http().enable_all_versions();
    let https = https.wrap_connector(dialer(settings, tls)?);
    let connector = service_fn(move |url: Uri| {
        reuse::note_connecting();
        let connecting = https.clone().call(url);
        async move {
            let connected = tokio::time::timeout(timeout, connecting).await;
            connected.unwrap_or_else(|_| Err(ConnectTimeout(timeout).into()))
        }
    });
    let client = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        // All requests in flight may go to one receiver, and each leaves an idle connection behind.
        .pool_max_idle_per_host(settings.concurrency)
        .pool_idle_timeout(POOL_IDLE)
        // Header names as the documentation spells them, for receivers that compare them case-sensitively.
        .http1_title_case_headers(true)
        .http1_max_buf_size(BUFFER_BYTES)
        .http2_initial_stream_window_size(BUFFER_BYTES as u32)
        .http2_initial_connection_window_size(HTTP2_BUFFER_BYTES)
        // Without these, a dead HTTP/2 connection would fail all requests that share it until the kernel gives up on it.
        .http2_keep_alive_interval(timeout / 2)
        .http2_keep_alive_timeout(timeout / 2)
        .build(BoxCloneSyncService::new(connector));
    Ok(client)
}

/// Returns a service that opens byte streams to receivers, directly or through the proxy.
fn dialer(settings: &Settings, tls: rustls::ClientConfig) -> anyhow::Result<BoxCloneSyncService<Uri, Outer, BoxError>> {
    let guard = settings.guard.clone();
    if let Some(proxy) = &settings.proxy {
        let to_proxy = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let to_proxy = to_proxy.wrap_connector(tcp(GaiResolver::new(), settings.timeout));
        let tunnels = Tunnels::new(guard, proxy, to_proxy)?;
        return Ok(BoxCloneSyncService::new(service_fn(move |url: Uri| {
            let tunnels = tunnels.clone();
            async move { tunnels.open(&url).await }
        })));
    }
    // Resolves names to addresses that the guard allows. The connector replaces port 0 by the URL's port.
    let checked = service_fn(move |name: Name| {
        let guard = guard.clone();
        async move { guard.resolve(name.as_str(), 0).await.map(Vec::into_iter) }
    });
    let direct = tcp(BoxCloneSyncService::new(checked), settings.timeout);
    Ok(BoxCloneSyncService::new(direct.map_response(Outer::Http).map_err(BoxError::from)))
}

fn tcp<R>(resolver: R, timeout: Duration) -> HttpConnector<R> {
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    // Divided among the addresses of a name, so that a silent address leaves time for the others.
    tcp.set_connect_timeout(Some(timeout));
    tcp
}
