//! Cross-origin requests: none are allowed, except from configured origins.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::CorsLayer;

/// How long browsers may cache the response to a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(3_600);

/// Returns the CORS layer, if origins are configured. It does not allow cookies: pages of other
/// origins authenticate with a token.
pub fn layer(origins: &[HeaderValue]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }

    let custom = HeaderName::from_static;
    let sent = [
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        custom("idempotency-key"),
        custom("last-event-id"),
        custom("x-request-id"),
    ];

    let shown = [
        header::ETAG,
        header::LINK,
        header::LOCATION,
        header::RETRY_AFTER,
        custom("idempotency-replayed"),
        custom("ratelimit"),
        custom("ratelimit-policy"),
        custom("x-request-id"),
    ];

    let layer = CorsLayer::new()
        .allow_origin(origins.to_vec())
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        .allow_headers(sent)
        .expose_headers(shown)
        .max_age(PREFLIGHT_AGE);

    Some(layer)
}
