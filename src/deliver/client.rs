//! One HTTP exchange with a receiver, and its end in the words of the delivery log.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;

use super::Settings;
use super::guard::{Guard, Unreachable};
use super::request::Rendered;
use crate::domain::delivery::{Answer, ErrorKind};

/// The answer's body is read this far, so that its connection can be used again; what is longer is cut off.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// What the log keeps of it.
const EXCERPT_BYTES: usize = 4 << 10;
/// Messages are for people.
const MAX_MESSAGE_CHARS: usize = 300;
/// Servers close idle connections, some after five seconds: ours go first, or a request would meet a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// The timer over the whole exchange runs this much longer than the one for connecting, so that an end at the deadline is
/// told by the phase it came in. An answer in this time is late all the same.
const GRACE: Duration = Duration::from_millis(25);

/// The one client of the process; clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    guard: Guard,
    timeout: Duration,
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
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(settings.extra_ca_file.as_deref())?)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .dns_resolver(GuardedResolver(settings.guard.clone()))
            .connect_timeout(settings.timeout)
            .tcp_nodelay(true)
            .pool_max_idle_per_host(settings.concurrency)
            .pool_idle_timeout(POOL_IDLE)
            // Names as the documentation writes them, for receivers that compare them so.
            .http1_title_case_headers()
            // One dead HTTP/2 connection would fail all that share it, until the kernel gives up on it.
            .http2_keep_alive_interval(settings.timeout / 2)
            .http2_keep_alive_timeout(settings.timeout / 2)
            .build()
            .context("the HTTP client")?;
        Ok(Client { http, guard: settings.guard.clone(), timeout: settings.timeout })
    }

    /// Sends one request and waits for the end of its answer, no longer than the timeout.
    pub async fn post(&self, url: &str, request: &Rendered) -> Exchange {
        let begun = Instant::now();
        let (answer, excerpt) = match self.checked(url) {
            Ok(url) => self.exchange(url, request, begun).await,
            Err(blocked) => (blocked, Vec::new()),
        };
        Exchange { answer, duration: begun.elapsed(), excerpt }
    }

    /// The rules may have become stricter since the webhook was saved.
    fn checked(&self, url: &str) -> Result<Url, Answer> {
        let url = self.guard.check_url(url);
        let url = url.map_err(|problem| failed(ErrorKind::BlockedAddress, format!("the URL {problem}")))?;
        self.guard.check_literal(&url).map_err(|refusal| failed(ErrorKind::BlockedAddress, refusal.to_string()))?;
        Ok(url)
    }

    async fn exchange(&self, url: Url, request: &Rendered, begun: Instant) -> (Answer, Vec<u8>) {
        let sending = self.http.post(url).headers(header_map(request)).body(request.body.clone()).send();
        let response = match tokio::time::timeout(self.timeout + GRACE, sending).await {
            Ok(Ok(response)) if begun.elapsed() <= self.timeout => response,
            Ok(Err(error)) => return (classify(&error), Vec::new()),
            Ok(Ok(_)) | Err(_) => return (self.too_slow("no answer", None), Vec::new()),
        };
        let status = response.status();
        let mut excerpt = Vec::new();
        let left = self.timeout.saturating_sub(begun.elapsed());
        let read_in_time = tokio::time::timeout(left, read(response, &mut excerpt)).await.is_ok();
        let answer = match (status.is_success(), read_in_time) {
            (true, true) => Answer::Accepted { status: status.as_u16() },
            (true, false) => self.too_slow("the answer did not end", Some(status.as_u16())),
            (false, _) => refused(status),
        };
        (answer, excerpt)
    }

    fn too_slow(&self, what: &str, status: Option<u16>) -> Answer {
        let message = format!("{what} within {:?}", self.timeout);
        Answer::Failed { kind: ErrorKind::ResponseTimeout, message, status }
    }
}

/// Reads the body as far as it is wanted. The status alone decides: an answer that breaks off was an answer.
async fn read(mut response: Response, excerpt: &mut Vec<u8>) {
    let mut bytes = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        let wanted = chunk.len().min(EXCERPT_BYTES - excerpt.len());
        excerpt.extend_from_slice(&chunk[..wanted]);
        bytes += chunk.len();
        if bytes >= MAX_RESPONSE_BYTES {
            return;
        }
    }
}

fn header_map(request: &Rendered) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(request.headers.len() + 2);
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("our names are tokens");
        let value = HeaderValue::from_maybe_shared(Bytes::copy_from_slice(value.as_bytes()));
        map.insert(name, value.expect("our values are printable ASCII"));
    }
    map
}

fn failed(kind: ErrorKind, message: String) -> Answer {
    Answer::Failed { kind, message, status: None }
}

fn refused(status: StatusCode) -> Answer {
    let redirect = if status.is_redirection() { "; redirects are not followed" } else { "" };
    let message = format!("the receiver answered {status}{redirect}");
    Answer::Failed { kind: ErrorKind::HttpStatus, message, status: Some(status.as_u16()) }
}

/// The kind of an error that came instead of an answer, by what is at the bottom of it.
fn classify(error: &reqwest::Error) -> Answer {
    let mut kind = None;
    let mut message = error.to_string();
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        kind = kind_of(error).or(kind);
        message = error.to_string();
        cause = inner(error);
    }
    let kind = kind.unwrap_or(match (error.is_timeout(), error.is_connect()) {
        (true, true) => ErrorKind::ConnectTimeout,
        (true, false) => ErrorKind::ResponseTimeout,
        (false, true) => ErrorKind::ConnectRefused,
        // The connection closed, or what came over it was not HTTP.
        (false, false) => ErrorKind::ConnectionReset,
    });
    failed(kind, message.chars().filter(|character| *character != '\0').take(MAX_MESSAGE_CHARS).collect())
}

/// What an error wraps. An I/O error's own `source` skips the error that it was made from.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

fn kind_of(error: &(dyn Error + 'static)) -> Option<ErrorKind> {
    if let Some(refusal) = error.downcast_ref::<Unreachable>() {
        return Some(match refusal {
            Unreachable::Unresolved => ErrorKind::Dns,
            Unreachable::Blocked(_) => ErrorKind::BlockedAddress,
        });
    }
    if error.is::<rustls::Error>() {
        return Some(ErrorKind::Tls);
    }
    match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Some(ErrorKind::ConnectRefused)
        }
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Some(ErrorKind::ConnectionReset),
        _ => None,
    }
}

/// Resolves names for the client and gives it no address that the guard refuses: what is dialled has been checked.
struct GuardedResolver(Guard);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            // The client puts the URL's port in place of 0.
            let addresses = guard.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// The system's certificate authorities, and those of `extra`. None at all is no error here: plain http may be all there is.
fn tls(extra: Option<&Path>) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if let Some(path) = extra {
        let describe = || format!("delivery.extra_ca_file: {} must hold certificates in PEM form", path.display());
        for certificate in CertificateDer::pem_file_iter(path).with_context(describe)? {
            roots.add(certificate.with_context(describe)?).with_context(describe)?;
        }
    }
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authorities found: install ca-certificates, or no https receiver can be reached"
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS versions")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
