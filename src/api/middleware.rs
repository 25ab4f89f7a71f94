//! What every request and answer goes through: an id, headers that protect browsers, and an answer even to a panic.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;
use uuid::Uuid;

use super::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST_REQUEST_ID: usize = 128;

/// Takes the caller's request id, or makes one; the log and the answer both have it.
pub async fn request_id(request: Request, next: Next) -> Response {
    let id = given_id(request.headers()).unwrap_or_else(|| {
        HeaderValue::try_from(Uuid::now_v7().to_string()).expect("a UUID is of letters, digits and hyphens")
    });
    let shown = id.to_str().unwrap_or_default();
    let span = tracing::info_span!("request", id = shown, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// An id that can stand in a log line.
fn given_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(REQUEST_ID)?;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    let bytes = id.as_bytes();
    ((1..=LONGEST_REQUEST_ID).contains(&bytes.len()) && bytes.iter().all(plain)).then(|| id.clone())
}

/// Answers hold what is one user's: nobody keeps, frames, sniffs or runs them.
pub async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in headers {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// A panic is logged by the panic hook; the client learns no more than that there was a fault.
pub fn answer_panic(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a request's handler panicked");
    Problem::internal().into_response()
}
