//! Authentication: an API token, a token of the platform or a session stands for one user, whose
//! requests are counted together for the rate limit.

mod cells;
mod jwks;
mod jwt;
mod jwt_crypto;
mod known;
mod rate_limit;
mod rejection;
mod session;

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use futures_util::TryFutureExt;

pub use self::cells::CellRouters;
pub use self::jwks::JwtError;
pub use self::jwt::{JwtVerifier, MAX_TOKEN_BYTES};
pub use self::rate_limit::show_rate_limit;
pub use self::session::{cookie, cross_site_protection, protect};

use self::known::{Credential, Known};
use self::rate_limit::Meter;
use crate::config::Config;
use crate::domain::cell::{Shard, Shards};
use crate::domain::event::UserId;
use crate::domain::scope::Scope;
use crate::http::Occupied;
use crate::http::problem::Problem;
use crate::manage::limits::RateLimit;
use crate::manage::tokens::{self, is_api_token};
use crate::manage::{Actor, Manage, Principal, SignInLink, Via};
use crate::telemetry::recurring;

/// How many valid tokens and sessions the process remembers, with about 100 bytes each.
const KNOWN_CREDENTIALS: usize = 50_000;

/// Whose requests are counted together for the rate limit.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Requester {
    /// However it is authenticated.
    User(UserId),
    /// Not known to be valid.
    Credential(Credential),
}

/// Authenticates requests, within rate limits. Clones are cheap.
#[derive(Clone)]
pub struct Authenticator {
    manage: Manage,
    /// The address at which browsers reach this service, if configured.
    public_url: Option<Arc<str>>,
    /// Whether pages of other origins may show the web UI in a frame.
    is_embeddable: bool,
    throttle: Arc<RateLimit<Requester>>,
    /// The value of `RateLimit-Policy`. None without a limit.
    policy: Option<HeaderValue>,
    known: Arc<Known>,
    /// Separate, because the platform may issue a new token for each request.
    known_jwts: Arc<Known>,
    jwt: Option<Arc<JwtVerifier>>,
    /// The shards of the store's users. None if they are all, empty until they are known.
    shards: Option<Arc<OnceLock<Shards>>>,
}

impl Authenticator {
    /// Accepts the platform's tokens too if there is a verifier.
    pub fn new(config: &Config, manage: Manage, jwt: Option<JwtVerifier>) -> Authenticator {
        let limits = &config.limits;

        Authenticator {
            manage,
            public_url: config.http.public_url.as_deref().map(Arc::from),
            is_embeddable: !config.ui.frame_ancestors.is_empty(),
            throttle: Arc::new(RateLimit::per_second(
                limits.requests_per_second,
                limits.burst,
            )),
            policy: rate_limit::policy(limits),
            known: Arc::new(Known::new(limits, KNOWN_CREDENTIALS)),
            known_jwts: Arc::new(Known::new(limits, KNOWN_CREDENTIALS)),
            jwt: jwt.map(Arc::new),
            shards: None,
        }
    }

    /// Accepts the platform's tokens of users of these shards only: others are of another cell.
    pub fn with_shards(self, shards: Option<Arc<OnceLock<Shards>>>) -> Authenticator {
        Authenticator { shards, ..self }
    }

    /// Fails if the user is of another cell, which has the user's data.
    fn check_cell(&self, user: &UserId) -> Result<(), Problem> {
        let is_here = |shards: &Arc<OnceLock<Shards>>| {
            let shards = shards.get();
            shards.is_some_and(|shards| shards.contains(Shard::of(user)))
        };

        if self.shards.as_ref().is_none_or(is_here) {
            return Ok(());
        }

        recurring!(
            warn,
            "requests of users of another cell arrive here: send them to the address of all cells"
        );
        Err(Problem::unavailable())
    }

    pub fn is_embeddable(&self) -> bool {
        self.is_embeddable
    }

    /// Whether browsers reach this service over TLS only, according to `http.public_url`, or on
    /// loopback, where they accept secure cookies without TLS.
    pub fn is_secure(&self) -> bool {
        self.is_embeddable
            || self
                .public_url
                .as_ref()
                .is_some_and(|url| url.starts_with("https://"))
    }

    /// The address at which browsers reach this service, if configured.
    pub fn public_url(&self) -> Option<&str> {
        self.public_url.as_deref()
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

        let mut counted = None;

        if !parts.headers.contains_key(header::AUTHORIZATION) {
            counted = self.count_session(&parts.headers).await?;
        }

        let Counted {
            principal,
            remaining,
        } = match counted {
            Some(counted) => counted,
            None => {
                let token = bearer_token(&parts.headers).ok_or_else(Problem::unauthorized)?;
                self.count_token(token).await?
            }
        };

        if let Some(Meter(meter)) = parts.extensions.get() {
            let _ = meter.set(remaining);
        }

        authenticated(parts, principal).await
    }

    /// Returns the user that a token stands for, and counts the request.
    pub async fn authenticate_token(&self, token: &str) -> Result<Actor, Problem> {
        Ok(self.count_token(token).await?.principal.actor)
    }

    async fn count_token(&self, token: &str) -> Result<Counted, Problem> {
        let credential = tokens::hash(token);

        if let Some(verifier) = self.jwt()
            && !is_api_token(token)
        {
            let found = verifier.user(token).map_ok(|user| {
                user.map(|user| Principal {
                    actor: Actor {
                        user,
                        via: Via::Jwt,
                    },
                    scope: Scope::Full,
                })
            });
            let counted = self.count(&self.known_jwts, credential, found).await??;
            self.check_cell(&counted.principal.actor.user)?;
            return Ok(counted);
        }

        let found = self.manage.token_principal(token);
        let found = found.map_ok(|found| found.ok_or_else(Problem::unauthorized));
        self.count(&self.known, credential, found).await?
    }

    /// Returns the content of a sign-in link: of Walhook's, or a token of the platform. None if it
    /// is invalid.
    pub async fn authenticate_link(&self, link: &str) -> Result<Option<SignInLink>, Problem> {
        self.count_unknown(&self.known_jwts, tokens::hash(link))?;

        if let Some(link) = self.manage.read_link(link) {
            return Ok(Some(link));
        }

        let Some(verifier) = self.jwt() else {
            return Ok(None);
        };
        let found = verifier.link(link).await?.ok();
        if let Some((user, _)) = &found {
            self.check_cell(user)?;
        }

        Ok(found.map(|(user, expires_at)| SignInLink {
            user,
            token: None,
            expires_at,
        }))
    }

    /// Counts a request for the rate limit, and returns how many more are allowed at once. Fails if
    /// the requester has sent too many.
    fn count_request(&self, requester: &Requester) -> Result<u32, Problem> {
        self.throttle
            .check(requester)
            .map_err(Problem::rate_limited)
    }

    /// Counts a request with a credential that is not known to be valid.
    fn count_unknown(&self, known: &Known, credential: Credential) -> Result<(), Problem> {
        self.count_request(&Requester::Credential(credential))?;
        known.count_unknown().map_err(Problem::rate_limited)
    }

    /// Counts a request for its user, however it is authenticated. `found` looks up or verifies its
    /// token or session. A rejected request costs the store nothing, and no signature is verified
    /// for it. The inner error is that the credential is not valid.
    async fn count<R, E>(
        &self,
        known: &Known,
        credential: Credential,
        found: impl Future<Output = Result<Result<Principal, R>, E>>,
    ) -> Result<Result<Counted, R>, Problem>
    where
        Problem: From<E>,
    {
        let known_user = known.user(&credential);
        let mut remaining = None;

        match known_user.clone() {
            Some(user) => remaining = Some(self.count_request(&Requester::User(user))?),
            None => self.count_unknown(known, credential)?,
        }

        let found = found.await?;
        let user = found.as_ref().ok().map(|principal| &principal.actor.user);
        known.record(credential, user);

        let principal = match found {
            Ok(principal) => principal,
            Err(rejection) => return Ok(Err(rejection)),
        };

        let remaining = match remaining {
            Some(remaining) => remaining,
            None => self.count_request(&Requester::User(principal.actor.user.clone()))?,
        };

        Ok(Ok(Counted {
            principal,
            remaining,
        }))
    }
}

/// The user of a request that was counted.
struct Counted {
    principal: Principal,
    /// How many more requests the user may send at once.
    remaining: u32,
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

/// Rejects a request that its token may not make. Counts it for its user from now on.
pub async fn authenticated(parts: &mut Parts, principal: Principal) -> Result<Actor, Problem> {
    let Principal { actor, scope } = principal;
    if scope == Scope::ReadOnly && !parts.method.is_safe() {
        return Err(Problem::read_only());
    }

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
