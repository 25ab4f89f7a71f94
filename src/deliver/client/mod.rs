//! One HTTP exchange with a receiver, and its end in the words of the delivery log.

mod direct;
mod failure;
mod reuse;
mod transport;
mod tunnel;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

pub use self::failure::OwnFault;
use self::failure::{Cause, Failure, failed};
use self::transport::{Response, Target, Transport};
use super::Settings;
use super::guard::Guard;
use super::request::Rendered;
use crate::domain::delivery::{Answer, ErrorKind};
use crate::telemetry::{self, Condition, recurring};
use crate::tls;

/// The answer's body is read this far, so that its connection can be used again; what is longer is cut off.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// What the log keeps of it.
const EXCERPT_BYTES: usize = 4 << 10;
/// What a receiver may send ahead of what is read of it, on a stream of HTTP/2.
const BUFFER_BYTES: usize = 64 << 10;
/// The same for the streams of one HTTP/2 connection together.
const HTTP2_BUFFER_BYTES: u32 = 1 << 20;
/// Servers close idle connections, some after five seconds: ours go first, or a request would meet a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// So that a connection whose other end is gone without a word is noticed.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The timer over the whole exchange runs this much longer than the one for connecting, so that an end at the deadline is
/// told by the phase it came in. An answer in this time is late all the same.
const GRACE: Duration = Duration::from_millis(25);

/// A webhook's URL, looked at once, however often it is called.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: Arc<str>,
    /// What stands in the log in place of an attempt, where the URL may not be called.
    checked: Result<Target, Answer>,
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

fn check(url: &str, guard: &Guard) -> Result<Target, Answer> {
    let blocked = |problem: String| failed(ErrorKind::BlockedAddress, problem);
    let url = guard.check_url(url).map_err(|problem| blocked(format!("the URL {problem}")))?;
    guard.check_literal(&url).map_err(|refusal| blocked(refusal.to_string()))?;
    Target::new(url).map_err(|error| blocked(format!("the URL cannot be asked for: {error}")))
}

/// The one client of the process; clones share its connections.
#[derive(Clone)]
pub struct Client {
    transport: Transport,
    timeout: Duration,
    /// The last attempt found the proxy at fault.
    proxy_fault: Arc<Condition>,
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
        let (guard, timeout) = (settings.guard.clone(), settings.timeout);
        let transport = Transport::new(guard, settings.proxy.as_ref(), tls, timeout, settings.concurrency)?;
        Ok(Client { transport, timeout, proxy_fault: Arc::default() })
    }

    /// Sends one request and waits for the end of its answer, no longer than the timeout.
    pub async fn post(&self, endpoint: &Endpoint, request: Rendered) -> Result<Exchange, OwnFault> {
        let begun = Instant::now();
        let end = match &endpoint.checked {
            Ok(target) => self.exchange(target, request, begun).await,
            Err(blocked) => Ok((blocked.clone(), Vec::new())),
        };
        self.report(end.as_ref().err());
        let (answer, excerpt) = end?;
        Ok(Exchange { answer, duration: begun.elapsed(), excerpt })
    }

    fn report(&self, fault: Option<&OwnFault>) {
        let Some(fault) = fault else {
            if self.proxy_fault.ends() {
                tracing::info!("deliveries go out again");
            }
            return;
        };
        metrics::counter!(telemetry::OWN_FAULTS, "cause" => fault.cause.as_str()).increment(1);
        match fault.cause {
            Cause::Proxy => {
                metrics::counter!(telemetry::PROXY_FAILURES).increment(1);
                if self.proxy_fault.begins() {
                    tracing::error!(%fault, "deliveries wait: no attempt is used up");
                }
            }
            // Requests on open connections, and to receivers whose names are not looked up, still succeed meanwhile.
            Cause::Resolver => recurring!(warn, %fault, "deliveries wait for nameservers: no attempt is used up"),
            Cause::Descriptors => recurring!(
                warn,
                %fault,
                "deliveries wait for file descriptors: no attempt is used up. Raise the limit (LimitNOFILE, ulimit -n)"
            ),
        }
    }

    async fn exchange(
        &self,
        target: &Target,
        request: Rendered,
        begun: Instant,
    ) -> Result<(Answer, Vec<u8>), OwnFault> {
        let headers = headers(request.headers);
        let sending = self.send(target, headers, request.body);
        let mut response = match tokio::time::timeout(self.timeout + GRACE, sending).await {
            Ok(Ok(response)) if begun.elapsed() <= self.timeout => response,
            Ok(Err(failure)) => return Ok((failure.into_answer()?, Vec::new())),
            Ok(Ok(_)) | Err(_) => return Ok((self.too_slow(), Vec::new())),
        };
        let status = response.status();
        let mut excerpt = Vec::new();
        let left = self.timeout.saturating_sub(begun.elapsed());
        // The status alone decides: a body that breaks off or does not end in time changes nothing.
        let _ = tokio::time::timeout(left, read(&mut response, &mut excerpt)).await;
        let answer = match status.is_success() {
            true => Answer::Accepted { status: status.as_u16() },
            false => refused(status),
        };
        Ok((answer, excerpt))
    }

    /// Sends the request, and once more where the connection was an idle one that the receiver closed: a receiver that got
    /// the first one after all knows the delivery's id.
    async fn send(&self, target: &Target, headers: HeaderMap, body: Bytes) -> Result<Response, Failure> {
        let (sent, is_new) = reuse::watch(self.transport.send(target, headers.clone(), body.clone())).await;
        match sent {
            Err(failure) if failure.is_closed && !is_new => self.transport.send(target, headers, body).await,
            sent => sent,
        }
    }

    fn too_slow(&self) -> Answer {
        failed(ErrorKind::ResponseTimeout, format!("no answer within {:?}", self.timeout))
    }
}

/// Reads the body as far as it is wanted.
async fn read(response: &mut Response, excerpt: &mut Vec<u8>) {
    let mut bytes = 0;
    while let Some(chunk) = response.chunk().await {
        let wanted = chunk.len().min(EXCERPT_BYTES - excerpt.len());
        excerpt.extend_from_slice(&chunk[..wanted]);
        bytes += chunk.len();
        if bytes >= MAX_RESPONSE_BYTES {
            return;
        }
    }
}

fn headers(rendered: Vec<(&'static str, String)>) -> HeaderMap {
    let header = |(name, value): (&'static str, String)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("our names are tokens");
        (name, HeaderValue::try_from(value).expect("our values are printable ASCII"))
    };
    rendered.into_iter().map(header).collect()
}

fn refused(status: StatusCode) -> Answer {
    let redirect = if status.is_redirection() { "; redirects are not followed" } else { "" };
    let message = format!("the receiver answered {status}{redirect}");
    Answer::Failed { kind: ErrorKind::HttpStatus, message, status: Some(status.as_u16()) }
}

/// A TLS client that trusts the system's certificate authorities and those of `extra`. Warns if there are none.
fn tls(extra: Option<&Path>) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = tls::system_roots();
    if let Some(path) = extra {
        let describe = || format!("delivery.extra_ca_file: {} must hold certificates in PEM form", path.display());
        for certificate in tls::certificates(path).map_err(anyhow::Error::msg).with_context(describe)? {
            roots.add(certificate).with_context(describe)?;
        }
    }
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authorities found: install ca-certificates, or no https receiver can be reached"
        );
    }
    Ok(tls::client(roots))
}
