//! Makes one HTTP exchange with a receiver, and reports its outcome as the delivery log does.

mod allowance;
mod connection;
mod connector;
mod failure;
mod timing;
mod transport;

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hyper::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use secrecy::ExposeSecret;

pub use self::failure::OwnFault;
use self::failure::{Cause, failed};
use self::timing::{Bounds, measure};
use self::transport::{Response, Transport};
use super::guard::Guard;
use super::request::Rendered;
use super::settings::Settings;
use crate::domain::delivery::{Answer, ErrorKind, Timing};
use crate::domain::headers::{CustomHeader, CustomHeaders};
use crate::domain::response;
use crate::telemetry::{self, Activity, recurring};
use crate::tls;

/// The response body is read to this length, so that its connection can be reused. Longer bodies
/// are cut off.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// The part of the response body that the delivery log keeps.
const EXCERPT_BYTES: usize = 4 << 10;
/// The most headers of a request, without the custom ones.
const MAX_HEADERS: usize = 17;
/// How much later than the connect timer the timer of the whole exchange fires. Then a connection
/// that is not established at the deadline is reported as such, and not as a missing answer. A
/// response that arrives in this time is too late all the same.
const GRACE: Duration = Duration::from_millis(25);

/// A webhook's URL and custom headers, parsed and checked once for all of its requests.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: Arc<str>,
    /// `Err` if the URL may not be called: the answer to log instead.
    checked: Result<Uri, Answer>,
    /// Sent with every request.
    headers: ParsedHeaders,
}

impl Endpoint {
    /// Checks the URL again: the rules may have become stricter since the webhook was saved.
    pub fn new(url: &str, guard: &Guard) -> Endpoint {
        Endpoint {
            checked: check(url, guard),
            url: url.into(),
            headers: ParsedHeaders::default(),
        }
    }

    /// Adds the webhook's custom headers to all requests.
    pub fn with_headers(self, headers: &CustomHeaders) -> Endpoint {
        Endpoint {
            headers: headers.into(),
            ..self
        }
    }

    pub fn url(&self) -> Arc<str> {
        Arc::clone(&self.url)
    }
}

/// Custom headers, parsed once for all requests. Without any, nothing is allocated.
#[derive(Clone, Debug, Default)]
struct ParsedHeaders(Vec<(HeaderName, HeaderValue)>);

impl From<&CustomHeaders> for ParsedHeaders {
    fn from(headers: &CustomHeaders) -> ParsedHeaders {
        ParsedHeaders(headers.0.iter().map(parse).collect())
    }
}

fn parse(header: &CustomHeader) -> (HeaderName, HeaderValue) {
    let name = header.name.parse().expect("the name is a token");
    let mut value: HeaderValue = header
        .value
        .expose_secret()
        .parse()
        .expect("the value is visible ASCII");

    // HTTP/2 must not put it in compression tables, nor a log print it.
    value.set_sensitive(true);
    (name, value)
}

fn check(url: &str, guard: &Guard) -> Result<Uri, Answer> {
    let blocked = |problem: String| failed(ErrorKind::BlockedAddress, problem);
    let url = guard
        .check_url(url)
        .map_err(|problem| blocked(format!("the URL {problem}")))?;
    guard
        .check_literal(&url)
        .map_err(|refusal| blocked(refusal.to_string()))?;

    url.as_str()
        .parse()
        .map_err(|error| blocked(format!("the URL cannot be requested: {error}")))
}

/// The HTTP client of the process. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    transport: Transport,
    timeout: Duration,
    /// Whether the last attempt failed because of the proxy.
    proxy: Arc<Activity>,
}

/// How an exchange ended.
#[derive(Clone, Debug)]
pub struct ExchangeEnd {
    pub answer: Answer,
    pub duration: Duration,
    /// The value of `Retry-After` in a response with 429 or 503.
    pub retry_after: Option<HeaderValue>,
    pub timing: Timing,
    /// The response's headers, as the delivery log keeps them.
    pub headers: Vec<u8>,
    /// The first 4 KiB of the response body.
    pub excerpt: Vec<u8>,
    /// When the head of the response has arrived.
    head: Option<Instant>,
}

impl ExchangeEnd {
    fn without_response(answer: Answer) -> ExchangeEnd {
        ExchangeEnd {
            answer,
            duration: Duration::ZERO,
            retry_after: None,
            timing: Timing::default(),
            headers: Vec::new(),
            excerpt: Vec::new(),
            head: None,
        }
    }
}

impl Client {
    pub fn new(settings: &Settings) -> anyhow::Result<Client> {
        let tls = tls(settings.extra_ca_file.as_deref())?;
        let transport = Transport::new(settings, tls)?;
        Ok(Client {
            transport,
            timeout: settings.timeout,
            proxy: Arc::new(Activity::new("delivery.proxy")),
        })
    }

    /// Sends one request and waits for the end of the response, at most for the timeout.
    pub async fn post(
        &self,
        endpoint: &Endpoint,
        request: &Rendered<'_>,
    ) -> Result<ExchangeEnd, OwnFault> {
        let started = Instant::now();
        let url = match &endpoint.checked {
            Ok(url) => url,
            Err(blocked) => {
                self.report(None);
                return Ok(ExchangeEnd::without_response(blocked.clone()));
            }
        };

        // Pinned: a function that takes a future by value holds it twice.
        let exchange = pin!(self.exchange(url, &endpoint.headers, request, started));
        let (result, marks) = measure(exchange).await;
        let ended = Instant::now();

        self.report(result.as_ref().err());
        let end = result?;
        let timing = marks.timing(&Bounds {
            started,
            head: end.head,
            ended,
            is_tls: url.scheme_str() == Some("https"),
            is_unconnected: end.answer.error().is_some_and(ErrorKind::is_unconnected),
        });

        Ok(ExchangeEnd {
            duration: ended - started,
            timing,
            ..end
        })
    }

    fn report(&self, fault: Option<&OwnFault>) {
        let Some(fault) = fault else {
            self.proxy.succeeded();

            return;
        };

        metrics::counter!(telemetry::OWN_FAULTS, "cause" => fault.cause.as_str()).increment(1);

        match fault.cause {
            Cause::Proxy => {
                metrics::counter!(telemetry::PROXY_FAILURES).increment(1);

                if self.proxy.starts_failing() {
                    tracing::error!(%fault, "deliveries wait for the proxy; no attempt is used up");
                }
            }
            // Requests on open connections, and to receivers whose names need no lookup, still
            // succeed meanwhile.
            Cause::Resolver => {
                recurring!(warn, %fault, "deliveries wait for nameservers; no attempt is used up")
            }
            Cause::Descriptors => recurring!(
                warn,
                %fault,
                "deliveries wait for file descriptors; no attempt is used up. Raise the limit (LimitNOFILE, ulimit -n)"
            ),
        }
    }

    async fn exchange(
        &self,
        url: &Uri,
        custom: &ParsedHeaders,
        request: &Rendered<'_>,
        started: Instant,
    ) -> Result<ExchangeEnd, OwnFault> {
        let sent = {
            let sending = pin!(self.transport.send(
                url,
                || headers(request, custom),
                &request.body
            ));
            tokio::time::timeout(self.timeout + GRACE, sending).await
        };
        let response = match sent {
            Ok(Ok(response)) if started.elapsed() <= self.timeout => response,
            Ok(Err(failure)) => return Ok(ExchangeEnd::without_response(failure.into_answer()?)),
            Ok(Ok(_)) | Err(_) => {
                let message = format!("no answer within {:?}", self.timeout);
                return Ok(ExchangeEnd::without_response(failed(
                    ErrorKind::ResponseTimeout,
                    message,
                )));
            }
        };

        let head = Some(Instant::now());
        let status = response.status();
        let may_postpone = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .filter(|_| may_postpone)
            .cloned();
        let lines = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()));
        let headers = response::keep(lines);
        let mut excerpt = Vec::new();
        let left = self.timeout.saturating_sub(started.elapsed());

        // The status alone decides: a body that breaks off or does not end in time changes nothing.
        let _ = tokio::time::timeout(left, read(response, &mut excerpt)).await;
        let answer = match status.is_success() {
            true => Answer::Accepted {
                status: status.as_u16(),
            },
            false => refused(status),
        };

        Ok(ExchangeEnd {
            retry_after,
            headers,
            excerpt,
            head,
            ..ExchangeEnd::without_response(answer)
        })
    }
}

fn headers(request: &Rendered<'_>, ParsedHeaders(custom): &ParsedHeaders) -> HeaderMap {
    // With the `Accept` that the transport adds.
    let mut headers = HeaderMap::with_capacity(MAX_HEADERS + custom.len());
    headers.extend(custom.iter().cloned());

    // After the custom ones, which must not replace these even if they were saved before a name was
    // reserved.
    for (name, value) in request.headers() {
        headers.insert(name.sent.clone(), value);
    }

    headers
}

/// Reads at most [`MAX_RESPONSE_BYTES`] of the body, and adds at most [`EXCERPT_BYTES`] to
/// `excerpt`.
async fn read(mut response: Response, excerpt: &mut Vec<u8>) {
    let mut bytes = 0;
    while bytes < MAX_RESPONSE_BYTES {
        let Some(chunk) = response.chunk().await else {
            return;
        };

        let wanted = chunk.len().min(EXCERPT_BYTES - excerpt.len());
        excerpt.extend_from_slice(&chunk[..wanted]);
        bytes += chunk.len();
    }
}

fn refused(status: StatusCode) -> Answer {
    let redirect = if status.is_redirection() {
        "; redirects are not followed"
    } else {
        ""
    };

    let message = format!("the receiver answered {status}{redirect}");
    Answer::Failed {
        kind: ErrorKind::HttpStatus,
        message,
        status: Some(status.as_u16()),
    }
}

/// A TLS client that trusts the system's certificate authorities and those of `extra`. Warns if
/// there are none.
fn tls(extra: Option<&Path>) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = tls::system_roots();

    if let Some(path) = extra {
        let describe = || {
            format!(
                "delivery.extra_ca_file: {} must hold certificates in PEM form",
                path.display()
            )
        };

        for certificate in tls::certificates(path)
            .map_err(anyhow::Error::msg)
            .with_context(describe)?
        {
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
