//! A client of the event feed (`GET /events`), by long polling.
//!
//! Long polling, not Server-Sent Events: each page arrives whole or not at all, and brings the
//! cursor that follows it, also when it is empty. A stream brings a cursor only with an event, so a
//! connection that breaks before the first one would lose the position `latest`. Proxies that
//! collect responses before they pass them on do not delay a page, and a page is requested only
//! when the one before was forwarded.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Limited};
use jiff::Timestamp;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Body, Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use url::Url;
use uuid::Uuid;

use super::super::forward::event_kind;
use super::state::ListenState;
use crate::domain::event::EventKind;
use crate::retry::Backoff;
use crate::tls;

/// How long the API holds an empty page open: the most that it allows.
const LONG_POLL: Duration = Duration::from_secs(30);
/// How long the rest of a request may take. A connection that died unnoticed is given up after this
/// and the long poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Events per page. Each is forwarded on its own, so larger pages would save little.
const PAGE: usize = 50;
/// A page of events with 64 KB each has three megabytes. A much larger response does not come from
/// the feed.
const MAX_PAGE_BYTES: usize = 32 << 20;
/// Waits after failures: short enough to be back soon after a restart of the API, long enough not
/// to disturb one that is overloaded.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// The most that a `Retry-After` postpones the next request. A larger value is more likely an error
/// than an intention.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// The least time between requests for the same empty page, in case something between here and the
/// API does not hold it open.
const BETWEEN_EMPTY_PAGES: Duration = Duration::from_secs(1);

/// Which events of the feed are read.
#[derive(Debug, clap::Args)]
pub struct FeedOptions {
    /// Base URL of Walhook's API, such as `https://webhooks.example/api/public`
    #[arg(long, value_name = "URL", value_parser = base_url)]
    api: Url,
    /// API token of the user whose events are read. On the command line, other users of this
    /// machine can see it
    #[arg(
        long,
        env = "WALHOOK_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: SecretString,
    /// Read only these events, separated by commas
    #[arg(long, value_name = "EVENTS", value_delimiter = ',', value_parser = event_kind())]
    events: Vec<EventKind>,
    /// Where to start: `earliest`, `latest` or a cursor of the feed. Replaces the position in the
    /// state file. Default: that position, or `latest`; for `feed` without `--follow`, `earliest`
    #[arg(long, value_name = "CURSOR")]
    from: Option<String>,
    /// File that keeps the position, and the webhook's id and the secret of `listen`, over restarts
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl FeedOptions {
    pub fn api(&self) -> &Url {
        &self.api
    }

    /// Opens the state file, if there is one. `start` is the position without one and without
    /// `--from`.
    pub fn state(&self, start: &'static str) -> anyhow::Result<ListenState> {
        ListenState::open(self.state.as_deref(), &self.api, self.from.clone(), start)
    }
}

/// What to do at the end of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The page after the last event is empty.
    Never,
    ForEvents,
}

/// One page of the feed.
#[derive(Deserialize)]
pub struct FeedResponse {
    #[serde(rename = "data")]
    pub events: Vec<FeedEvent>,
    pub next_cursor: String,
}

/// An event, and the text in which the API sent it.
#[derive(Deserialize)]
#[serde(try_from = "Box<RawValue>")]
pub struct FeedEvent {
    pub content: EventContent,
    pub text: Box<RawValue>,
}

impl TryFrom<Box<RawValue>> for FeedEvent {
    type Error = serde_json::Error;

    fn try_from(text: Box<RawValue>) -> Result<FeedEvent, serde_json::Error> {
        let content = serde_json::from_str(text.get())?;
        Ok(FeedEvent { content, text })
    }
}

#[derive(Deserialize)]
pub struct EventContent {
    pub id: Uuid,
    /// Not an `EventKind`: a newer API may have events that this build does not know.
    pub event: String,
    pub occurred_at: Timestamp,
    /// As the API sent it, byte for byte.
    pub data: Box<RawValue>,
}

/// Parses the base URL of the API.
pub fn base_url(text: &str) -> Result<Url, String> {
    let mut url: Url = text
        .parse()
        .map_err(|error: url::ParseError| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("expected a URL such as https://webhooks.example/api/public".to_owned());
    }

    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err("must not contain a user, a password, a query or a fragment".to_owned());
    }

    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);

    Ok(url)
}

/// The feed of one user, with reconnection.
pub struct FeedClient {
    client: reqwest::Client,
    /// `GET /events`, with the filter.
    url: Url,
    wait: Wait,
    retries: Backoff,
    /// Whether the API has answered with a page.
    is_ready: bool,
    /// The last fault that was printed, until the API answers again.
    reported: Option<String>,
}

impl FeedClient {
    pub fn new(options: &FeedOptions, ca: Option<&Path>, wait: Wait) -> anyhow::Result<FeedClient> {
        let FeedOptions {
            api, token, events, ..
        } = options;
        let mut url = api.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow!("--api: {api} cannot have a path"))?
            .pop_if_empty()
            .push("events");
        url.query_pairs_mut()
            .append_pair("limit", &PAGE.to_string());

        if !events.is_empty() {
            let names: Vec<&str> = events.iter().map(|event| event.as_str()).collect();
            url.query_pairs_mut().append_pair("event", &names.join(","));
        }

        let client = client(token, ca)?;
        Ok(FeedClient {
            client,
            url,
            wait,
            retries: RETRIES,
            is_ready: false,
            reported: None,
        })
    }

    /// Returns the events after `after`, and waits until there are some; the page may still be
    /// empty. Tries again after faults that may end, and fails for others. Before the first page, a
    /// host that does not answer as Walhook does is more likely a wrong URL than an outage.
    pub async fn page(&mut self, after: &str) -> anyhow::Result<FeedResponse> {
        loop {
            // At the start and after an outage, the answer is needed at once.
            let hold = if self.wait == Wait::ForEvents && self.is_ready && self.reported.is_none() {
                LONG_POLL
            } else {
                Duration::ZERO
            };

            let asked_at = Instant::now();
            let fault = match self.request(after, hold).await {
                Ok(page) => {
                    if self.reported.take().is_some() {
                        eprintln!("The API answers again.");
                    }

                    self.is_ready = true;
                    self.retries.reset();

                    if page.events.is_empty() && page.next_cursor == after && !hold.is_zero() {
                        tokio::time::sleep(BETWEEN_EMPTY_PAGES.saturating_sub(asked_at.elapsed()))
                            .await;
                    }

                    return Ok(page);
                }
                Err(fault) => fault,
            };

            if fault.severity == Permanent || fault.severity == Foreign && !self.is_ready {
                return Err(anyhow!(fault.message));
            }

            let wait = fault
                .retry_after
                .unwrap_or_default()
                .max(self.retries.next_wait());

            if self.reported.as_ref() != Some(&fault.message) {
                eprintln!("{}. Trying again in {wait:?}.", fault.message);
                self.reported = Some(fault.message);
            }

            tokio::time::sleep(wait).await;
        }
    }

    async fn request(&self, after: &str, hold: Duration) -> Result<FeedResponse, FeedFault> {
        let mut url = self.url.clone();
        url.query_pairs_mut()
            .append_pair("after", after)
            .append_pair("wait", &hold.as_secs().to_string());

        let sent = self
            .client
            .get(url)
            .timeout(hold + REQUEST_TIMEOUT)
            .send()
            .await;

        let response = sent.map_err(|error| match error.is_connect() {
            true => self.failed(Foreign, "cannot be reached", &error),
            false => self.failed(Transient, "closed the connection", &error),
        })?;

        let status = response.status();
        let headers = response.headers().clone();
        let body = self.body(response).await?;

        if status != StatusCode::OK {
            return Err(self.refusal(status, &headers, &body));
        }

        serde_json::from_slice(&body).map_err(|error| {
            if error.is_eof() {
                let what = format!("{} sent an incomplete response", self.shown());
                return FeedFault::new(Transient, &what);
            }

            let kind = headers
                .get(CONTENT_TYPE)
                .and_then(|kind| kind.to_str().ok())
                .unwrap_or("no Content-Type");
            let what = format!(
                "{} did not answer with a page of events ({kind}: {error})",
                self.shown()
            );
            FeedFault::new(Foreign, &format!("{what}: {API_EXPECTED}"))
        })
    }

    async fn body(&self, response: Response) -> Result<Bytes, FeedFault> {
        let body = Limited::new(Body::from(response), MAX_PAGE_BYTES);
        let read = body.collect().await.map_err(|error| {
            let message = format!("{} did not finish its response: {error}", self.shown());
            FeedFault::new(Transient, &message)
        });
        read.map(Collected::to_bytes)
    }

    fn failed(&self, severity: FaultSeverity, what: &str, error: &reqwest::Error) -> FeedFault {
        let (what, reason) = match error.is_timeout() {
            true => ("did not answer", "timeout".to_owned()),
            false => (what, root_cause(error)),
        };
        FeedFault::new(severity, &format!("{} {what}: {reason}", self.shown()))
    }

    fn refusal(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> FeedFault {
        let problem: ProblemDetails = serde_json::from_slice(body).unwrap_or_default();
        let number = status.as_u16();
        let url = self.shown();
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());

        let (severity, message) = match number {
            300..=399 => {
                let target = header(LOCATION).unwrap_or("another URL");
                let what = format!("{url} redirects to {target} ({number})");
                (Foreign, format!("{what}: {API_EXPECTED}"))
            }
            401 | 403 => {
                let fix = "set --token or WALHOOK_TOKEN to a token of `walhook token create`, or to one of your platform";
                let what = format!("the API rejected the token ({number}{})", problem.text());
                (Permanent, format!("{what}: {fix}"))
            }
            404 | 405 => {
                let what = format!("{url} does not exist ({number}): {API_EXPECTED}");
                (Foreign, format!("{what}, of a version with an event feed"))
            }
            429 => {
                let what = "the API limits the rate of requests (429)";
                (Transient, what.to_owned())
            }
            408 | 425 | 500..=599 => {
                let what = format!("the API answered {number}{}", problem.text());
                (Transient, what)
            }
            _ => {
                let what = format!("the API rejected the request ({number}{})", problem.text());
                (Permanent, what + problem.fix())
            }
        };

        let seconds = header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        let retry_after = seconds.map(|wait| Duration::from_secs(wait).min(MAX_RETRY_AFTER));
        FeedFault {
            retry_after,
            ..FeedFault::new(severity, &message)
        }
    }

    /// The URL without the query.
    fn shown(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.into()
    }
}

pub const API_EXPECTED: &str = "--api must be the base URL of Walhook's API with its path, such as https://webhooks.example/api/public";

#[derive(Clone, Copy, PartialEq, Eq)]
enum FaultSeverity {
    /// Will pass, such as an overload.
    Transient,
    /// The answer is not from Walhook's API, or there is none: a wrong URL at first, an outage
    /// later.
    Foreign,
    /// The same request will be refused again.
    Permanent,
}

use FaultSeverity::{Foreign, Permanent, Transient};

struct FeedFault {
    severity: FaultSeverity,
    message: String,
    retry_after: Option<Duration>,
}

impl FeedFault {
    fn new(severity: FaultSeverity, message: &str) -> FeedFault {
        FeedFault {
            severity,
            message: printable(message),
            retry_after: None,
        }
    }
}

/// Problem details (RFC 9457). All empty if the body has another form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct ProblemDetails {
    title: String,
    detail: String,
    errors: Vec<ProblemError>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProblemError {
    pointer: String,
    detail: String,
}

impl ProblemDetails {
    /// Returns the most specific description, after a colon.
    pub fn text(&self) -> String {
        let fields: Vec<String> = self
            .errors
            .iter()
            .map(|error| format!("{}: {}", error.pointer, error.detail))
            .collect();
        let texts = [fields.join("; "), self.detail.clone(), self.title.clone()];
        texts
            .into_iter()
            .find(|text| !text.is_empty())
            .map_or_else(String::new, |text| format!(": {text}"))
    }

    fn fix(&self) -> &'static str {
        if self.errors.iter().any(|error| error.pointer == "/after") {
            ". Set --from to `earliest`, `latest` or another cursor"
        } else {
            ""
        }
    }
}

/// Removes control characters, which could change the terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .collect()
}

/// Returns the innermost cause of the error, without the URL.
pub fn root_cause(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes
        .last()
        .map_or_else(|| "no response".to_owned(), ToString::to_string)
}

/// Builds the client. It uses the proxies of the environment, because it runs on a developer's
/// machine. It follows no redirects: the token is for one host.
pub fn client(token: &SecretString, ca: Option<&Path>) -> anyhow::Result<reqwest::Client> {
    let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))
        .context("the token contains characters that no token has")?;
    authorization.set_sensitive(true);

    let headers = HeaderMap::from_iter([
        (AUTHORIZATION, authorization),
        (ACCEPT, HeaderValue::from_static("application/json")),
    ]);
    let mut roots = tls::system_roots();

    if let Some(path) = ca {
        for certificate in tls::certificates(path)
            .map_err(anyhow::Error::msg)
            .context("--ca-file")?
        {
            roots.add(certificate).context("--ca-file")?;
        }
    }

    reqwest::Client::builder()
        .tls_backend_preconfigured(tls::client(roots))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("walhook/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .build()
        .context("cannot create an HTTP client")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(api: &str) -> FeedOptions {
        FeedOptions {
            api: base_url(api).unwrap(),
            token: "t".to_owned().into(),
            events: Vec::new(),
            from: None,
            state: None,
        }
    }

    #[test]
    fn the_base_url_may_end_with_a_slash() {
        for text in [
            "https://w.example/api/public",
            "https://w.example/api/public/",
            "https://w.example/api/public//",
        ] {
            let feed = FeedClient::new(&options(text), None, Wait::Never).unwrap();
            assert_eq!(feed.shown(), "https://w.example/api/public/events");
        }

        assert_eq!(
            base_url("http://w.example").unwrap().as_str(),
            "http://w.example/"
        );

        for wrong in [
            "w.example/api",
            "ftp://w.example",
            "https://t@w.example/",
            "https://w.example/?a=b",
            "",
        ] {
            assert!(base_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_show_the_problem_and_no_control_characters() {
        let feed = FeedClient::new(&options("http://w/"), None, Wait::Never).unwrap();

        let body = br#"{"title":"T","detail":"D","errors":[{"pointer":"/after","detail":"is \u001b[2Jold"}]}"#;
        let fault = feed.refusal(StatusCode::UNPROCESSABLE_ENTITY, &HeaderMap::new(), body);
        let expected = "the API rejected the request (422: /after: is [2Jold). Set --from to `earliest`, `latest` or another cursor";

        assert!(
            fault.severity == FaultSeverity::Permanent && fault.message == expected,
            "{}",
            fault.message
        );
        let limited = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("7"))]);
        let fault = feed.refusal(StatusCode::TOO_MANY_REQUESTS, &limited, b"<html>");
        assert_eq!(fault.retry_after, Some(Duration::from_secs(7)));
    }
}
