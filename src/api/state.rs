//! The state of the API.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use tokio_util::sync::CancellationToken;

use super::jwt::JwtVerifier;
use super::known::Known;
use super::problem::Problem;
use super::public_keys::PublishedKeys;
use crate::config::Config;
use crate::domain::event::UserId;
use crate::manage::Manage;
use crate::manage::limits::RateLimit;

/// The time limit of a request, without the time for which a test waits for its receiver. Generous
/// for a handler.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(60);

/// How many valid tokens and sessions the process remembers, with 33 bytes each.
const KNOWN_CREDENTIALS: usize = 50_000;

/// Whose requests are counted together for the rate limit.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Requester {
    /// The hash of an API token, valid or not.
    Token([u8; 32]),
    /// By user: the platform may issue a new token for each request.
    JwtUser(UserId),
    /// The hash of a session's id, valid or not.
    Session([u8; 32]),
    SessionUser(UserId),
    /// The hash of a token of the platform, valid or not.
    Jwt([u8; 32]),
}

/// The state that requests share. Clones are cheap.
#[derive(Clone)]
pub struct ApiState {
    manage: Manage,
    /// The address at which browsers reach this service, if configured.
    public_url: Option<Arc<str>>,
    /// Without a trailing slash.
    base_path: Arc<str>,
    pub(super) max_body_bytes: usize,
    throttle: Arc<RateLimit<Requester>>,
    pub(super) known: Arc<Known<Requester>>,
    /// Separate, because the platform may issue a new token for each request.
    known_jwts: Arc<Known<Requester>>,
    jwt: Option<Arc<JwtVerifier>>,
    pub(super) published_keys: Arc<PublishedKeys>,
    /// The origins whose pages may call the API from a browser.
    cors_origins: Arc<[HeaderValue]>,
    request_timeout: Duration,
    /// Cancelled when the listener closes: streams and long polls end.
    closed: CancellationToken,
}

impl ApiState {
    pub fn new(config: &Config, manage: Manage) -> ApiState {
        let http = &config.http;
        ApiState {
            manage,
            public_url: http.public_url.as_deref().map(Arc::from),
            base_path: http.base_path.trim_end_matches('/').into(),
            max_body_bytes: usize::try_from(http.max_body_bytes.0).unwrap_or(usize::MAX),
            throttle: Arc::new(RateLimit::per_second(
                config.limits.requests_per_second,
                config.limits.burst,
            )),
            known: Arc::new(Known::new(&config.limits, KNOWN_CREDENTIALS)),
            known_jwts: Arc::new(Known::new(&config.limits, KNOWN_CREDENTIALS)),
            jwt: None,
            published_keys: Arc::new(PublishedKeys::new()),
            cors_origins: http
                .cors_origins
                .iter()
                .filter_map(|origin| origin.parse().ok())
                .collect(),
            request_timeout: MAX_REQUEST_TIME + config.delivery.timeout.0,
            closed: CancellationToken::new(),
        }
    }

    /// Ends streams and long polls when the listener closes.
    pub fn with_closed(self, closed: CancellationToken) -> ApiState {
        ApiState { closed, ..self }
    }

    /// Accepts the platform's tokens too.
    pub fn with_jwt(self, verifier: Option<JwtVerifier>) -> ApiState {
        ApiState {
            jwt: verifier.map(Arc::new),
            ..self
        }
    }

    /// The use cases that the API and the web UI offer.
    pub fn manage(&self) -> &Manage {
        &self.manage
    }

    /// The time limit of a request. Its claim on an idempotency key expires after the same time.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The address at which browsers reach this service, such as `https://hooks.example`.
    pub fn public_url(&self) -> Option<&str> {
        self.public_url.as_deref()
    }

    /// Whether browsers reach this service over TLS only, according to `http.public_url`.
    pub fn is_secure(&self) -> bool {
        self.public_url()
            .is_some_and(|url| url.starts_with("https://"))
    }

    /// The path of the API.
    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    /// The verifier of the platform's tokens. None if they are not accepted.
    pub fn jwt(&self) -> Option<&JwtVerifier> {
        self.jwt.as_deref()
    }

    /// Counts a request for the rate limit. Fails if the requester has sent too many.
    pub(super) fn count_request(&self, requester: Requester) -> Result<(), Problem> {
        self.throttle
            .check(&requester)
            .map_err(Problem::rate_limited)
    }

    /// Counts a request for the rate limit, then looks up or verifies the token or the session that
    /// it is counted for. A rejected request costs the store nothing, and no signature is verified
    /// for it.
    pub(super) async fn look_up<T, E>(
        &self,
        credential: Requester,
        found: impl Future<Output = Result<Option<T>, E>>,
    ) -> Result<Option<T>, Problem>
    where
        Problem: From<E>,
    {
        let known = if matches!(credential, Requester::Jwt(_)) {
            &self.known_jwts
        } else {
            &self.known
        };

        self.count_request(credential.clone())?;
        known.check(&credential).map_err(Problem::rate_limited)?;

        let found = found.await?;
        known.record(credential, found.is_some());

        Ok(found)
    }

    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    pub(super) fn cors_origins(&self) -> &[HeaderValue] {
        &self.cors_origins
    }
}
