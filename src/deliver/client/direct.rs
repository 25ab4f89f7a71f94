//! Requests straight to receivers, by reqwest. Names are resolved by the guard, which gives out checked addresses alone;
//! literal addresses ask no resolver and are checked before a request is made. Nothing of the environment is followed.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Method, Request, Response, Url};
use tower::Service;
use tower::layer::layer_fn;

use super::reuse;
use super::{BUFFER_BYTES, HTTP2_BUFFER_BYTES, KEEPALIVE, POOL_IDLE};
use crate::deliver::guard::Guard;

/// The one client of the process.
pub fn client(
    guard: Guard,
    mut tls: rustls::ClientConfig,
    timeout: Duration,
    connections: usize,
) -> anyhow::Result<reqwest::Client> {
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Checked(guard))
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        // Shared by the addresses of a name, so that one that is silent leaves time for the others.
        .connect_timeout(timeout)
        .connector_layer(layer_fn(Noted))
        .tcp_nodelay(true)
        .tcp_keepalive(KEEPALIVE)
        .pool_max_idle_per_host(connections)
        .pool_idle_timeout(POOL_IDLE)
        // Names as the documentation writes them, for receivers that compare them so.
        .http1_title_case_headers()
        .http2_initial_stream_window_size(BUFFER_BYTES as u32)
        .http2_initial_connection_window_size(HTTP2_BUFFER_BYTES)
        // One dead HTTP/2 connection would fail all that share it, until the kernel gives up on it.
        .http2_keep_alive_interval(timeout / 2)
        .http2_keep_alive_timeout(timeout / 2);
    Ok(client.build()?)
}

pub async fn send(
    client: &reqwest::Client,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, reqwest::Error> {
    let mut request = Request::new(Method::POST, url);
    *request.headers_mut() = headers;
    *request.body_mut() = Some(body.into());
    client.execute(request).await
}

/// Gives no address that the guard refuses: what is dialled has been checked.
struct Checked(Guard);

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            // The URL's port takes the place of 0.
            let addresses = guard.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Connects as `S` does, and notes that it did.
#[derive(Clone)]
struct Noted<S>(S);

impl<S: Service<T>, T> Service<T> for Noted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: T) -> S::Future {
        reuse::note_connecting();
        self.0.call(target)
    }
}
