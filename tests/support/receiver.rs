//! A receiver that records every request and responds as scripted. It shares no code with the
//! sender, and computes signatures itself.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, Uri, Version};
use hmac::{Hmac, KeyInit, Mac};
use rustls::ServerConfig;
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::DEADLINE;
use super::tls;

/// How to respond to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    /// Responds with a status, headers and a body.
    Full(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Responds with a status after a delay.
    After(Duration, u16),
    /// Responds with a status after `notify_one` was called, once per request.
    When(Arc<Notify>, u16),
    /// Does not respond.
    Hang,
    /// Closes the connection without a response.
    Reset,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// The path and the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub version: Version,
    pub at: std::time::SystemTime,
}

impl Received {
    pub fn header(&self, name: &str) -> &str {
        let value = self
            .headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name} in {:?}", self.headers));
        value.to_str().expect("a header in ASCII")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub fn data(&self) -> Value {
        self.json()["data"].clone()
    }

    pub fn event(&self) -> &str {
        self.header("x-webhook-event")
    }

    /// The id of the delivery, the same for all attempts.
    pub fn delivery(&self) -> &str {
        self.header("x-webhook-delivery")
    }

    pub fn attempt(&self) -> u32 {
        self.header("x-webhook-attempt").parse().expect("a number")
    }

    pub fn is_signed_with(&self, secret: &str) -> bool {
        self.header("x-webhook-signature") == signature(secret, &self.body)
    }

    /// Asserts what holds for every delivery of any event.
    #[track_caller]
    pub fn assert_sound(&self, secret: &str) {
        assert!(
            self.is_signed_with(secret),
            "the signature is wrong: {self:?}"
        );
        assert_eq!(self.header("content-type"), "application/json");

        let body = self.json();
        assert_eq!(body["event"], self.event());
        assert_eq!(body["timestamp"], self.header("x-webhook-timestamp"));
        assert_eq!(body["webhook_id"], self.header("x-webhook-id"));
        assert!(body["data"].is_object(), "{body}");

        let keys: Vec<&String> = body.as_object().expect("an object").keys().collect();
        assert_eq!(keys.len(), 4, "{keys:?}");
    }
}

/// HMAC-SHA256 in lowercase hexadecimal.
pub fn signature(secret: &str, body: &[u8]) -> String {
    let mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    hex::encode(mac.chain_update(body).finalize().into_bytes())
}

type Script = Box<dyn FnMut(&Received) -> Answer + Send>;

struct Shared {
    requests: Mutex<Vec<Received>>,
    script: Mutex<Script>,
    arrived: Notify,
}

/// A receiver on loopback. Closed when dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    tls: Option<Arc<ServerConfig>>,
    server: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Listens on a free port, and responds with 200 until scripted otherwise.
    pub async fn start() -> Receiver {
        Receiver::start_with(None).await
    }

    /// Like [`Receiver::start`], over TLS.
    pub async fn start_tls(config: Arc<ServerConfig>) -> Receiver {
        Receiver::start_with(Some(config)).await
    }

    async fn start_with(tls: Option<Arc<ServerConfig>>) -> Receiver {
        let port = walhook::private_postgres::free_port().expect("a free port");
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            script: Mutex::new(Box::new(|_| Answer::Status(200))),
            arrived: Notify::new(),
        });

        let mut receiver = Receiver {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            shared,
            tls,
            server: None,
        };

        receiver.open().await;
        receiver
    }

    pub fn url(&self, path: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }

    /// Returns a URL of this receiver with another host name.
    pub fn url_at(&self, host: &str, path: &str) -> String {
        self.url(path).replace(&self.address.ip().to_string(), host)
    }

    /// Listens again on the same port, after `close`.
    pub async fn open(&mut self) {
        assert!(self.server.is_none(), "it listens already");
        let listener = TcpListener::bind(self.address)
            .await
            .expect("the receiver's port");
        let router = Router::new()
            .fallback(receive)
            .with_state(self.shared.clone());
        let tls = self.tls.clone();

        self.server = Some(tokio::spawn(async move {
            match tls {
                Some(config) => tls::serve(listener, config, router).await,
                None => axum::serve(listener, router)
                    .await
                    .expect("serving does not fail"),
            }
        }));
    }

    /// Stops listening, so that connections are refused until `open`.
    pub async fn close(&mut self) {
        let server = self.server.take().expect("it listens");
        server.abort();
        let _ = server.await;
    }

    /// Responds to each request as `script` decides, from now on.
    pub fn answer(&self, script: impl FnMut(&Received) -> Answer + Send + 'static) {
        *self.shared.script.lock().expect("a script does not panic") = Box::new(script);
    }

    pub fn answer_status(&self, status: u16) {
        self.answer(move |_| Answer::Status(status));
    }

    /// Responds with these in turn, then always with the last.
    pub fn answer_in_turn(&self, answers: &[Answer]) {
        let mut answers: VecDeque<Answer> = answers.iter().cloned().collect();
        self.answer(move |_| match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().expect("at least one answer"),
        });
    }

    /// Returns all requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Received> {
        self.shared
            .requests
            .lock()
            .expect("nobody panics with this lock")
            .clone()
    }

    /// Returns all requests so far, and forgets them.
    pub fn take(&self) -> Vec<Received> {
        std::mem::take(
            &mut *self
                .shared
                .requests
                .lock()
                .expect("nobody panics with this lock"),
        )
    }

    pub fn clear(&self) {
        self.shared
            .requests
            .lock()
            .expect("nobody panics with this lock")
            .clear();
    }

    /// Waits until at least `count` requests have arrived. Returns all.
    pub async fn wait_for(&self, count: usize) -> Vec<Received> {
        self.wait_until(&format!("{count} requests"), |requests| {
            requests.len() >= count
        })
        .await
    }

    /// Waits until `count` distinct deliveries have arrived. Returns all requests. Reads each
    /// request only once: reading all at each arrival takes minutes for thousands.
    pub async fn wait_for_deliveries(&self, count: usize) -> Vec<Received> {
        let mut deliveries = HashSet::new();
        let mut read = 0;

        let enough = |requests: &[Received]| {
            deliveries.extend(
                requests[read..]
                    .iter()
                    .map(|request| request.delivery().to_owned()),
            );
            read = requests.len();

            deliveries.len() >= count
        };

        self.wait_until(&format!("{count} deliveries"), enough)
            .await
    }

    /// Waits until the requests are as wanted.
    pub async fn wait_until(
        &self,
        what: &str,
        mut wanted: impl FnMut(&[Received]) -> bool,
    ) -> Vec<Received> {
        let arrive = async {
            loop {
                // Before the check, so that no arrival between check and wait is missed.
                let arrived = self.shared.arrived.notified();
                {
                    let requests = self
                        .shared
                        .requests
                        .lock()
                        .expect("nobody panics with this lock");
                    if wanted(&requests) {
                        return requests.clone();
                    }
                }
                arrived.await;
            }
        };

        tokio::time::timeout(DEADLINE, arrive)
            .await
            .unwrap_or_else(|_| {
                let seen: Vec<String> = self.requests().iter().map(summary).collect();
                panic!(
                    "not within {DEADLINE:?}: {what}. {} were received:\n{}",
                    seen.len(),
                    seen.join("\n")
                );
            })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

fn summary(request: &Received) -> String {
    format!(
        "{} {}",
        request.path,
        String::from_utf8_lossy(&request.body)
    )
}

async fn receive(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let path = uri
        .path_and_query()
        .map_or_else(|| uri.to_string(), ToString::to_string);
    let received = Received {
        path,
        headers,
        body,
        version,
        at: std::time::SystemTime::now(),
    };

    let answer = {
        let mut script = shared.script.lock().expect("a script does not panic");
        let mut requests = shared
            .requests
            .lock()
            .expect("nobody panics with this lock");
        requests.push(received);
        script(requests.last().expect("one was pushed"))
    };

    shared.arrived.notify_waiters();

    match answer {
        Answer::Status(status) => respond(status, Vec::new(), Vec::new()),
        Answer::Full(status, headers, body) => respond(status, headers, body),
        Answer::After(wait, status) => {
            tokio::time::sleep(wait).await;
            respond(status, Vec::new(), Vec::new())
        }
        Answer::When(gate, status) => {
            gate.notified().await;
            respond(status, Vec::new(), Vec::new())
        }
        Answer::Hang => std::future::pending().await,
        // Ends the connection's task, and with it the connection, without the message of a panic.
        Answer::Reset => std::panic::resume_unwind(Box::new(())),
    }
}

fn respond(status: u16, headers: Vec<(&'static str, String)>, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");

    for (name, value) in headers {
        response
            .headers_mut()
            .append(name, value.parse().expect("a header's value"));
    }

    response
}
