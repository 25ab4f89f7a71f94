//! Errors of the API: problem details (RFC 9457) with stable types. They reveal nothing internal.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::members::{FieldError, MAX_ERRORS};
use crate::manage::Fault;
use crate::store::StoreError;
use crate::telemetry::recurring;

pub const CONTENT_TYPE: &str = "application/problem+json";

/// An error response. Boxed, so that the results of handlers are small.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .0.detail)]
pub struct Problem(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    kind: Kind,
    detail: Cow<'static, str>,
    errors: Vec<FieldError>,
    header: Option<(HeaderName, HeaderValue)>,
    /// Whether the same request may succeed later.
    is_transient: bool,
}

/// Marks an error response of a request that may succeed later.
#[derive(Clone, Copy, Debug)]
pub struct Transient;

/// Problem details (RFC 9457)
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody<'a> {
    /// A stable identifier of the kind of error. On this host, it leads to a description
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
    /// The same as in the header `X-Request-Id`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = true, nullable = false)]
    request_id: Option<&'a str>,
}

/// A kind of error: its status, its stable name, its title, and what a client can do about it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    status: StatusCode,
    pub slug: &'static str,
    pub title: &'static str,
    pub meaning: &'static str,
}

macro_rules! kinds {
    ($($name:ident: $status:ident, $slug:literal, $title:literal, $meaning:literal;)+) => {
        $(const $name: Kind = Kind { status: StatusCode::$status, slug: $slug, title: $title, meaning: $meaning };)+
        /// Every kind of error, for the documentation.
        pub const KINDS: &[Kind] = &[$($name),+];
    };
}

kinds! {
    MALFORMED_JSON: BAD_REQUEST, "malformed-json", "The body is not JSON", "The detail says where parsing failed.";
    UNREADABLE_BODY: BAD_REQUEST, "unreadable-body", "The body could not be read",
        "The connection ended within the body, or its encoding is malformed. Send the request again.";
    UNKNOWN_PARAMETER: BAD_REQUEST, "unknown-parameter", "The query has an unknown parameter",
        "`errors` names each one, and the parameters that the operation has. Names are case-sensitive.";
    INVALID_CURSOR: BAD_REQUEST, "invalid-cursor", "The cursor does not belong to this list",
        "Pass the `next_cursor` of an earlier page of the same list, or start again without a cursor.";
    UNAUTHORIZED: UNAUTHORIZED, "unauthorized", "No valid token",
        "Send a token that is neither revoked nor expired, as `Authorization: Bearer <token>`.";
    CROSS_SITE: FORBIDDEN, "cross-site-request", "Refused",
        "A page of another site made the browser send the request. Open this service itself, or use a token.";
    READ_ONLY: FORBIDDEN, "read-only-token", "The token may only read",
        "The token, or the session that was opened with it, has the scope `read_only`. Use one with the scope `full`.";
    NOT_FOUND: NOT_FOUND, "not-found", "Not found",
        "The path does not exist, or the resource does not exist or belongs to another user.";
    METHOD_NOT_ALLOWED: METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed",
        "The header `Allow` lists the methods of the resource.";
    REQUEST_TIMEOUT: REQUEST_TIMEOUT, "request-timeout", "The request took too long",
        "The body must arrive within 30 seconds.";
    WEBHOOK_LIMIT: CONFLICT, "webhook-limit-reached", "Webhook limit reached",
        "A user may have a limited number of webhooks. Delete one first.";
    TOKEN_LIMIT: CONFLICT, "token-limit-reached", "Token limit reached",
        "A user may have a limited number of valid tokens. Revoke one first.";
    AMBIGUOUS_NAME: CONFLICT, "ambiguous-name", "Several webhooks have this name",
        "Names need not be unique, except where they identify a webhook. Rename or delete all but one of those in the detail.";
    WEBHOOK_INACTIVE: CONFLICT, "webhook-inactive", "The webhook is inactive",
        "Nothing is delivered to an inactive webhook. Activate it first.";
    NOT_REDELIVERABLE: CONFLICT, "not-redeliverable", "The entry cannot be redelivered",
        "The entry is a test, or its delivery has had as many rounds as possible.";
    TOO_MANY_RECOVERIES: CONFLICT, "too-many-recoveries", "Too many recoveries",
        "The webhook has too many unfinished jobs. Wait until one has finished, or cancel one.";
    KEY_IN_USE: CONFLICT, "idempotency-key-in-use", "The request is in progress",
        "The first request with this `Idempotency-Key` has not ended. Repeat the request after `Retry-After`.";
    EVENT_GONE: GONE, "event-gone", "The event is gone", "The event is older than the retention period.";
    PRECONDITION_FAILED: PRECONDITION_FAILED, "precondition-failed", "The webhook has changed",
        "The webhook's version does not meet `If-Match` or `If-None-Match`. Read it again, then repeat the edit.";
    CONTENT_TOO_LARGE: PAYLOAD_TOO_LARGE, "content-too-large", "The body is too large",
        "The detail names the limit.";
    UNSUPPORTED_MEDIA_TYPE: UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The body's type is not supported",
        "Send the body as `Content-Type: application/json`.";
    VALIDATION_FAILED: UNPROCESSABLE_ENTITY, "validation-failed", "The request is not valid",
        "`errors` lists each error with a pointer to the member or parameter.";
    KEY_MALFORMED: UNPROCESSABLE_ENTITY, "idempotency-key-malformed", "The idempotency key is malformed",
        "Send one `Idempotency-Key` of 1 to 255 printable ASCII characters.";
    KEY_REUSED: UNPROCESSABLE_ENTITY, "idempotency-key-reused", "The idempotency key was used before",
        "Another request had this `Idempotency-Key` within 24 hours. Choose a new one.";
    RATE_LIMITED: TOO_MANY_REQUESTS, "rate-limited", "Too many requests", "Wait for `Retry-After`.";
    TOO_MANY_STREAMS: TOO_MANY_REQUESTS, "too-many-streams", "Too many open streams",
        "Close a stream or a long poll first.";
    INTERNAL: INTERNAL_SERVER_ERROR, "internal-error", "Internal error",
        "A fault of the service. Its operator finds the request in the server log by `request_id`.";
    UNAVAILABLE: SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable",
        "Send the request again after `Retry-After`.";
}

impl Kind {
    fn with(self, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem(Box::new(Details {
            kind: self,
            detail: detail.into(),
            errors: Vec::new(),
            header: None,
            is_transient: false,
        }))
    }

    /// The problem whose detail is the meaning of the kind.
    fn problem(self) -> Problem {
        self.with(self.meaning)
    }

    fn listing(self, mut errors: Vec<FieldError>) -> Problem {
        errors.truncate(MAX_ERRORS);
        let detail = match errors.as_slice() {
            [only] if only.pointer.is_empty() => only.detail.clone(),
            [only] => format!("{}: {}", only.pointer, only.detail),
            more => format!("{} errors, listed in `errors`", more.len()),
        };

        let mut problem = self.with(detail);
        problem.0.is_transient = errors.iter().any(|error| error.is_transient);
        problem.0.errors = errors;

        problem
    }

    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The anchor of the kind's description on the page of the documentation.
    pub fn anchor(&self) -> String {
        format!("problem-{}", self.slug)
    }
}

impl Problem {
    fn header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Problem {
        self.0.header = Some((name, value.into()));
        self
    }

    fn retry_after(self, seconds: u64) -> Problem {
        self.header(header::RETRY_AFTER, seconds)
    }

    /// The response's body. Without the id of the request, which is added later.
    pub fn json(&self, request_id: Option<&str>) -> serde_json::Value {
        let kind = self.0.kind;
        let body = ProblemBody {
            kind: format!("/problems/{}", kind.slug),
            title: kind.title,
            status: kind.status(),
            detail: &self.0.detail,
            errors: &self.0.errors,
            request_id,
        };
        serde_json::to_value(body).expect("strings and numbers can be serialized")
    }

    pub fn status(&self) -> StatusCode {
        self.0.kind.status
    }

    pub fn title(&self) -> &'static str {
        self.0.kind.title
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The value of `Retry-After`.
    pub fn retry_after_value(&self) -> Option<&HeaderValue> {
        let (name, value) = self.0.header.as_ref()?;
        (name == header::RETRY_AFTER).then_some(value)
    }

    pub fn malformed_json(detail: impl Into<Cow<'static, str>>) -> Problem {
        MALFORMED_JSON.with(detail)
    }

    pub fn unreadable_body() -> Problem {
        UNREADABLE_BODY.problem()
    }

    pub fn unauthorized() -> Problem {
        let scheme = HeaderValue::from_static("Bearer");
        UNAUTHORIZED
            .problem()
            .header(header::WWW_AUTHENTICATE, scheme)
    }

    /// A token that was read but is not valid. `why` may be shown to its sender.
    pub fn rejected_token(why: &'static str) -> Problem {
        let scheme = HeaderValue::from_static(r#"Bearer error="invalid_token""#);
        UNAUTHORIZED
            .with(format!("the token is not valid: {why}"))
            .header(header::WWW_AUTHENTICATE, scheme)
    }

    pub fn cross_site() -> Problem {
        CROSS_SITE.problem()
    }

    pub fn read_only() -> Problem {
        READ_ONLY.problem()
    }

    pub fn not_found(detail: &'static str) -> Problem {
        NOT_FOUND.with(detail)
    }

    pub fn method_not_allowed() -> Problem {
        METHOD_NOT_ALLOWED.problem()
    }

    pub fn body_timeout() -> Problem {
        REQUEST_TIMEOUT.problem()
    }

    pub fn malformed_idempotency_key() -> Problem {
        KEY_MALFORMED.problem()
    }

    pub fn idempotency_key_reused() -> Problem {
        KEY_REUSED.problem()
    }

    pub fn idempotency_key_in_use() -> Problem {
        KEY_IN_USE.problem().retry_after(1)
    }

    pub fn too_many_idempotency_keys() -> Problem {
        let detail = "you have as many idempotency keys as allowed: each is stored for 24 hours";
        RATE_LIMITED.with(detail).retry_after(600)
    }

    pub fn content_too_large(limit: usize) -> Problem {
        CONTENT_TOO_LARGE.with(format!("a body may have at most {limit} bytes"))
    }

    pub fn unsupported_media_type() -> Problem {
        UNSUPPORTED_MEDIA_TYPE.problem()
    }

    pub fn validation(errors: Vec<FieldError>) -> Problem {
        VALIDATION_FAILED.listing(errors)
    }

    pub fn unknown_parameters(errors: Vec<FieldError>) -> Problem {
        UNKNOWN_PARAMETER.listing(errors)
    }

    pub fn invalid_cursor(errors: Vec<FieldError>) -> Problem {
        INVALID_CURSOR.listing(errors)
    }

    pub fn too_many_pairs(limit: usize) -> Problem {
        let detail = format!("a query or a form may have at most {limit} parameters");
        VALIDATION_FAILED.with(detail)
    }

    pub fn rate_limited(seconds: u64) -> Problem {
        let detail = format!("too many requests: wait {seconds} s");
        RATE_LIMITED.with(detail).retry_after(seconds)
    }

    pub fn share_exhausted() -> Problem {
        let detail =
            "too many of your requests are in progress, or their responses were not read yet";
        RATE_LIMITED.with(detail).retry_after(1)
    }

    pub fn internal() -> Problem {
        INTERNAL.problem()
    }

    pub fn keys_unavailable() -> Problem {
        let detail = "the service cannot fetch the keys that verify tokens at the moment";
        UNAVAILABLE.with(detail).retry_after(5)
    }

    pub fn overloaded() -> Problem {
        let detail = "the service is handling as many requests as allowed: try again";
        UNAVAILABLE.with(detail).retry_after(1)
    }

    pub fn took_too_long() -> Problem {
        let detail = "the request exceeded its time limit: try again, with a shorter time range if it has one";
        UNAVAILABLE.with(detail).retry_after(5)
    }

    pub fn unavailable() -> Problem {
        UNAVAILABLE
            .with("the service cannot reach its store at the moment")
            .retry_after(1)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = self.json(None).to_string();
        let Problem(details) = self;
        let content_type = (header::CONTENT_TYPE, CONTENT_TYPE);
        let mut response = (details.kind.status, [content_type], json).into_response();

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
        let detail = fault.to_string();

        match fault {
            Fault::NoSuchWebhook
            | Fault::NoSuchLogEntry
            | Fault::NoSuchDelivery
            | Fault::NoSuchEvent
            | Fault::NoSuchJob
            | Fault::NoSuchToken => NOT_FOUND.with(detail),
            Fault::BlockedHost(reason) => {
                Problem::validation(vec![FieldError::new("/url", reason).transient()])
            }
            Fault::InvalidSettings(errors) => Problem::validation(errors),
            Fault::WebhookLimit { .. } => WEBHOOK_LIMIT.with(detail),
            Fault::AmbiguousName { .. } => AMBIGUOUS_NAME.with(detail),
            Fault::TokenLimit { .. } => TOKEN_LIMIT.with(detail),
            Fault::VersionMismatch => PRECONDITION_FAILED.with(detail),
            Fault::WebhookInactive => WEBHOOK_INACTIVE.with(detail),
            Fault::Cancelling => UNAVAILABLE.with(detail).retry_after(5),
            Fault::NotRedeliverable(_) => NOT_REDELIVERABLE.with(detail),
            Fault::EventExpired => EVENT_GONE.with(detail),
            Fault::TooManyRecoveries => TOO_MANY_RECOVERIES.with(detail),
            Fault::TooManyStreams => TOO_MANY_STREAMS.with(detail).retry_after(15),
            Fault::TooManyTests => RATE_LIMITED.with(detail).retry_after(1),
            Fault::RateLimit { seconds, .. } => RATE_LIMITED.with(detail).retry_after(seconds),
            Fault::Store(error) => error.into(),
            Fault::Internal => Problem::internal(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if error.is_timeout() {
            recurring!(warn, %error, "requests exceed the time limit of their statements");
            Problem::took_too_long()
        } else if error.is_outage() {
            recurring!(error, %error, "requests fail because the store is unavailable");
            Problem::unavailable()
        } else {
            recurring!(error, %error, "requests fail");
            Problem::internal()
        }
    }
}
