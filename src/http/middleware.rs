//! Middleware of every request: request ids, security headers, and a response even to a panic.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;
use uuid::Uuid;

use super::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID_LENGTH: usize = 128;

/// Accepts the client's request id, or creates one. The server log and the response contain it.
pub async fn request_id(request: Request, next: Next) -> Response {
    let id = given_id(request.headers()).unwrap_or_else(|| {
        HeaderValue::try_from(Uuid::now_v7().to_string())
            .expect("a UUID consists of hexadecimal digits and hyphens")
    });

    let shown = id.to_str().unwrap_or_default();
    let span = tracing::info_span!("request", id = shown, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span).await;

    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Returns the client's request id if it is safe in a log line.
fn given_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(REQUEST_ID)?;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    let bytes = id.as_bytes();
    ((1..=MAX_REQUEST_ID_LENGTH).contains(&bytes.len()) && bytes.iter().all(plain))
        .then(|| id.clone())
}

/// Adds headers that forbid browsers and proxies to cache, frame, sniff or execute responses: they
/// contain one user's data.
pub async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        ),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    add_headers(&mut response, headers);
    response
}

/// Adds headers that the response does not have yet.
pub fn add_headers<const N: usize>(
    response: &mut Response,
    headers: [(HeaderName, &'static str); N],
) {
    for (name, value) in headers {
        response
            .headers_mut()
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
}

/// Responds to a panic, which the panic hook logs. The client gets no details.
pub fn respond_to_panic(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a request's handler panicked");
    Problem::internal().into_response()
}
