//! Requests directly to receivers, with reqwest. Names are resolved by the guard, which returns checked addresses only; literal
//! addresses are checked before a request is made. Redirects and the environment's proxies are ignored.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use tower::util::MapResponseLayer;

use super::limits::{BUFFER_BYTES, HTTP2_BUFFER_BYTES, KEEPALIVE, POOL_IDLE};
use super::reuse;
use crate::deliver::guard::Guard;
use crate::deliver::settings::Settings;

/// Creates the HTTP client of the process.
pub fn client(settings: &Settings, mut tls: rustls::ClientConfig) -> anyhow::Result<reqwest::Client> {
    let timeout = settings.timeout;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(CheckedResolver(settings.guard.clone()))
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        // Divided among the addresses of a name, so that a silent address leaves time for the others.
        .connect_timeout(timeout)
        .connector_layer(MapResponseLayer::new(reuse::noted))
        .tcp_nodelay(true)
        .tcp_keepalive(KEEPALIVE)
        // All requests in flight may go to one receiver, and each leaves an idle connection behind.
        .pool_max_idle_per_host(settings.concurrency)
        .pool_idle_timeout(POOL_IDLE)
        // Header names as the documentation spells them, for receivers that compare them case-sensitively.
        .http1_title_case_headers()
        .http2_initial_stream_window_size(BUFFER_BYTES as u32)
        .http2_initial_connection_window_size(HTTP2_BUFFER_BYTES)
        // Without these, a dead HTTP/2 connection would fail all requests that share it until the kernel gives up on it.
        .http2_keep_alive_interval(timeout / 2)
        .http2_keep_alive_timeout(timeout / 2);
    Ok(client.build()?)
}

/// A resolver that returns only addresses that the guard allows.
struct CheckedResolver(Guard);

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            // reqwest replaces port 0 by the URL's port.
            let addresses = guard.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
