//! Serves a router on a listener, within limits on connections, requests, unsent responses and
//! time.
//!
//! Only HTTP/1.1: over HTTP/2, one client could have many requests whose responses it does not
//! read, and what distinguishes a slow client from a hostile one would be hidden in the frames.
//! Proxies use HTTP/1.1 for their backends anyway.

use std::convert::Infallible;
use std::future::ready;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceExt, service_fn};

use super::body;
use super::budget::{Budget, Exhausted, PATIENCE, Share, Unsent};
use super::clients::{
    ClientConnection, Clients, ConnectionPhase, Evict, Occupied, Registration, SilenceLimits,
};
use super::middleware::RequestId;
use super::problem::Problem;
use super::wire::{Produced, Watched};
use crate::config::Http;
use crate::store::cancel_on_drop;
use crate::telemetry::{self, Activity};

/// For each connection, and thus the largest request head. The default of 400 KiB would be 400 MiB
/// for 1,000 connections.
const BUFFER: usize = 32 << 10;
/// The kernel's buffers of each connection, whose memory counts as the process's in a container. By
/// default they may grow to megabytes.
const KERNEL_BUFFER: u32 = 64 << 10;
/// Connections that may wait for `accept`, as in the standard library.
const BACKLOG: u32 = 1_024;
/// The bytes of all large request bodies in memory.
const LARGE_BODIES: usize = 8 << 20;
/// Responses up to this length are not counted. No change has a longer one: it would be refused
/// after it was made.
const SHORT_RESPONSE: u64 = 64 << 10;
/// The pause between two attempts to disconnect a client in favour of a new one.
const EVICTION_PAUSE: Duration = Duration::from_millis(50);
/// How long the response to a request above a rate limit waits. A client that repeats requests
/// without a pause then sends fewer.
const REJECTION_DELAY: Duration = Duration::from_millis(500);
/// The most such responses that wait at a time. Others are sent at once.
const DELAYED_REJECTIONS: usize = 128;
/// The pause after `accept` fails, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}, set by {setting}: {source}")]
    Bind {
        address: SocketAddr,
        setting: &'static str,
        source: std::io::Error,
    },
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
            silence: SilenceLimits {
                header: http.header_timeout.0,
                idle: http.idle_timeout.0,
            },
            request_timeout,
            rejection_delay: REJECTION_DELAY,
        }
    }
}

/// Binds the address, so that a port in use is reported before anything starts. The returned future
/// serves until `ending`, then waits for the requests in progress.
pub async fn serve(
    address: SocketAddr,
    setting: &'static str,
    router: Router,
    limits: ServeLimits,
    ending: Ending,
) -> Result<impl Future<Output = Result<(), ServeError>> + Send, ServeError> {
    let listener = listen(address).map_err(|source| ServeError::Bind {
        address,
        setting,
        source,
    })?;

    tracing::info!(address = %listener.local_addr()?, setting, "listening");
    let Ending { announced, closed } = ending;

    // Closes connections with their next response, so that clients open new ones before requests on
    // the old ones fail.
    let router = router.layer(map_response(move |mut response: Response| {
        if announced.is_cancelled() {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }

        ready(response)
    }));

    let server = HttpServer {
        router,
        limits,
        clients: Clients::default(),
        budget: Arc::new(Budget::new(limits.requests)),
        bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
        rejections: Arc::new(Semaphore::new(DELAYED_REJECTIONS)),
        connections: Arc::new(Semaphore::new(limits.connections)),
        closed,
        accepting: Arc::new(Activity::new("accepting connections")),
    };

    Ok(async move {
        server.run(listener).await;
        Ok(())
    })
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };

    socket.set_reuseaddr(true)?;

    // Connections inherit the buffers of their listener.
    socket.set_send_buffer_size(KERNEL_BUFFER)?;
    socket.set_recv_buffer_size(KERNEL_BUFFER)?;
    socket.bind(address)?;

    socket.listen(BACKLOG)
}

#[derive(Clone)]
struct HttpServer {
    router: Router,
    limits: ServeLimits,
    clients: Clients,
    budget: Arc<Budget>,
    bodies: Arc<Semaphore>,
    /// For responses to requests above a rate limit, which wait.
    rejections: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    closed: CancellationToken,
    accepting: Arc<Activity>,
}

impl HttpServer {
    async fn run(self, listener: TcpListener) {
        let tasks = TaskTracker::new();

        while let Some((stream, permit)) = self
            .closed
            .run_until_cancelled(self.accept(&listener))
            .await
        {
            let server = self.clone();
            let registration = self.clients.register(self.connections.clone(), permit);
            tasks.spawn(async move { server.connection(stream, &registration).await });
        }

        drop(listener);
        tasks.close();
        tasks.wait().await;
    }

    /// Accepts the next client with a connection permit. If there is none, a client that the server
    /// waits for is disconnected.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, OwnedSemaphorePermit) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.accepting.succeeded();

                    return (stream, self.connection_permit().await);
                }
                // The client disconnected before it was served.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
                    ) => {}
                Err(error) => {
                    self.accepting.failed(&error);

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
        let server = self.clone();
        let client = registration.client.clone();

        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let server = server.clone();
            let client = client.clone();
            async move {
                Ok::<Response, Infallible>(server.respond(request.map(Body::new), &client).await)
            }
        });

        let stream = TokioIo::new(Watched {
            io: stream,
            observer: registration.client.clone(),
        });

        let mut builder = http1::Builder::new();
        let connection = builder
            .max_buf_size(BUFFER)
            .serve_connection(stream, TowerToHyperService::new(service));
        let mut connection = pin!(connection);
        let mut expired = pin!(registration.client.expired(self.limits.silence));
        let mut is_ending = false;

        loop {
            tokio::select! {
                // Errors of a client are not logged.
                _ = connection.as_mut() => return,
                () = &mut expired => return,
                () = self.closed.cancelled(), if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    /// Handles a request. Dropped when the client disconnects, which cancels the request's
    /// statements.
    async fn respond(&self, mut request: Request, client: &Arc<ClientConnection>) -> Response {
        let id = RequestId::of(&mut request);
        let response = match self.handle(request, client).await {
            Ok((response, occupied)) => {
                let reserved = self.reserve(response, &occupied.share()).await;
                // In progress until here: responses whose bytes are not counted yet are in memory
                // too.
                occupied.release();
                reserved
            }
            Err(problem) => Err(problem),
        };

        let (response, unsent) = response.unwrap_or_else(|problem| (problem.into_response(), None));
        let response = id.mark(response).await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS
            && let Ok(_waiting) = self.rejections.try_acquire()
        {
            let _ = self
                .closed
                .run_until_cancelled(tokio::time::sleep(self.limits.rejection_delay))
                .await;
        }

        client.respond(unsent);
        response.map(|body| {
            Body::new(Produced {
                body,
                client: client.clone(),
            })
        })
    }

    /// Returns the response, and what the request occupies.
    async fn handle(
        &self,
        request: Request,
        client: &Arc<ClientConnection>,
    ) -> Result<(Response, Occupied), Problem> {
        client.enter(ConnectionPhase::Body);
        let (parts, body) = request.into_parts();
        let body = if body.is_end_stream() {
            body
        } else {
            body::receive(body, |bytes| self.body_permit(bytes, client)).await
        };

        client.enter(ConnectionPhase::Handled);
        let occupied = Occupied::begin(client, &self.budget)
            .await
            .inspect_err(|_| refused("requests"))?;
        let mut request = Request::from_parts(parts, body);

        request.extensions_mut().insert(occupied.clone());
        let response = cancel_on_drop(self.router.clone().oneshot(request));
        let response = match tokio::time::timeout(self.limits.request_timeout, response).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_) => Problem::took_too_long().into_response(),
        };

        Ok((response, occupied))
    }

    /// Counts the bytes of a response until they are written. While there are too many, clients
    /// that do not take theirs are disconnected.
    async fn reserve(
        &self,
        response: Response,
        share: &Arc<Share>,
    ) -> Result<(Response, Option<Unsent>), Problem> {
        // Only streams of events have no length, and each holds at most one page. What anybody may
        // read is short, or in memory once.
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        if bytes <= SHORT_RESPONSE || share.is_anonymous {
            return Ok((response, None));
        }

        let reserve = || {
            self.budget.reserve(share, bytes).map_err(|exhausted| {
                Evict::NotReading((exhausted == Exhausted::Share).then_some(share))
            })
        };

        match self.patiently(reserve).await {
            Some(unsent) => Ok((response, Some(unsent))),
            None => {
                refused("unsent");
                Err(share.refusal())
            }
        }
    }

    /// Repeats what fails for lack of memory for [`PATIENCE`], and disconnects a client each time.
    async fn patiently<'a, T>(&self, attempt: impl Fn() -> Result<T, Evict<'a>>) -> Option<T> {
        let deadline = Instant::now() + PATIENCE;

        loop {
            match attempt() {
                Ok(done) => return Some(done),
                Err(_) if Instant::now() > deadline => return None,
                Err(evict) => self.clients.evict(evict),
            };
            tokio::time::sleep(EVICTION_PAUSE).await;
        }
    }

    /// Waits for the permit of a large body. While there is none, clients that send theirs slowly
    /// are disconnected.
    async fn body_permit(
        &self,
        bytes: usize,
        client: &ClientConnection,
    ) -> Result<OwnedSemaphorePermit, Problem> {
        client.enter(ConnectionPhase::Handled);
        let acquire = || {
            let permits = self.bodies.clone().try_acquire_many_owned(bytes as u32);
            permits.map_err(|_| Evict::SendingSlowly)
        };

        let permit = self.patiently(acquire).await.ok_or_else(|| {
            refused("requests");
            Problem::overloaded()
        })?;
        client.enter(ConnectionPhase::Body);
        Ok(permit)
    }
}

fn refused(limit: &'static str) {
    metrics::counter!(telemetry::HTTP_REFUSED, "limit" => limit).increment(1);
}
