//! Serves a router on a listener, within limits on connections, requests and time.

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceExt, service_fn};

use super::clients::{Client, Clients, Evict, Occupied, Registration, SilenceLimits};
use super::problem::Problem;
use crate::config::Http;
use crate::store::cancel_on_drop;
use crate::telemetry::{self, Condition};

/// Concurrent requests of one HTTP/2 connection.
const STREAMS: u32 = 32;
/// For each connection, and thus the largest request head: the default of 400 KiB would be 400 MiB for 1,000 connections.
const READ_BUFFER: usize = 64 << 10;
/// How long a request waits for a permit while as many as allowed are in progress.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two attempts to disconnect a client in favour of a new one.
const EVICTION_PAUSE: Duration = Duration::from_millis(50);
/// How long the response to a request above a rate limit waits. A client that repeats requests without a pause then sends fewer.
const REJECTION_DELAY: Duration = Duration::from_millis(500);
/// The most such responses that wait at a time. Others are sent at once.
const DELAYED_REJECTIONS: usize = 128;
/// How long the clients of ended streams have to read their end at shutdown. Much less than `shutdown.drain`.
const LAST_READ: Duration = Duration::from_secs(5);
/// The pause after `accept` fails, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}, set by {setting}: {source}")]
    Bind { address: SocketAddr, setting: &'static str, source: std::io::Error },
    #[error(transparent)]
    Serve(#[from] std::io::Error),
}

/// The two steps of a listener's shutdown.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Requests are still handled, and each response closes its connection.
    pub announced: CancellationToken,
    /// No connection is accepted any more.
    pub closed: CancellationToken,
}

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    pub connections: usize,
    /// Requests in progress, over all connections.
    pub requests: usize,
    pub silence: SilenceLimits,
    /// The time limit of a request.
    pub request_timeout: Duration,
    /// How long the response to a request above a rate limit waits.
    pub rejection_delay: Duration,
}

impl ServeLimits {
    pub fn new(http: &Http, request_timeout: Duration) -> ServeLimits {
        ServeLimits {
            connections: http.max_connections,
            requests: http.max_requests,
            silence: SilenceLimits { header: http.header_timeout.0, idle: http.idle_timeout.0 },
            request_timeout,
            rejection_delay: REJECTION_DELAY,
        }
    }
}

/// Binds the address, so that a port in use is reported before anything starts. The returned future serves until `ending`, then waits
/// for the requests in progress.
pub async fn serve(
    address: SocketAddr,
    setting: &'static str,
    router: Router,
    limits: ServeLimits,
    ending: Ending,
) -> Result<impl Future<Output = Result<(), ServeError>> + Send, ServeError> {
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, setting, source })?;
    tracing::info!(address = %listener.local_addr()?, setting, "listening");
    let Ending { announced, closed } = ending;
    // Closes connections with their next response, so that clients open new ones before requests on the old ones fail.
    let router = router.layer(map_response(move |mut response: Response| {
        if announced.is_cancelled() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        ready(response)
    }));
    let server = Server {
        router,
        limits,
        clients: Clients::default(),
        requests: Arc::new(Semaphore::new(limits.requests)),
        rejections: Arc::new(Semaphore::new(DELAYED_REJECTIONS)),
        connections: Arc::new(Semaphore::new(limits.connections)),
        closed,
        failing: Arc::default(),
    };
    Ok(async move {
        server.run(listener).await;
        Ok(())
    })
}

#[derive(Clone)]
struct Server {
    router: Router,
    limits: ServeLimits,
    clients: Clients,
    requests: Arc<Semaphore>,
    /// For responses to requests above a rate limit, which wait.
    rejections: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    closed: CancellationToken,
    failing: Arc<Condition>,
}

/// Polls a future, and before each poll lets other threads run that wait for the processor. Linux protects a running thread, even one of
/// low priority, from those that wake up until its time slice ends: in a burst of requests, each step of a delivery would wait for that.
async fn yielding<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        std::thread::yield_now();
        future.as_mut().poll(context)
    })
    .await
}

impl Server {
    async fn run(self, listener: TcpListener) {
        let tasks = TaskTracker::new();
        while let Some((stream, permit)) = self.closed.run_until_cancelled(self.accept(&listener)).await {
            let (server, registration) = (self.clone(), self.clients.register(self.connections.clone(), permit));
            tasks.spawn(yielding(async move {
                server.connection(stream, &registration).await;
                drop(registration);
            }));
        }
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }

    /// Accepts the next client with a connection permit. If there is none, a client that the server waits for is disconnected.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, OwnedSemaphorePermit) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    if self.failing.ends() {
                        tracing::info!("connections can be accepted again");
                    }
                    return (stream, self.connection_permit().await);
                }
                // The client disconnected before it was served.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(error) => {
                    if self.failing.begins() {
                        tracing::error!(%error, "connections cannot be accepted; retrying");
                    }
                    self.clients.evict(Evict::Waiting);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection_permit(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = self.connections.clone().try_acquire_owned() {
                return permit;
            }
            if self.clients.evict(Evict::Waiting) {
                metrics::counter!(telemetry::HTTP_REFUSED, "limit" => "connections").increment(1);
            }
            let permit = self.connections.clone().acquire_owned();
            if let Ok(Ok(permit)) = tokio::time::timeout(EVICTION_PAUSE, permit).await {
                return permit;
            }
        }
    }

    async fn connection(&self, stream: TcpStream, registration: &Registration) {
        let (server, client) = (self.clone(), registration.client.clone());
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let (server, client) = (server.clone(), client.clone());
            async move { Ok::<Response, Infallible>(server.respond(request.map(Body::new), &client).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().max_buf_size(READ_BUFFER);
        builder.http2().max_concurrent_streams(STREAMS);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
        let mut expired = pin!(registration.client.expired(self.limits.silence));
        let mut is_ending = false;
        let has_waited = registration.client.clone();
        let last_read = async move {
            match has_waited.has_been_parked() {
                true => tokio::time::sleep(LAST_READ).await,
                false => std::future::pending().await,
            }
        };
        let mut last_read = pin!(last_read);
        loop {
            tokio::select! {
                // Errors of a client are not logged.
                _ = connection.as_mut() => return,
                () = &mut expired => return,
                () = &mut last_read, if is_ending => return,
                () = self.closed.cancelled(), if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    /// Handles a request. Dropped when the client disconnects, which cancels the request's statements.
    async fn respond(&self, request: Request, client: &Arc<Client>) -> Response {
        let _handling = client.handling();
        let Some(permit) = self.request_permit().await else {
            metrics::counter!(telemetry::HTTP_REFUSED, "limit" => "requests").increment(1);
            return Problem::overloaded().into_response();
        };
        let mut request = request.map(|body| client.watch_request(body));
        let occupied = Occupied::new(client, permit);
        request.extensions_mut().insert(occupied.clone());
        let response = cancel_on_drop(self.router.clone().oneshot(request));
        let response = match tokio::time::timeout(self.limits.request_timeout, response).await {
            Ok(Ok(response)) => response.map(|body| client.watch_response(body)),
            Ok(Err(never)) => match never {},
            Err(_) => Problem::took_too_long().into_response(),
        };
        // Releases the permit: from here on the request costs only memory.
        drop(occupied);
        if response.status() == StatusCode::TOO_MANY_REQUESTS
            && let Ok(_waiting) = self.rejections.try_acquire()
        {
            let _ = self.closed.run_until_cancelled(tokio::time::sleep(self.limits.rejection_delay)).await;
        }
        response
    }

    /// Waits for a request permit. While there is none, clients that do not send the rest of their body are disconnected.
    async fn request_permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.requests.clone().try_acquire_owned() {
            return Some(permit);
        }
        let mut acquired = pin!(self.requests.clone().acquire_owned());
        let deadline = Instant::now() + PERMIT_TIMEOUT;
        while Instant::now() < deadline {
            self.clients.evict(Evict::WaitingInRequest);
            if let Ok(permit) = tokio::time::timeout(EVICTION_PAUSE, acquired.as_mut()).await {
                return permit.ok();
            }
        }
        None
    }
}
