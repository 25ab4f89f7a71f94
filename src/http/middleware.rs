//! Middleware of every request: request ids, security headers, and a response even to a panic.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tracing::Instrument;
use uuid::Uuid;

use super::problem::{self, Problem};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID_LENGTH: usize = 128;
/// More than the longest list of errors takes.
const MAX_PROBLEM_BYTES: usize = 1 << 20;

/// The id of a request: the client's, or a new one. An extension of the request.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the request's id. It stays the same from the first call on.
    pub fn of(request: &mut Request) -> RequestId {
        if let Some(id) = request.extensions().get::<RequestId>() {
            return id.clone();
        }

        let id = given_id(request.headers()).unwrap_or_else(|| {
            HeaderValue::try_from(Uuid::now_v7().to_string())
                .expect("a UUID consists of hexadecimal digits and hyphens")
        });

        request.extensions_mut().insert(RequestId(id.clone()));
        RequestId(id)
    }

    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// Adds the id to a response that does not have it yet: as a header, and to problem details as
    /// a member.
    pub async fn mark(self, response: Response) -> Response {
        if response.headers().contains_key(REQUEST_ID) {
            return response;
        }

        let mut response = match response.headers().get(header::CONTENT_TYPE) {
            Some(kind) if kind == problem::CONTENT_TYPE => self.name_in_problem(response).await,
            _ => response,
        };

        response.headers_mut().insert(REQUEST_ID, self.0);
        response
    }

    async fn name_in_problem(&self, response: Response) -> Response {
        let (mut parts, body) = response.into_parts();
        let text = to_bytes(body, MAX_PROBLEM_BYTES).await.unwrap_or_default();

        // A HEAD request has no body.
        let Ok(mut problem) = serde_json::from_slice::<Map<String, Value>>(&text) else {
            return Response::from_parts(parts, text.into());
        };

        problem.insert("request_id".to_owned(), self.as_str().into());
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Value::Object(problem).to_string().into())
    }
}

/// Identifies the request in the server log and in the response.
pub async fn request_id(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(&mut request);
    let span = tracing::info_span!("request", request_id = id.as_str(), method = %request.method(), path = request.uri().path());
    let response = next.run(request).instrument(span).await;
    id.mark(response).await
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
