//! Tunnels to receivers through `delivery.proxy`. The proxy is given addresses that the guard has checked, never names: it would
//! resolve them itself, perhaps to other addresses. TLS inside the tunnel uses the receiver's own name.

use std::error::Error;

use anyhow::Context as _;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use secrecy::ExposeSecret;
use tower::{Service, ServiceExt};

use crate::config::Proxy;
use crate::deliver::guard::Guard;

type ToProxy = HttpsConnector<HttpConnector>;
type TunnelError = <Tunnel<ToProxy> as Service<Uri>>::Error;
type Stream = <ToProxy as Service<Uri>>::Response;

/// The proxy could not reach the receiver.
#[derive(Debug, thiserror::Error)]
#[error("no connection through the proxy")]
pub struct NoTunnel;

/// The proxy itself failed. The receiver is not to blame.
#[derive(Debug, thiserror::Error)]
#[error("delivery.proxy: {0}")]
pub struct ProxyFault(String);

/// Opens tunnels through the proxy.
#[derive(Clone)]
pub struct Tunnels {
    guard: Guard,
    tunnel: Tunnel<ToProxy>,
}

impl Tunnels {
    pub fn new(guard: Guard, proxy: &Proxy, to_proxy: ToProxy) -> anyhow::Result<Tunnels> {
        let mut tunnel = Tunnel::new(proxy.url.as_str().parse().context("delivery.proxy")?, to_proxy);
        if let Some(authorization) = &proxy.authorization {
            let value = HeaderValue::from_str(authorization.expose_secret()).context("delivery.proxy")?;
            tunnel = tunnel.with_auth(value);
        }
        Ok(Tunnels { guard, tunnel })
    }

    /// Opens a tunnel to the first of the receiver's addresses that the proxy reaches. Plain http uses a tunnel too: in a request
    /// to the proxy itself, the address would have to replace the `Host`.
    pub async fn open(&self, url: &Uri) -> Result<Stream, Box<dyn Error + Send + Sync>> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_tls = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        for address in self.guard.resolve(host, port).await? {
            let to = Uri::builder().scheme("https").authority(address.to_string()).path_and_query("/").build()?;
            match self.tunnel.clone().oneshot(to).await {
                Ok(stream) => return Ok(stream),
                Err(TunnelError::TunnelUnsuccessful) => {}
                Err(error) => return Err(ProxyFault(with_root_cause(&error)).into()),
            }
        }
        Err(NoTunnel.into())
    }
}

/// An error's message, followed by that of its root cause.
fn with_root_cause(error: &(dyn Error + 'static)) -> String {
    match std::iter::successors(error.source(), |cause| (**cause).source()).last() {
        Some(root) => format!("{error}: {root}"),
        None => error.to_string(),
    }
}
