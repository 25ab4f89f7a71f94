//! Authentication: an API token, a token of the platform or a session stands for one user. Requests
//! are rate-limited per API token, and otherwise per user.

mod jwks;
mod jwt;
mod jwt_crypto;
mod known;
mod rejection;
mod session;

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use futures_util::TryFutureExt;
use jiff::Timestamp;

pub use self::jwks::JwtError;
pub use self::jwt::{JwtVerifier, MAX_TOKEN_BYTES};
pub use self::session::{cookie, cross_site_protection, protect};

use self::known::Known;
use crate::config::Config;
use crate::domain::event::UserId;
use crate::http::Occupied;
use crate::http::problem::Problem;
use crate::manage::limits::RateLimit;
use crate::manage::tokens::{self, is_api_token};
use crate::manage::{Actor, Manage, Via};

/// How many valid tokens and sessions the process remembers, with 33 bytes each.
const KNOWN_CREDENTIALS: usize = 50_000;

/// Whose requests are counted together for the rate limit.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Requester {
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

/// Authenticates requests, within rate limits. Clones are cheap.
#[derive(Clone)]
pub struct Authenticator {
    manage: Manage,
    /// The address at which browsers reach this service, if configured.
    public_url: Option<Arc<str>>,
    throttle: Arc<RateLimit<Requester>>,
    known: Arc<Known<Requester>>,
    /// Separate, because the platform may issue a new token for each request.
    known_jwts: Arc<Known<Requester>>,
    jwt: Option<Arc<JwtVerifier>>,
}

impl Authenticator {
    /// Accepts the platform's tokens too if there is a verifier.
    pub fn new(config: &Config, manage: Manage, jwt: Option<JwtVerifier>) -> Authenticator {
        let limits = &config.limits;

        Authenticator {
            manage,
            public_url: config.http.public_url.as_deref().map(Arc::from),
            throttle: Arc::new(RateLimit::per_second(
                limits.requests_per_second,
                limits.burst,
            )),
            known: Arc::new(Known::new(limits, KNOWN_CREDENTIALS)),
            known_jwts: Arc::new(Known::new(limits, KNOWN_CREDENTIALS)),
            jwt: jwt.map(Arc::new),
        }
    }

    /// Whether browsers reach this service over TLS only, according to `http.public_url`.
    pub fn is_secure(&self) -> bool {
        self.public_url
            .as_ref()
            .is_some_and(|url| url.starts_with("https://"))
    }

    /// The verifier of the platform's tokens. None if they are not accepted.
    pub fn jwt(&self) -> Option<&JwtVerifier> {
        self.jwt.as_deref()
    }

    /// Authenticates a request once: later calls return the first result.
    pub async fn authenticate(&self, parts: &mut Parts) -> Result<Actor, Problem> {
        if let Some(actor) = parts.extensions.get::<Actor>() {
            return Ok(actor.clone());
        }

        if !parts.headers.contains_key(header::AUTHORIZATION)
            && let Some(actor) = self.session_actor(&parts.headers).await?
        {
            return authenticated(parts, actor).await;
        }

        let token = bearer_token(&parts.headers).ok_or_else(Problem::unauthorized)?;
        let actor = self.authenticate_token(token).await?;
        authenticated(parts, actor).await
    }

    /// Returns the user that a token stands for, and counts the request.
    pub async fn authenticate_token(&self, token: &str) -> Result<Actor, Problem> {
        if let Some(verifier) = self.jwt()
            && !is_api_token(token)
        {
            let user = self
                .look_up(Requester::Jwt(tokens::hash(token)), verifier.user(token))
                .await??;
            self.count_request(Requester::JwtUser(user.clone()))?;

            return Ok(Actor {
                user,
                via: Via::Jwt,
            });
        }

        let found = self.manage.token_user(token);
        let (id, user) = self
            .look_up(
                Requester::Token(tokens::hash(token)),
                found.map_ok(|found| found.ok_or_else(Problem::unauthorized)),
            )
            .await??;

        Ok(Actor {
            user,
            via: Via::Token(id),
        })
    }

    /// Returns the user of a sign-in link's token, and the time from which the token would be
    /// rejected anyway: until then the caller must prevent a second use. None if the token is
    /// invalid, or no links are accepted.
    pub async fn authenticate_link(
        &self,
        token: &str,
    ) -> Result<Option<(UserId, Timestamp)>, Problem> {
        let Some(verifier) = self.jwt() else {
            return Ok(None);
        };

        let found = self
            .look_up(Requester::Jwt(tokens::hash(token)), verifier.link(token))
            .await?;
        Ok(found.ok())
    }

    /// Counts a request for the rate limit. Fails if the requester has sent too many.
    fn count_request(&self, requester: Requester) -> Result<(), Problem> {
        self.throttle
            .check(&requester)
            .map_err(Problem::rate_limited)
    }

    /// Counts a request for the rate limit, then looks up or verifies the token or the session that
    /// it is counted for. A rejected request costs the store nothing, and no signature is verified
    /// for it. The inner error is that the credential is not valid.
    async fn look_up<T, R, E>(
        &self,
        credential: Requester,
        found: impl Future<Output = Result<Result<T, R>, E>>,
    ) -> Result<Result<T, R>, Problem>
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
        known.record(credential, found.is_ok());

        Ok(found)
    }
}

/// The user that a request acts for. Handlers extract it first, so that nothing else of an
/// unauthenticated request is read.
#[derive(Debug)]
pub struct Caller(pub UserId);

impl<S> FromRequestParts<S> for Caller
where
    S: Send + Sync,
    Authenticator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Changer(actor) = Changer::from_request_parts(parts, state).await?;
        Ok(Caller(actor.user))
    }
}

/// The user of a request that changes something, with the means of authentication for the audit
/// log.
#[derive(Debug)]
pub struct Changer(pub Actor);

impl<S> FromRequestParts<S> for Changer
where
    S: Send + Sync,
    Authenticator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let authenticator = Authenticator::from_ref(state);
        authenticator.authenticate(parts).await.map(Changer)
    }
}

/// Counts the request for its user from now on.
pub async fn authenticated(parts: &mut Parts, actor: Actor) -> Result<Actor, Problem> {
    if let Some(occupied) = parts.extensions.get::<Occupied>() {
        occupied.authenticated(&actor.user).await?;
    }

    parts.extensions.insert(actor.clone());
    Ok(actor)
}

pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };

    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
