//! Errors as clients see them: problem details (RFC 9457) under types that stay. Nothing internal is among them.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::manage::Fault;
use crate::store::StoreError;
use crate::telemetry::recurring;

/// A body may be wrong in thousands of places. The first of them are enough to fix it.
pub const MAX_ERRORS: usize = 20;

/// An answer that is an error. Boxed: it is what hardly any request comes to.
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
    /// Not by the request alone: the same request may succeed later.
    is_transient: bool,
}

/// Marks a response to a request that may succeed later, as it is.
#[derive(Clone, Copy, Debug)]
pub struct Transient;

/// One fault of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// A JSON pointer (RFC 6901) into the request's body; for a query parameter, its name as the pointer's one step
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
    /// Identifies the kind of error, and stays
    #[serde(rename = "type")]
    #[schema(example = "/problems/validation-failed")]
    kind: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    /// What is wrong with the request, fault by fault
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

    /// The same request may succeed later.
    pub fn transient(mut self) -> Problem {
        self.0.is_transient = true;
        self
    }

    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// What kind of error this is: stays.
    pub fn slug(&self) -> &'static str {
        self.0.slug
    }

    pub fn title(&self) -> &'static str {
        self.0.title
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The faults of a request that is not valid.
    pub fn errors(&self) -> &[FieldError] {
        &self.0.errors
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
        let detail = "a page of another site may not act in your name: open this service itself and try again";
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

    pub fn webhook_limit_reached(limit: u32) -> Problem {
        let detail = format!("a user may have {limit} webhooks: delete one first");
        Problem::new(StatusCode::CONFLICT, "webhook-limit-reached", "Webhook limit reached", detail)
    }

    pub fn webhook_inactive() -> Problem {
        let detail = "nothing is delivered to an inactive webhook: switch it on first";
        Problem::new(StatusCode::CONFLICT, "webhook-inactive", "The webhook is inactive", detail)
    }

    pub fn not_redeliverable(detail: &'static str) -> Problem {
        Problem::new(StatusCode::CONFLICT, "not-redeliverable", "The entry cannot be redelivered", detail)
    }

    pub fn event_gone() -> Problem {
        let detail = "the delivery's event is older than events are kept";
        Problem::new(StatusCode::GONE, "event-gone", "The event is gone", detail)
    }

    pub fn too_many_recoveries() -> Problem {
        let detail = "several recoveries of this webhook are under way: wait until one is over";
        Problem::new(StatusCode::CONFLICT, "too-many-recoveries", "Too many recoveries", detail)
    }

    pub fn precondition_failed() -> Problem {
        let detail = "the webhook is not as If-Match says: read it again";
        Problem::new(StatusCode::PRECONDITION_FAILED, "precondition-failed", "The webhook has changed", detail)
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
        let detail = "a request with this Idempotency-Key is being served: ask again for its answer";
        Problem::new(StatusCode::CONFLICT, "idempotency-key-in-use", "The request is being served", detail)
            .with_header(header::RETRY_AFTER, 1_u64)
    }

    pub fn too_many_idempotency_keys() -> Problem {
        let detail = "all idempotency keys that are kept for you are in use: each is kept for 24 hours";
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests", detail)
            .with_header(header::RETRY_AFTER, 600_u64)
    }

    pub fn content_too_large(limit: usize) -> Problem {
        let detail = format!("a body may have {limit} bytes");
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
            more => format!("{} faults, listed in `errors`", more.len()),
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
        let detail = "the fault is ours; the header X-Request-Id names this request in our log";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", "Internal error", detail)
    }

    pub fn keys_unavailable() -> Problem {
        let detail = "the service cannot fetch the keys that tokens are verified with at the moment";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable", detail)
            .with_header(header::RETRY_AFTER, 60_u64)
    }

    pub fn overloaded() -> Problem {
        let detail = "the service is handling as many requests as it can: try again";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable", detail)
            .with_header(header::RETRY_AFTER, 1_u64)
    }

    pub fn took_too_long() -> Problem {
        let detail = "the request took longer than it may: try again, for a shorter range of time if it has one";
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
        let Problem(details) = self;
        let body = ProblemBody {
            kind: format!("/problems/{}", details.slug),
            title: details.title,
            status: details.status.as_u16(),
            detail: &details.detail,
            errors: &details.errors,
        };
        let json = serde_json::to_vec(&body).expect("texts and numbers are representable");
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
            Fault::VersionMismatch => Problem::precondition_failed(),
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
            // No answer of the server's: the connection broke.
            StoreError::Query(error) => error.as_db_error().is_none(),
            _ => false,
        };
        if error.is_timeout() {
            recurring!(warn, %error, "requests take longer than their statements may");
            Problem::took_too_long()
        } else if is_unreachable {
            recurring!(error, %error, "requests cannot be answered without the store");
            Problem::unavailable()
        } else {
            recurring!(error, %error, "requests fail");
            Problem::internal()
        }
    }
}
