//! How a receiver is connected to: at addresses that the guard has checked, directly or through a tunnel of the proxy's, with
//! TLS in the receiver's own name.

use std::error::Error;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

use crate::config::Proxy;
use crate::deliver::guard::{Guard, Unreachable};

type BoxError = Box<dyn Error + Send + Sync>;
/// To the receiver, or to the proxy, which may speak TLS itself.
type Outer = MaybeHttpsStream<TokioIo<TcpStream>>;
type ToProxy = Tunnel<HttpsConnector<HttpConnector>>;
type TunnelError = <ToProxy as Service<Uri>>::Error;

/// So that a connection whose other end is gone without a word is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);

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

/// Makes connections, TLS included, within a time.
#[derive(Clone)]
pub struct Connector {
    https: HttpsConnector<Dialer>,
    timeout: Duration,
}

impl Connector {
    pub fn new(
        guard: Guard,
        proxy: Option<&Proxy>,
        tls: rustls::ClientConfig,
        timeout: Duration,
    ) -> anyhow::Result<Connector> {
        let dialer = match proxy {
            None => Dialer::Direct(tcp(HttpConnector::new_with_resolver(Resolver(guard)), timeout)),
            Some(proxy) => Dialer::Proxy { guard, tunnel: tunnel(proxy, tls.clone(), timeout)?.into() },
        };
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
        Ok(Connector { https: https.wrap_connector(dialer), timeout })
    }
}

fn tcp<R>(mut connector: HttpConnector<R>, timeout: Duration) -> HttpConnector<R> {
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE));
    // Shared by the addresses of a name, so that one that is silent leaves time for the others.
    connector.set_connect_timeout(Some(timeout));
    connector
}

fn tunnel(proxy: &Proxy, tls: rustls::ClientConfig, timeout: Duration) -> anyhow::Result<ToProxy> {
    let to_proxy = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    let url: Uri = proxy.url.as_str().parse().context("delivery.proxy")?;
    let tunnel = Tunnel::new(url, to_proxy.wrap_connector(tcp(HttpConnector::new(), timeout)));
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
        let (connecting, limit) = (self.https.call(url), self.timeout);
        Box::pin(async move {
            let connected = tokio::time::timeout(limit, connecting).await;
            connected.unwrap_or_else(|_| Err(ConnectTimeout(limit).into()))
        })
    }
}

#[derive(Clone)]
enum Dialer {
    Direct(HttpConnector<Resolver>),
    Proxy { guard: Guard, tunnel: Box<ToProxy> },
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
        match self.clone() {
            Dialer::Direct(tcp) => Box::pin(async move { Ok(MaybeHttpsStream::Http(tcp.oneshot(url).await?)) }),
            Dialer::Proxy { guard, tunnel } => Box::pin(async move { dig(&guard, *tunnel, &url).await }),
        }
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

/// Gives the connector no address that the guard refuses: what is dialled has been checked.
#[derive(Clone)]
struct Resolver(Guard);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Unreachable;
    type Future = BoxFuture<'static, Result<Self::Response, Unreachable>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Unreachable>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let guard = self.0.clone();
        // The connector puts the URL's port in place of 0.
        Box::pin(async move { Ok(guard.resolve(name.as_str(), 0).await?.into_iter()) })
    }
}
