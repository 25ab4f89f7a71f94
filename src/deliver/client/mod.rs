//! One HTTP exchange with a receiver, and its end in the words of the delivery log.

mod connect;
mod failure;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use self::connect::Connector;
pub use self::failure::OwnFault;
use self::failure::{classify, failed};
use super::Settings;
use super::guard::Guard;
use super::request::Rendered;
use crate::domain::delivery::{Answer, ErrorKind};
use crate::telemetry::{self, Condition};

/// The answer's body is read this far, so that its connection can be used again; what is longer is cut off.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// What the log keeps of it.
const EXCERPT_BYTES: usize = 4 << 10;
/// What an answer's head may be long, and what is read ahead of a body: more than this a connection never holds.
const BUFFER_BYTES: usize = 64 << 10;
/// The same for the streams of one HTTP/2 connection together.
const HTTP2_BUFFER_BYTES: u32 = 1 << 20;
/// Servers close idle connections, some after five seconds: ours go first, or a request would meet a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// The timer over the whole exchange runs this much longer than the one for connecting, so that an end at the deadline is
/// told by the phase it came in. An answer in this time is late all the same.
const GRACE: Duration = Duration::from_millis(25);

/// A webhook's URL, looked at once, however often it is called.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: Arc<str>,
    /// What stands in the log in place of an attempt, where the URL may not be called.
    checked: Result<Uri, Answer>,
}

impl Endpoint {
    /// The rules may have become stricter since the webhook was saved.
    pub fn new(url: &str, guard: &Guard) -> Endpoint {
        Endpoint { checked: check(url, guard), url: url.into() }
    }

    pub fn url(&self) -> Arc<str> {
        Arc::clone(&self.url)
    }
}

fn check(url: &str, guard: &Guard) -> Result<Uri, Answer> {
    let blocked = |problem: String| failed(ErrorKind::BlockedAddress, problem);
    let url = guard.check_url(url).map_err(|problem| blocked(format!("the URL {problem}")))?;
    guard.check_literal(&url).map_err(|refusal| blocked(refusal.to_string()))?;
    url.as_str().parse().map_err(|error| blocked(format!("the URL cannot be asked for: {error}")))
}

/// The one client of the process; clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    timeout: Duration,
    /// The last attempt found the proxy at fault.
    at_fault: Arc<Condition>,
}

/// How an exchange ended.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub answer: Answer,
    pub duration: Duration,
    /// The first 4 KiB of the answer's body.
    pub excerpt: Vec<u8>,
}

impl Client {
    pub fn new(settings: &Settings) -> anyhow::Result<Client> {
        let tls = tls(settings.extra_ca_file.as_deref())?;
        let connector = Connector::new(settings.guard.clone(), settings.proxy.as_ref(), tls, settings.timeout)?;
        let http = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(settings.concurrency)
            .pool_idle_timeout(POOL_IDLE)
            // Names as the documentation writes them, for receivers that compare them so.
            .http1_title_case_headers(true)
            .http1_max_buf_size(BUFFER_BYTES)
            .http2_initial_stream_window_size(BUFFER_BYTES as u32)
            .http2_initial_connection_window_size(HTTP2_BUFFER_BYTES)
            // One dead HTTP/2 connection would fail all that share it, until the kernel gives up on it.
            .http2_keep_alive_interval(settings.timeout / 2)
            .http2_keep_alive_timeout(settings.timeout / 2)
            .build(connector);
        Ok(Client { http, timeout: settings.timeout, at_fault: Arc::default() })
    }

    /// Sends one request and waits for the end of its answer, no longer than the timeout.
    pub async fn post(&self, endpoint: &Endpoint, request: &Rendered) -> Result<Exchange, OwnFault> {
        let begun = Instant::now();
        let end = match endpoint.checked.clone() {
            Ok(url) => self.exchange(url, request, begun).await,
            Err(blocked) => Ok((blocked, Vec::new())),
        };
        self.tell(end.as_ref().err());
        let (answer, excerpt) = end?;
        Ok(Exchange { answer, duration: begun.elapsed(), excerpt })
    }

    fn tell(&self, fault: Option<&OwnFault>) {
        match fault {
            Some(fault) => {
                metrics::counter!(telemetry::PROXY_FAILURES).increment(1);
                if self.at_fault.begins() {
                    tracing::error!(%fault, "deliveries wait: no attempt is used up");
                }
            }
            None if self.at_fault.ends() => tracing::info!("deliveries go out again"),
            None => {}
        }
    }

    async fn exchange(&self, url: Uri, request: &Rendered, begun: Instant) -> Result<(Answer, Vec<u8>), OwnFault> {
        let sending = self.http.request(http_request(url, request));
        let response = match tokio::time::timeout(self.timeout + GRACE, sending).await {
            Ok(Ok(response)) if begun.elapsed() <= self.timeout => response,
            Ok(Err(error)) => return Ok((classify(&error)?, Vec::new())),
            Ok(Ok(_)) | Err(_) => return Ok((self.too_slow(), Vec::new())),
        };
        let status = response.status();
        let mut excerpt = Vec::new();
        let left = self.timeout.saturating_sub(begun.elapsed());
        // The status alone decides: a body that breaks off or does not end in time changes nothing.
        let _ = tokio::time::timeout(left, read(response, &mut excerpt)).await;
        let answer = match status.is_success() {
            true => Answer::Accepted { status: status.as_u16() },
            false => refused(status),
        };
        Ok((answer, excerpt))
    }

    fn too_slow(&self) -> Answer {
        failed(ErrorKind::ResponseTimeout, format!("no answer within {:?}", self.timeout))
    }
}

/// Reads the body as far as it is wanted.
async fn read(mut response: Response<Incoming>, excerpt: &mut Vec<u8>) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = response.frame().await {
        let Some(chunk) = frame.data_ref() else { continue };
        let wanted = chunk.len().min(EXCERPT_BYTES - excerpt.len());
        excerpt.extend_from_slice(&chunk[..wanted]);
        bytes += chunk.len();
        if bytes >= MAX_RESPONSE_BYTES {
            return;
        }
    }
}

fn http_request(url: Uri, rendered: &Rendered) -> Request<Full<Bytes>> {
    let mut request = Request::post(url).body(Full::new(rendered.body.clone())).expect("its parts are made");
    for (name, value) in &rendered.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("our names are tokens");
        let value = HeaderValue::from_str(value).expect("our values are printable ASCII");
        request.headers_mut().insert(name, value);
    }
    request
}

fn refused(status: StatusCode) -> Answer {
    let redirect = if status.is_redirection() { "; redirects are not followed" } else { "" };
    let message = format!("the receiver answered {status}{redirect}");
    Answer::Failed { kind: ErrorKind::HttpStatus, message, status: Some(status.as_u16()) }
}

/// The system's certificate authorities, and those of `extra`. None at all is no error here: plain http may be all there is.
fn tls(extra: Option<&Path>) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if let Some(path) = extra {
        let describe = || format!("delivery.extra_ca_file: {} must hold certificates in PEM form", path.display());
        let mut added = 0;
        for certificate in CertificateDer::pem_file_iter(path).with_context(describe)? {
            roots.add(certificate.with_context(describe)?).with_context(describe)?;
            added += 1;
        }
        anyhow::ensure!(added > 0, describe());
    }
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authorities found: install ca-certificates, or no https receiver can be reached"
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS versions")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
