//! References for deliveries: loops that post the same delivery repeatedly, without Walhook.
//!
//! [`Bare`] uses the HTTP client that deliveries use. [`Bare::raw_rate`] writes prepared bytes to
//! sockets, which shows how many requests the receiver can accept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::receiver::{ANSWER, Receiver};

/// The header by which the receiver counts deliveries. The loops send another header of the same
/// length, so that their requests are not counted.
const COUNTED: &str = "x-webhook-delivery";
const NOT_COUNTED: &str = "x-webhook-repeated";
/// Headers that the HTTP client adds.
const SET_BY_CLIENT: [&str; 2] = ["host", "content-length"];

/// A received delivery, parsed.
#[derive(Clone, Debug)]
struct Delivery {
    headers: HeaderMap,
    body: Bytes,
    /// The whole request, as plain sockets send it.
    bytes: Bytes,
}

impl Delivery {
    fn parse(text: &str) -> anyhow::Result<Delivery> {
        let (head, body) = text
            .split_once("\r\n\r\n")
            .context("the sample has no end of its headers")?;
        let (first, lines) = head
            .split_once("\r\n")
            .context("the sample has no headers")?;
        let mut headers = HeaderMap::new();
        let mut bytes = format!("{first}\r\n");

        for line in lines.split("\r\n") {
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            let name = if name.eq_ignore_ascii_case(COUNTED) {
                NOT_COUNTED
            } else {
                name
            };

            bytes.push_str(&format!("{name}:{value}\r\n"));

            if !SET_BY_CLIENT
                .iter()
                .any(|other| name.eq_ignore_ascii_case(other))
            {
                headers.append(
                    HeaderName::from_bytes(name.as_bytes())?,
                    HeaderValue::from_str(value.trim())?,
                );
            }
        }

        bytes.push_str(&format!("\r\n{body}"));
        Ok(Delivery {
            headers,
            body: Bytes::copy_from_slice(body.as_bytes()),
            bytes: bytes.into(),
        })
    }
}

/// A loop of POSTs with a hyper client that is configured like the one for deliveries.
#[derive(Clone)]
pub struct Bare {
    client: Client<HttpConnector, Full<Bytes>>,
    /// Parsed once, as the URL of a webhook is.
    url: Uri,
    delivery: Delivery,
}

impl Bare {
    /// Creates a loop that repeats the headers and body of the first delivery that this receiver
    /// received.
    pub async fn new(receiver: &mut Receiver) -> anyhow::Result<Bare> {
        let delivery = Delivery::parse(&receiver.sample().await?)?;
        let mut connector = HttpConnector::new();

        connector.set_nodelay(true);
        let mut builder = Client::builder(TokioExecutor::new());
        let client = builder
            .http1_title_case_headers(true)
            .pool_max_idle_per_host(1_024)
            .build(connector);
        Ok(Bare {
            client,
            url: receiver.url().parse()?,
            delivery,
        })
    }

    /// Posts once and returns how long it took.
    pub async fn post(&self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let mut request = Request::new(Full::new(self.delivery.body.clone()));

        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.delivery.headers.clone();

        let answer = self
            .client
            .request(request)
            .await
            .context("the bare loop")?;
        answer.into_body().collect().await?;

        Ok(started.elapsed())
    }

    /// Posts for `length` with `concurrency` requests in flight and returns the requests per
    /// second.
    pub async fn rate(&self, concurrency: usize, length: Duration) -> anyhow::Result<f64> {
        rate(vec![self.clone(); concurrency], length).await
    }

    /// Like [`Bare::rate`], with prepared bytes on plain sockets: the capacity of the receiver.
    pub async fn raw_rate(
        &self,
        receiver: &Receiver,
        concurrency: usize,
        length: Duration,
    ) -> anyhow::Result<f64> {
        let mut sockets = Vec::with_capacity(concurrency);

        for _ in 0..concurrency {
            let stream = TcpStream::connect(receiver.address()).await?;
            stream.set_nodelay(true)?;
            sockets.push(Socket {
                stream,
                bytes: self.delivery.bytes.clone(),
            });
        }

        rate(sockets, length).await
    }
}

/// One of the requests in flight.
trait Loop: Send + 'static {
    fn once(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

impl Loop for Bare {
    async fn once(&mut self) -> anyhow::Result<()> {
        self.post().await.map(drop)
    }
}

struct Socket {
    stream: TcpStream,
    bytes: Bytes,
}

impl Loop for Socket {
    async fn once(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.bytes).await?;
        let mut answer = [0; ANSWER.len()];

        self.stream.read_exact(&mut answer).await?;
        ensure!(
            answer == ANSWER,
            "the receiver answers {:?}",
            String::from_utf8_lossy(&answer)
        );

        Ok(())
    }
}

async fn rate<L: Loop>(loops: Vec<L>, length: Duration) -> anyhow::Result<f64> {
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();

    let tasks: Vec<_> = loops
        .into_iter()
        .map(|mut one| {
            let done = done.clone();
            tokio::spawn(async move {
                while started.elapsed() < length {
                    one.once().await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }

                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }

    Ok(done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loops_send_as_many_bytes_as_a_delivery_and_their_requests_are_not_counted() {
        let sample = "POST / HTTP/1.1\r\nContent-Type: application/json\r\nX-Webhook-Delivery: d\r\n\
            Host: 127.0.0.1:1\r\nContent-Length: 2\r\n\r\n{}";
        let delivery = Delivery::parse(sample).unwrap();

        assert_eq!(delivery.bytes.len(), sample.len());
        assert_eq!(
            (&delivery.body[..], delivery.headers.len()),
            (&b"{}"[..], 2)
        );
        assert!(
            !String::from_utf8_lossy(&delivery.bytes)
                .to_ascii_lowercase()
                .contains(COUNTED)
        );
        assert_eq!(delivery.headers[NOT_COUNTED], "d");
        assert_eq!(COUNTED.len(), NOT_COUNTED.len());
    }
}
