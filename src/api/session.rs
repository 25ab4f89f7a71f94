//! The cookie of the user interface. The API takes it too, so that what is signed in there can call it.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::SecretString;
use tower::{Layer, ServiceExt};
use tower_http::csrf::{CsrfLayer, ProtectionError};
use uuid::Uuid;

use super::ApiState;
use super::problem::Problem;
use crate::store::audit::{Actor, Via};
use crate::store::sessions::{self, Session};
use crate::telemetry::recurring;

/// The session's cookie. Browsers take one of the second name over TLS from this very host alone, so that no sibling domain can
/// plant a session.
const COOKIE: &str = "walhook_session";
const HOST_COOKIE: &str = "__Host-walhook_session";
/// Any id that is ours alone: keeps users of the interface apart from API tokens where both are counted.
const SESSION_USERS: Uuid = Uuid::from_u128(0x2f8c_91d4_7be0_4a55_8c31_5d0e_a1b6_70f2);

/// The value of a cookie, where the browser sent it once.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(given, _)| *given == name).map(|(_, value)| value);
    values.next().filter(|_| values.next().is_none())
}

impl ApiState {
    /// Whether `http.public_url` says that browsers reach this service over TLS alone.
    pub fn is_secure(&self) -> bool {
        self.public_url.as_deref().is_some_and(|url| url.starts_with("https://"))
    }

    pub fn session_cookie_name(&self) -> &'static str {
        if self.is_secure() { HOST_COOKIE } else { COOKIE }
    }

    /// The id of the session, valid or not, that the browser sends.
    pub fn session_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        cookie(headers, self.session_cookie_name())
    }

    /// The webhook's secret, while the session may show it because it has just asked for it.
    pub async fn revealed_secret(&self, session: &str, webhook: Uuid) -> Result<Option<SecretString>, Problem> {
        let Some(sealed) = sessions::revealed(&self.store, session, webhook).await? else { return Ok(None) };
        let secret = self.vault.open_text(webhook, &sealed.key_id, &sealed.bytes).map_err(|error| {
            recurring!(error, %webhook, %error, "a webhook's secret cannot be read");
            Problem::internal()
        })?;
        Ok(Some(secret))
    }
}

/// Who is signed in with the browser that sends these headers; counted as a request of theirs.
pub async fn actor(state: &ApiState, headers: &HeaderMap) -> Result<Option<Actor>, Problem> {
    let Some(id) = state.session_id(headers) else { return Ok(None) };
    let Some(Session { user, token }) = sessions::find(&state.store, id).await? else { return Ok(None) };
    state.throttle.check(Uuid::new_v5(&SESSION_USERS, user.0.as_bytes())).map_err(Problem::rate_limited)?;
    Ok(Some(Actor { user, via: Via::Session(token) }))
}

/// Refuses what pages of other sites make a browser send. `reject` answers it.
pub fn cross_site_protection<R: Clone>(state: &ApiState, reject: R) -> CsrfLayer<R> {
    let layer = CsrfLayer::new();
    let origin = state.public_url.as_deref();
    let layer = match origin.map(|origin| layer.clone().add_trusted_origin(origin)) {
        Some(Ok(trusting)) => trusting,
        _ => layer,
    };
    layer.with_rejection_response(reject)
}

/// The same for the API, where it is the cookie that speaks for the user. A token is sent by nobody but who has it.
pub async fn protect(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::AUTHORIZATION) || state.session_id(headers).is_none() {
        return next.run(request).await;
    }
    let reject = |_: ProtectionError| Problem::cross_site().into_response();
    let answer = cross_site_protection(&state, reject).layer(next).oneshot(request).await;
    answer.unwrap_or_else(|never| match never {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_that_is_sent_twice_is_none() {
        let found = |line: &str| {
            let headers = HeaderMap::from_iter([(header::COOKIE, line.parse().unwrap())]);
            cookie(&headers, "a").map(str::to_owned)
        };
        assert_eq!(found("a=1; b=2"), Some("1".into()));
        assert_eq!(found("b=2;a=x=y"), Some("x=y".into()));
        assert_eq!(found("a=1; a=2"), None);
        assert_eq!(found("aa=1"), None);
    }
}
