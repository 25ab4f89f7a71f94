//! Who is asking: a bearer token, of ours or of the platform, or a session stands for one user. Each may ask so often and no more.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use uuid::Uuid;

use super::ApiState;
use super::problem::Problem;
use super::session;
use crate::domain::event::UserId;
use crate::store::audit::{Actor, Via};
use crate::store::tokens;

/// The user a request is made for. Taken before anything else of the request is looked at.
#[derive(Debug)]
pub struct Caller(pub UserId);

impl FromRequestParts<ApiState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        authenticate(parts, state).await.map(|actor| Caller(actor.user))
    }
}

/// The same for a request that changes something: with how the user showed who they are, for the record.
#[derive(Debug)]
pub struct Changer(pub Actor);

impl FromRequestParts<ApiState> for Changer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        authenticate(parts, state).await.map(Changer)
    }
}

/// Once a request, whoever asks first.
pub async fn authenticate(parts: &mut Parts, state: &ApiState) -> Result<Actor, Problem> {
    if let Some(actor) = parts.extensions.get::<Actor>() {
        return Ok(actor.clone());
    }
    if !parts.headers.contains_key(header::AUTHORIZATION)
        && let Some(actor) = session::actor(state, &parts.headers).await?
    {
        parts.extensions.insert(actor.clone());
        return Ok(actor);
    }
    let token = bearer_token(&parts.headers).ok_or_else(Problem::unauthorized)?;
    let actor = authenticate_token(state, token).await?;
    parts.extensions.insert(actor.clone());
    Ok(actor)
}

/// Whom a token stands for; counted as a request of theirs.
pub async fn authenticate_token(state: &ApiState, token: &str) -> Result<Actor, Problem> {
    let (actor, throttled) = match &state.jwt {
        Some(verifier) if !tokens::is_api_token(token) => {
            let user = verifier.user(token).await?;
            // The platform makes a new token as often as it likes: what counts is the user.
            let throttled = Uuid::new_v5(&JWT_USERS, user.0.as_bytes());
            (Actor { user, via: Via::Jwt }, throttled)
        }
        _ => {
            let bearer = tokens::bearer(&state.store, token).await?.ok_or_else(Problem::unauthorized)?;
            (Actor { user: bearer.user, via: Via::Token(bearer.token) }, bearer.token)
        }
    };
    state.throttle.check(throttled).map_err(Problem::rate_limited)?;
    Ok(actor)
}

/// Any id that is ours alone: keeps users apart from API tokens where both are counted.
const JWT_USERS: Uuid = Uuid::from_u128(0x6f1d_3c1a_52a4_4b0e_9d57_0c7f_25e3_b8a6);

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
