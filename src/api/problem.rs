//! Errors of the API: problem details (RFC 9457) with stable types. They reveal nothing internal.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::manage::Fault;
use crate::store::StoreError;
use crate::telemetry::recurring;

/// Errors that one response lists at most. A body may have thousands, and the first are enough to fix it.
pub const MAX_ERRORS: usize = 20;

/// An error response. Boxed, so that the results of handlers are small.
#[derive(Debug)]
pub struct Problem(Box<Details>);

#[derive(Debug)]
struct Details {
    status: StatusCode,
    slug: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    errors: Vec<FieldError>,
    header: Option<(HeaderName, HeaderValue)>,
    /// Whether the same request may succeed later.
    is_transient: bool,
}

/// Marks an error response of a request that may succeed later.
#[derive(Clone, Copy, Debug)]
pub struct Transient;

/// One error of a request
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// A JSON pointer (RFC 6901) into the request's body; for a query parameter, a slash and its name
    #[schema(example = "/url")]
    pub pointer: String,
    #[schema(example = "is required")]
    pub detail: String,
}

impl FieldError {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { pointer: pointer.into(), detail: detail.into() }
    }
}

/// Problem details (RFC 9457)
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody<'a> {
    /// A stable identifier of the kind of error
    #[serde(rename = "type")]
    #[schema(example = "/problems/validation-failed")]
    kind: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    /// The errors of the request, one by one
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [FieldError],
}

impl Problem {
    fn new(
        status: StatusCode,
        slug: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Problem {
        let (errors, header, is_transient) = (Vec::new(), None, false);
        Problem(Box::new(Details { status, slug, title, detail: detail.into(), errors, header, is_transient }))
    }

    fn with_header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Problem {
        self.0.header = Some((name, value.into()));
        self
    }

    /// Notes that the same request may succeed later.
    fn transient(mut self) -> Problem {
        self.0.is_transient = true;
        self
    }

    /// The response's body.
    pub fn json(&self) -> serde_json::Value {
        let body = ProblemBody {
            kind: format!("/problems/{}", self.0.slug),
            title: self.0.title,
            status: self.0.status.as_u16(),
            detail: &self.0.detail,
            errors: &self.0.errors,
        };
        serde_json::to_value(body).expect("strings and numbers can be serialized")
    }

    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    pub fn title(&self) -> &'static str {
        self.0.title
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    pub fn malformed_json(detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-json", "The body is not JSON", detail)
    }

    pub fn unreadable_body() -> Problem {
        let detail = "the request's body ended early or was sent in a malformed way";
        Problem::new(StatusCode::BAD_REQUEST, "unreadable-body", "The body could not be read", detail)
    }

    pub fn unauthorized() -> Problem {
        let detail = "send `Authorization: Bearer <token>` with a token that is neither revoked nor expired";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "No valid token", detail)
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    pub fn cross_site() -> Problem {
        let detail = "a page of another site sent this request: open this service itself and try again";
        Problem::new(StatusCode::FORBIDDEN, "cross-site-request", "Refused", detail)
    }

    pub fn not_found(what: &'static str) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "Not found", what)
    }

    pub fn method_not_allowed() -> Problem {
        let detail = "the header Allow lists the methods of this resource";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed", detail)
    }

    pub fn body_timeout() -> Problem {
        let detail = "the request's body took too long to arrive";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "request-timeout", "The request took too long", detail)
    }

    pub fn malformed_idempotency_key() -> Problem {
        let detail = "Idempotency-Key: expected one header of 1 to 255 printable ASCII characters";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Problem::new(status, "idempotency-key-malformed", "The idempotency key is malformed", detail)
    }

    pub fn idempotency_key_reused() -> Problem {
        let detail = "this Idempotency-Key was used for another request within 24 hours: choose a new one";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Problem::new(status, "idempotency-key-reused", "The idempotency key was used before", detail)
    }

    pub fn idempotency_key_in_use() -> Problem {
        let detail = "a request with this Idempotency-Key is in progress: repeat it later to get its response";
        Problem::new(StatusCode::CONFLICT, "idempotency-key-in-use", "The request is in progress", detail)
            .with_header(header::RETRY_AFTER, 1_u64)
    }

    pub fn too_many_idempotency_keys() -> Problem {
        let detail = "you have as many idempotency keys as allowed: each is stored for 24 hours";
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests", detail)
            .with_header(header::RETRY_AFTER, 600_u64)
    }

    pub fn content_too_large(limit: usize) -> Problem {
        let detail = format!("a body may have at most {limit} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "content-too-large", "The body is too large", detail)
    }

    pub fn unsupported_media_type() -> Problem {
        let detail = "send the body as `Content-Type: application/json`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Problem::new(status, "unsupported-media-type", "The body's type is not supported", detail)
    }

    pub fn validation(mut errors: Vec<FieldError>) -> Problem {
        errors.truncate(MAX_ERRORS);
        let detail = match errors.as_slice() {
            [only] => format!("{}: {}", only.pointer, only.detail),
            more => format!("{} errors, listed in `errors`", more.len()),
        };
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let mut problem = Problem::new(status, "validation-failed", "The request is not valid", detail);
        problem.0.errors = errors;
        problem
    }

    pub fn rate_limited(seconds: u64) -> Problem {
        let detail = format!("too many requests with this token: wait {seconds} s");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests", detail)
            .with_header(header::RETRY_AFTER, seconds)
    }

    fn too_many_requests(detail: String, retry_after_seconds: u64) -> Problem {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests", detail)
            .with_header(header::RETRY_AFTER, retry_after_seconds)
    }

    pub fn internal() -> Problem {
        let detail = "this is a fault of the service; the header X-Request-Id identifies the request in its log";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", "Internal error", detail)
    }

    pub fn keys_unavailable() -> Problem {
        let detail = "the service cannot fetch the keys that verify tokens at the moment";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable", detail)
            .with_header(header::RETRY_AFTER, 60_u64)
    }

    pub fn overloaded() -> Problem {
        let detail = "the service is handling as many requests as allowed: try again";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable", detail)
            .with_header(header::RETRY_AFTER, 1_u64)
    }

    pub fn took_too_long() -> Problem {
        let detail = "the request exceeded its time limit: try again, with a shorter time range if it has one";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable", detail)
            .with_header(header::RETRY_AFTER, 5_u64)
    }

    pub fn unavailable() -> Problem {
        let detail = "the service cannot reach its store at the moment";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable", detail)
            .with_header(header::RETRY_AFTER, 1_u64)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = self.json().to_string();
        let Problem(details) = self;
        let content_type = (header::CONTENT_TYPE, "application/problem+json");
        let mut response = (details.status, [content_type], json).into_response();
        if details.is_transient {
            response.extensions_mut().insert(Transient);
        }
        if let Some((name, value)) = details.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let text = fault.to_string();
        let conflict = |slug, title, detail| Problem::new(StatusCode::CONFLICT, slug, title, detail);
        match fault {
            Fault::NoSuchWebhook | Fault::NoSuchLogEntry => {
                Problem::new(StatusCode::NOT_FOUND, "not-found", "Not found", text)
            }
            Fault::BlockedHost(reason) => Problem::validation(vec![FieldError::new("/url", reason)]).transient(),
            Fault::WebhookLimit { .. } => conflict("webhook-limit-reached", "Webhook limit reached", text),
            Fault::VersionMismatch => {
                Problem::new(StatusCode::PRECONDITION_FAILED, "precondition-failed", "The webhook has changed", text)
            }
            Fault::WebhookInactive => conflict("webhook-inactive", "The webhook is inactive", text),
            Fault::NotRedeliverable(_) => conflict("not-redeliverable", "The entry cannot be redelivered", text),
            Fault::EventExpired => Problem::new(StatusCode::GONE, "event-gone", "The event is gone", text),
            Fault::TooManyRecoveries => conflict("too-many-recoveries", "Too many recoveries", text),
            Fault::TooManyTests => Problem::too_many_requests(text, 1),
            Fault::TestQuota { retry_after_seconds } => Problem::too_many_requests(text, retry_after_seconds),
            Fault::Store(error) => error.into(),
            Fault::Internal => Problem::internal(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let is_unreachable = match &error {
            StoreError::Pool(_) | StoreError::Connect(_) => true,
            // Not an error that the server reported: the connection was lost.
            StoreError::Query(error) => error.as_db_error().is_none(),
            _ => false,
        };
        if error.is_timeout() {
            recurring!(warn, %error, "requests exceed the time limit of their statements");
            Problem::took_too_long()
        } else if is_unreachable {
            recurring!(error, %error, "requests fail because the store is unavailable");
            Problem::unavailable()
        } else {
            recurring!(error, %error, "requests fail");
            Problem::internal()
        }
    }
}
