//! The two ways to a receiver behind one interface: reqwest directly, and hyper through tunnels of `delivery.proxy`.

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, Full};
use hyper::Uri;
use hyper::body::Incoming;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};

use super::failure::Failure;
use super::tunnel::TunnelClient;
use super::{direct, tunnel};
use crate::deliver::settings::Settings;

/// The URL of requests, in the types of both clients. Parsed once for all of a webhook's requests.
#[derive(Clone, Debug)]
pub struct Target {
    url: Url,
    uri: Uri,
}

impl Target {
    /// Fails for a URL that one of the two clients would refuse.
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
    pub fn new(settings: &Settings, tls: rustls::ClientConfig) -> anyhow::Result<Transport> {
        Ok(match &settings.proxy {
            None => Transport::Direct(direct::client(settings, tls)?),
            Some(proxy) => Transport::Tunnel(Box::new(tunnel::client(settings, proxy, tls)?)),
        })
    }

    /// Sends a POST request and waits for the head of the response.
    pub async fn send(&self, target: &Target, headers: HeaderMap, body: Bytes) -> Result<Response, Failure> {
        match self {
            Transport::Direct(client) => {
                let mut request = reqwest::Request::new(Method::POST, target.url.clone());
                *request.headers_mut() = headers;
                *request.body_mut() = Some(body.into());
                let sent = client.execute(request).await;
                sent.map(Response::Direct).map_err(|error| Failure::of_direct(&error))
            }
            Transport::Tunnel(client) => {
                let mut request = hyper::Request::new(Full::new(body));
                *request.method_mut() = Method::POST;
                *request.uri_mut() = target.uri.clone();
                *request.headers_mut() = headers;
                // As reqwest sends it.
                request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
                let sent = client.request(request).await;
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

    pub fn headers(&self) -> &HeaderMap {
        match self {
            Response::Direct(response) => response.headers(),
            Response::Tunnel(response) => response.headers(),
        }
    }

    /// Returns the parts of the body until it ends or breaks off.
    pub fn into_chunks(self) -> impl Stream<Item = Bytes> {
        unfold(self, async |mut response| Some((response.chunk().await?, response)))
    }

    async fn chunk(&mut self) -> Option<Bytes> {
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
