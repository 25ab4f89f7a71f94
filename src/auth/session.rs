//! The session cookie of the web UI. The API accepts it too, so that signed-in users can call it
//! from their browser.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::TryFutureExt;
use tower::{Layer, ServiceExt};
use tower_http::csrf::{CsrfLayer, ProtectionError};

use super::{Authenticator, Counted};
use crate::domain::event::UserId;
use crate::http::problem::Problem;
use crate::manage::{Principal, tokens};

/// The names of the session cookie, without and with TLS. Browsers accept the second one only over
/// TLS and from this host, so that no sibling domain can plant a session.
const COOKIE: &str = "walhook_session";
const HOST_COOKIE: &str = "__Host-walhook_session";
/// The name of the partitioned cookie, which is never beside one that is not.
const PARTITIONED_COOKIE: &str = "__Host-walhook_portal";

/// Returns the value of a cookie. None if the browser sends several of this name: another site may
/// have planted one.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let pairs = lines
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs
        .filter(|(given, _)| *given == name)
        .map(|(_, value)| value);

    values.next().filter(|_| values.next().is_none())
}

/// The session's id in a cookie of any of the names, of which a service uses one.
pub(super) fn any_session_id(headers: &HeaderMap) -> Option<&str> {
    [PARTITIONED_COOKIE, HOST_COOKIE, COOKIE]
        .into_iter()
        .find_map(|name| cookie(headers, name))
}

impl Authenticator {
    pub fn session_cookie_name(&self) -> &'static str {
        if self.is_embeddable() {
            PARTITIONED_COOKIE
        } else if self.is_secure() {
            HOST_COOKIE
        } else {
            COOKIE
        }
    }

    /// The session's id, valid or not, that the browser sends.
    pub fn session_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        cookie(headers, self.session_cookie_name())
    }

    /// Remembers a session that has just started, so that guesses of others do not delay its first
    /// request.
    pub fn record_session(&self, id: &str, user: &UserId) {
        self.known.record(tokens::hash(id), Some(user));
    }

    /// Returns the user who is signed in with the browser that sends these headers, and counts the
    /// request.
    pub async fn session_principal(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<Principal>, Problem> {
        let counted = self.count_session(headers).await?;
        Ok(counted.map(|counted| counted.principal))
    }

    pub(super) async fn count_session(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<Counted>, Problem> {
        let Some(id) = self.session_id(headers) else {
            return Ok(None);
        };

        let found = self.manage.session_principal(id);
        let found = found.map_ok(|found| found.ok_or(()));
        let counted = self.count(&self.known, tokens::hash(id), found).await?;
        Ok(counted.ok())
    }
}

/// Rejects requests that pages of other sites make a browser send. `reject` makes the response.
pub fn cross_site_protection<R: Clone>(authenticator: &Authenticator, reject: R) -> CsrfLayer<R> {
    let layer = CsrfLayer::new();
    let origin = authenticator.public_url.as_deref();
    let layer = match origin.map(|origin| layer.clone().add_trusted_origin(origin)) {
        Some(Ok(trusting)) => trusting,
        _ => layer,
    };

    layer.with_rejection_response(reject)
}

/// Rejects cross-site requests that are authenticated by the cookie. Requests with a token need no
/// protection: other sites do not have it.
pub async fn protect(
    State(authenticator): State<Authenticator>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::AUTHORIZATION) || authenticator.session_id(headers).is_none() {
        return next.run(request).await;
    }

    let reject = |_: ProtectionError| Problem::cross_site().into_response();
    let response = cross_site_protection(&authenticator, reject)
        .layer(next)
        .oneshot(request)
        .await;
    response.unwrap_or_else(|never| match never {})
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
