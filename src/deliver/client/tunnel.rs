//! Requests to receivers through tunnels of `delivery.proxy`, by hyper. The proxy gets addresses that the guard has checked,
//! and TLS is in the receiver's own name.
//!
//! reqwest cannot do this. Its `Proxy` asks for a tunnel to the URL's host: a name, which the proxy would resolve to addresses
//! that nobody has checked. A checked address in the URL's place would take the name from `Host`, from TLS's server name and from
//! the certificate's verification; a layer around its connector can change neither the target nor the stream, as both types are
//! sealed.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

use super::reuse;
use super::{BUFFER_BYTES, HTTP2_BUFFER_BYTES, KEEPALIVE, POOL_IDLE};
use crate::config::Proxy;
use crate::deliver::guard::Guard;

type BoxError = Box<dyn Error + Send + Sync>;
/// To the proxy, which may speak TLS itself.
type Outer = MaybeHttpsStream<TokioIo<TcpStream>>;
type ToProxy = Tunnel<HttpsConnector<HttpConnector>>;
type TunnelError = <ToProxy as Service<Uri>>::Error;

/// Connecting took the whole time there was.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub struct ConnectTimeout(Duration);

/// The proxy made no tunnel to the receiver.
#[derive(Debug, thiserror::Error)]
#[error("no connection through the proxy")]
pub struct NoTunnel;

/// The proxy itself did not do its part: no fault of the receiver's.
#[derive(Debug, thiserror::Error)]
#[error("delivery.proxy: {0}")]
pub struct ProxyFault(String);

pub type TunnelClient = legacy::Client<Connector, Full<Bytes>>;

/// The one client of the process.
pub fn client(
    guard: Guard,
    proxy: &Proxy,
    tls: rustls::ClientConfig,
    timeout: Duration,
    connections: usize,
) -> anyhow::Result<TunnelClient> {
    let dialer = Dialer { guard, tunnel: tunnel(proxy, tls.clone(), timeout)? };
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
    let connector = Connector { https: https.wrap_connector(dialer), timeout };
    // As the client without a proxy.
    let client = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(connections)
        .pool_idle_timeout(POOL_IDLE)
        .http1_title_case_headers(true)
        .http1_max_buf_size(BUFFER_BYTES)
        .http2_initial_stream_window_size(BUFFER_BYTES as u32)
        .http2_initial_connection_window_size(HTTP2_BUFFER_BYTES)
        .http2_keep_alive_interval(timeout / 2)
        .http2_keep_alive_timeout(timeout / 2)
        .build(connector);
    Ok(client)
}

pub async fn send(
    client: &TunnelClient,
    url: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response<Incoming>, legacy::Error> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url;
    *request.headers_mut() = headers;
    client.request(request).await
}

/// Makes connections, TLS included, within a time.
#[derive(Clone)]
pub struct Connector {
    https: HttpsConnector<Dialer>,
    timeout: Duration,
}

fn tunnel(proxy: &Proxy, tls: rustls::ClientConfig, timeout: Duration) -> anyhow::Result<ToProxy> {
    let to_proxy = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    let url: Uri = proxy.url.as_str().parse().context("delivery.proxy")?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_connect_timeout(Some(timeout));
    let tunnel = Tunnel::new(url, to_proxy.wrap_connector(tcp));
    let Some(authorization) = &proxy.authorization else { return Ok(tunnel) };
    Ok(tunnel.with_auth(HeaderValue::from_str(authorization.expose_secret()).context("delivery.proxy")?))
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<Outer>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        reuse::note_connecting();
        let (connecting, limit) = (self.https.call(url), self.timeout);
        Box::pin(async move {
            let connected = tokio::time::timeout(limit, connecting).await;
            connected.unwrap_or_else(|_| Err(ConnectTimeout(limit).into()))
        })
    }
}

#[derive(Clone)]
struct Dialer {
    guard: Guard,
    tunnel: ToProxy,
}

impl Service<Uri> for Dialer {
    type Response = Outer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outer, BoxError>>;

    /// Each call asks for itself whether it may go.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let Dialer { guard, tunnel } = self.clone();
        Box::pin(async move { dig(&guard, tunnel, &url).await })
    }
}

/// A tunnel to the first of the receiver's addresses that the proxy reaches. It is told addresses and never names, or it would
/// resolve them anew, to others than were checked. Plain http goes through a tunnel too: in a request to the proxy itself the
/// address would have to take the place of the `Host`.
async fn dig(guard: &Guard, tunnel: ToProxy, url: &Uri) -> Result<Outer, BoxError> {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_tls = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    for address in guard.resolve(host, port).await? {
        let to = Uri::builder().scheme("https").authority(address.to_string()).path_and_query("/").build()?;
        match tunnel.clone().oneshot(to).await {
            Ok(stream) => return Ok(stream),
            Err(TunnelError::TunnelUnsuccessful) => {}
            Err(error) => return Err(ProxyFault(words(&error)).into()),
        }
    }
    Err(NoTunnel.into())
}

/// An error with what is at the bottom of it.
fn words(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    if std::ptr::addr_eq(last, error) { error.to_string() } else { format!("{error}: {last}") }
}
