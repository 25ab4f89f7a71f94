//! The response headers `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::Authenticator;
use crate::config::Limits;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// How many more requests the user of this request may send at once. Empty until the user is known.
/// An extension of the request.
#[derive(Clone, Default)]
pub struct Meter(pub Arc<OnceLock<u32>>);

/// Returns the value of `RateLimit-Policy`: the burst, and in how many seconds it is available
/// again. None if requests are not limited.
pub fn policy(limits: &Limits) -> Option<HeaderValue> {
    let rate = limits.requests_per_second;
    let quota = if limits.burst == 0 {
        rate
    } else {
        limits.burst
    };
    let window = quota.div_ceil(NonZeroU32::new(rate)?.get());
    HeaderValue::try_from(format!(r#""user";q={quota};w={window}"#)).ok()
}

/// Adds the headers to responses of requests that were counted for a user.
pub async fn show_rate_limit(
    State(authenticator): State<Authenticator>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(policy) = authenticator.policy else {
        return next.run(request).await;
    };

    let meter = Meter::default();
    request.extensions_mut().insert(meter.clone());
    let mut response = next.run(request).await;

    // The rate is at least one a second, so that one more is allowed a second later.
    let state = match meter.0.get() {
        Some(remaining) => format!(r#""user";r={remaining};t=1"#),
        None if response.status() == StatusCode::TOO_MANY_REQUESTS => {
            let wait = response.headers().get(header::RETRY_AFTER);
            let wait = wait.and_then(|wait| wait.to_str().ok()).unwrap_or("1");
            format!(r#""user";r=0;t={wait}"#)
        }
        None => return response,
    };

    let state = HeaderValue::try_from(state).expect("digits and ASCII");
    response.headers_mut().insert(STATE, state);
    response.headers_mut().insert(POLICY, policy);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_the_time_in_which_the_burst_is_available_again() {
        let shown = |requests_per_second, burst| {
            let limits = Limits {
                requests_per_second,
                burst,
                ..Limits::default()
            };
            policy(&limits).map(|policy| policy.to_str().unwrap().to_owned())
        };

        assert_eq!(shown(100, 200).as_deref(), Some(r#""user";q=200;w=2"#));
        assert_eq!(shown(100, 50).as_deref(), Some(r#""user";q=50;w=1"#));
        assert_eq!(shown(2, 5).as_deref(), Some(r#""user";q=5;w=3"#));
        assert_eq!(shown(7, 0).as_deref(), Some(r#""user";q=7;w=1"#));
        assert_eq!(shown(0, 200), None);
    }
}
