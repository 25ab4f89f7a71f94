//! Authentication: an API token, a token of the platform or a session stands for one user. Requests
//! are rate-limited per API token, and otherwise per user.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use jiff::Timestamp;

use super::clients::Occupied;
use super::problem::Problem;
use super::session;
use super::state::{ApiState, Requester};
use crate::domain::event::UserId;
use crate::manage::tokens::{self, is_api_token};
use crate::manage::{Actor, Via};

/// The user that a request acts for. Handlers extract it first, so that nothing else of an
/// unauthenticated request is read.
#[derive(Debug)]
pub struct Caller(pub UserId);

impl FromRequestParts<ApiState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        authenticate(parts, state)
            .await
            .map(|actor| Caller(actor.user))
    }
}

/// The user of a request that changes something, with the means of authentication for the audit
/// log.
#[derive(Debug)]
pub struct Changer(pub Actor);

impl FromRequestParts<ApiState> for Changer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        authenticate(parts, state).await.map(Changer)
    }
}

/// Authenticates a request once: later calls return the first result.
pub async fn authenticate(parts: &mut Parts, state: &ApiState) -> Result<Actor, Problem> {
    if let Some(actor) = parts.extensions.get::<Actor>() {
        return Ok(actor.clone());
    }

    if !parts.headers.contains_key(header::AUTHORIZATION)
        && let Some(actor) = session::actor(state, &parts.headers).await?
    {
        return authenticated(parts, actor).await;
    }

    let token = bearer_token(&parts.headers).ok_or_else(Problem::unauthorized)?;
    let actor = authenticate_token(state, token).await?;
    authenticated(parts, actor).await
}

/// Counts the request for its user from now on.
pub async fn authenticated(parts: &mut Parts, actor: Actor) -> Result<Actor, Problem> {
    if let Some(occupied) = parts.extensions.get::<Occupied>() {
        occupied.authenticated(&actor.user).await?;
    }

    parts.extensions.insert(actor.clone());
    Ok(actor)
}

/// Returns the user that a token stands for, and counts the request.
pub async fn authenticate_token(state: &ApiState, token: &str) -> Result<Actor, Problem> {
    match state.jwt() {
        Some(verifier) if !is_api_token(token) => {
            let user = state
                .look_up(Requester::Jwt(tokens::hash(token)), verifier.user(token))
                .await?;
            let user = user.ok_or_else(Problem::unauthorized)?;
            state.count_request(Requester::JwtUser(user.clone()))?;

            Ok(Actor {
                user,
                via: Via::Jwt,
            })
        }
        _ => {
            let found = state
                .look_up(
                    Requester::Token(tokens::hash(token)),
                    state.manage().token_user(token),
                )
                .await?;

            let (id, user) = found.ok_or_else(Problem::unauthorized)?;
            Ok(Actor {
                user,
                via: Via::Token(id),
            })
        }
    }
}

/// Returns the user of a sign-in link's token, and the time from which the token would be rejected
/// anyway: until then the caller must prevent a second use. None if the token is invalid, or no
/// links are accepted.
pub async fn authenticate_link(
    state: &ApiState,
    token: &str,
) -> Result<Option<(UserId, Timestamp)>, Problem> {
    let Some(verifier) = state.jwt() else {
        return Ok(None);
    };

    state
        .look_up(Requester::Jwt(tokens::hash(token)), verifier.link(token))
        .await
}

pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };

    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
