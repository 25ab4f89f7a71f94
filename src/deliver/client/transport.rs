//! Sends requests over connections that are reused, and a second time over a new one if the first
//! attempt was not processed.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::ext::on_informational;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::allowance::HEAD_BYTES;
use super::connection::{Connection, Exchange, watch};
use super::connector::{Connector, connector};
use super::failure::{Failure, Resend};
use crate::deliver::settings::Settings;

/// Bytes that a receiver may send ahead of what is read, on one HTTP/2 stream.
const HTTP2_STREAM_BYTES: u32 = 64 << 10;
/// The same for all streams of one HTTP/2 connection together.
const HTTP2_CONNECTION_BYTES: u32 = 1 << 20;
/// How long idle connections stay open. Some servers close theirs after five seconds: with a
/// shorter time, few requests are sent on a connection that the server is closing.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// How long the client may process what was received on a connection that has ended. Requests for
/// which it has found no response then will not get one.
const PROCESSING: Duration = Duration::from_millis(250);

type HttpClient = Client<Connector, Full<Bytes>>;

/// The HTTP client of the process. Clones share its connections.
#[derive(Clone)]
pub struct Transport {
    pooled: HttpClient,
    /// Opens a connection for each request.
    unpooled: HttpClient,
}

impl Transport {
    pub fn new(settings: &Settings, tls: rustls::ClientConfig) -> anyhow::Result<Transport> {
        let connector = connector(settings, tls)?;
        Ok(Transport {
            // All requests in flight may go to one receiver, and each leaves an idle connection
            // behind.
            pooled: client(settings, settings.concurrency, connector.clone()),
            unpooled: client(settings, 0, connector),
        })
    }

    /// Sends a POST request and waits for the head of the response. Sends it again on a new
    /// connection if it was certainly not processed, or if the receiver closed a connection that
    /// others had used: then a receiver that has processed the first request recognises the
    /// delivery by its id.
    pub async fn send(
        &self,
        url: &Uri,
        headers: impl Fn() -> HeaderMap,
        body: &Bytes,
    ) -> Result<Response, Failure> {
        let request = || {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = url.clone();
            *request.headers_mut() = headers();
            request
                .headers_mut()
                .insert(ACCEPT, HeaderValue::from_static("*/*"));

            request
        };

        // Pinned: a function that takes a future by value holds it twice.
        let (sent, opened) = {
            let sending = pin!(send_once(&self.pooled, request()));
            watch(sending).await
        };
        let failure = match sent {
            Err(failure) => failure,
            sent => return sent,
        };

        let is_reused = failure
            .connection
            .as_ref()
            .is_some_and(|used| used.is_reused(opened.as_ref()));

        match failure.resend {
            Resend::Always => send_once(&self.unpooled, request()).await,
            Resend::IfReused if is_reused => send_once(&self.unpooled, request()).await,
            Resend::IfReused | Resend::Never => Err(failure),
        }
    }
}

fn client(settings: &Settings, idle: usize, connector: Connector) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(idle)
        .pool_idle_timeout(POOL_IDLE)
        // The next connection of the pool may have been closed too.
        .retry_canceled_requests(false)
        // Header names as the documentation spells them, for receivers that compare them
        // case-sensitively.
        .http1_title_case_headers(true)
        .http1_max_buf_size(HEAD_BYTES)
        .http2_initial_stream_window_size(HTTP2_STREAM_BYTES)
        .http2_initial_connection_window_size(HTTP2_CONNECTION_BYTES)
        // Without these, a dead HTTP/2 connection would fail all requests that share it until the
        // kernel gives up on it.
        .http2_keep_alive_interval(settings.timeout / 2)
        .http2_keep_alive_timeout(settings.timeout / 2)
        .build(connector)
}

/// Sends a request once.
async fn send_once(
    client: &HttpClient,
    mut request: Request<Full<Bytes>>,
) -> Result<Response, Failure> {
    let captured = capture_connection(&mut request);
    let interim = captured.clone();

    on_informational(&mut request, move |_| {
        if let Some(connection) = captured_by(&interim) {
            connection.receive_interim();
        }
    });

    let response = client.request(request).map_err(|error| Failure::of(&error));
    let connection = pin!(wait_for_connection(captured.clone()));
    match await_head(response, connection).await {
        (Ok(response), exchange) => Ok(Response {
            response,
            _exchange: exchange,
        }),
        (Err(failure), _) => Err(failure.on(captured_by(&captured))),
    }
}

/// Waits for the head of a response. The client can forget a request that it accepts while its
/// connection ends: then the end of the connection is the result.
async fn await_head<T>(
    response: impl Future<Output = Result<T, Failure>>,
    connection: impl Future<Output = Connection>,
) -> (Result<T, Failure>, Option<Exchange>) {
    let mut exchange = None;
    let lost = async {
        let connection = connection.await;
        exchange = Some(Exchange::begin(connection.clone()));
        connection.ended().await;
        tokio::time::sleep(PROCESSING).await;
    };

    let result = tokio::select! {
        biased;
        result = response => result,
        () = lost => Err(Failure::closed()),
    };

    if let (Ok(_), Some(exchange)) = (&result, &mut exchange) {
        exchange.receive_head();
    }

    (result, exchange)
}

/// Waits until a request is sent on a connection.
async fn wait_for_connection(mut captured: CaptureConnection) -> Connection {
    captured.wait_for_connection_metadata().await;

    match captured_by(&captured) {
        Some(connection) => connection,
        None => std::future::pending().await,
    }
}

fn captured_by(captured: &CaptureConnection) -> Option<Connection> {
    Connection::of(captured.connection_metadata().as_ref()?)
}

/// A response whose head has arrived.
pub struct Response {
    response: hyper::Response<Incoming>,
    _exchange: Option<Exchange>,
}

impl Response {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Returns the next part of the body, until it ends or breaks off.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        loop {
            if let Ok(data) = self.response.frame().await?.ok()?.into_data() {
                return Some(data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::super::connection::Uncharged;
    use super::*;

    #[tokio::test]
    async fn a_request_that_the_client_forgets_ends_with_its_connection() {
        let connection = Connection::new(true, Uncharged::default());
        let waiting = await_head::<()>(pending(), ready(connection.clone()));
        let ending = async { connection.end() };
        let ((result, _), ()) = tokio::join!(waiting, ending);
        assert_eq!(result.unwrap_err().resend, Resend::IfReused);
    }

    #[tokio::test]
    async fn a_response_that_is_found_after_the_end_of_its_connection_counts() {
        let connection = Connection::new(true, Uncharged::default());
        connection.end();

        let response = async {
            tokio::task::yield_now().await;
            Ok(7)
        };

        let (result, exchange) = await_head(response, ready(connection)).await;
        assert!(result.is_ok_and(|response| response == 7) && exchange.is_some());
    }
}
