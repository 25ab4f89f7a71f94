//! The two ways to a receiver behind one interface: reqwest straight to it, and hyper through tunnels of `delivery.proxy`.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Uri;
use hyper::body::Incoming;
use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};

use super::failure::Failure;
use super::tunnel::TunnelClient;
use super::{direct, tunnel};
use crate::config::Proxy;
use crate::deliver::guard::Guard;

/// Where a request goes, parsed once for all of a webhook's requests.
#[derive(Clone, Debug)]
pub struct Target {
    url: Url,
    uri: Uri,
}

impl Target {
    /// What one client takes and the other does not, neither is asked for.
    pub fn new(url: Url) -> Result<Target, hyper::http::uri::InvalidUri> {
        Ok(Target { uri: url.as_str().parse()?, url })
    }
}

#[derive(Clone)]
pub enum Transport {
    Direct(reqwest::Client),
    Tunnel(Box<TunnelClient>),
}

impl Transport {
    /// Keeps at most `connections` idle connections to a receiver: as many as there may be requests at a time.
    pub fn new(
        guard: Guard,
        proxy: Option<&Proxy>,
        tls: rustls::ClientConfig,
        timeout: Duration,
        connections: usize,
    ) -> anyhow::Result<Transport> {
        Ok(match proxy {
            None => Transport::Direct(direct::client(guard, tls, timeout, connections)?),
            Some(proxy) => Transport::Tunnel(tunnel::client(guard, proxy, tls, timeout, connections)?.into()),
        })
    }

    /// Sends a POST request and waits for the head of its answer.
    pub async fn send(&self, target: &Target, headers: HeaderMap, body: Bytes) -> Result<Response, Failure> {
        match self {
            Transport::Direct(client) => {
                let sent = direct::send(client, target.url.clone(), headers, body).await;
                sent.map(Response::Direct).map_err(|error| Failure::of_direct(&error))
            }
            Transport::Tunnel(client) => {
                let sent = tunnel::send(client, target.uri.clone(), headers, body).await;
                sent.map(Response::Tunnel).map_err(|error| Failure::of_tunnel(&error))
            }
        }
    }
}

pub enum Response {
    Direct(reqwest::Response),
    Tunnel(hyper::Response<Incoming>),
}

impl Response {
    pub fn status(&self) -> StatusCode {
        match self {
            Response::Direct(response) => response.status(),
            Response::Tunnel(response) => response.status(),
        }
    }

    /// The next part of the body; none at its end, and where it breaks off.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        match self {
            Response::Direct(response) => response.chunk().await.ok()?,
            Response::Tunnel(response) => loop {
                if let Ok(data) = response.frame().await?.ok()?.into_data() {
                    return Some(data);
                }
            },
        }
    }
}
