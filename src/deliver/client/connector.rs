//! Opens connections to receivers: directly or through `delivery.proxy`, with TLS if the URL says
//! so, and each of them metered.

use std::error::Error;
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt, service_fn};

use super::connection::{Metered, meter};
use super::wire::{Wire, count};
use super::{direct, reuse, tunnel};
use crate::deliver::settings::Settings;

/// Interval of TCP keepalive probes, so that a connection whose other end disappeared is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Unanswered keepalive probes after which a connection is closed.
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay unacknowledged before the connection is closed.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

pub type BoxError = Box<dyn Error + Send + Sync>;
/// Bytes to and from a receiver, outside TLS. In a tunnel, TLS to the proxy may be around them.
pub type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
pub type Dialer = BoxCloneSyncService<Uri, Stream, BoxError>;
type Counted = TokioIo<Wire<TokioIo<Stream>>>;
pub type Connector =
    BoxCloneSyncService<Uri, TokioIo<Metered<TokioIo<MaybeHttpsStream<Counted>>>>, BoxError>;

/// No connection to the receiver was established in time.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub struct ConnectTimeout(pub Duration);

/// Creates the connector of the process.
pub fn connector(settings: &Settings, tls: rustls::ClientConfig) -> anyhow::Result<Connector> {
    let timeout = settings.timeout;
    let dialer = match &settings.proxy {
        None => direct::dialer(settings),
        Some(proxy) => tunnel::dialer(settings, proxy, tls.clone())?,
    };

    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions();
    let https = https
        .wrap_connector(dialer.map_response(|stream| TokioIo::new(count(TokioIo::new(stream)))));

    Ok(BoxCloneSyncService::new(service_fn(move |url: Uri| {
        let connecting = https.clone().call(url);
        async move {
            let connected = tokio::time::timeout(timeout, connecting).await;
            let stream = connected.unwrap_or_else(|_| Err(ConnectTimeout(timeout).into()))?;
            let metered = meter(TokioIo::new(stream));

            reuse::note(&metered.observer.connection);
            Ok(TokioIo::new(metered))
        }
    })))
}

/// Sets the options of TCP connections.
pub fn tcp<R>(mut tcp: HttpConnector<R>, connect_timeout: Duration) -> HttpConnector<R> {
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp.set_connect_timeout(Some(connect_timeout));

    tcp
}
