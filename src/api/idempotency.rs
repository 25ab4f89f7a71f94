//! `Idempotency-Key`: a repeated POST is executed once, and gets the stored response of the first.

use std::panic::AssertUnwindSafe;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::Instrument;
use uuid::Uuid;

use super::body::is_json;
use super::state::ApiState;
use crate::domain::event::UserId;
use crate::http::middleware::respond_to_panic;
use crate::http::problem::{Problem, Transient};
use crate::http::read_body;
use crate::manage::{IdempotencyClaim, Manage};
use crate::telemetry::recurring;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY_LENGTH: usize = 255;
/// The API's responses are far smaller.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// The headers that are stored. The others, such as the request id, are different in each response.
const STORED_HEADERS: [HeaderName; 4] = [
    header::CONTENT_TYPE,
    header::ETAG,
    header::LOCATION,
    header::RETRY_AFTER,
];

/// A response as it is stored, encrypted.
#[derive(Serialize, Deserialize)]
struct StoredResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Executes a POST with an idempotency key once. Other requests pass through.
pub async fn replay(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST || !request.headers().contains_key(KEY) {
        return next.run(request).await;
    }

    // In a task of its own, which continues if the client disconnects. The client gets the response
    // when it repeats the request.
    let task = async move {
        serve_once(state, request, next)
            .await
            .unwrap_or_else(IntoResponse::into_response)
    };

    let task = tokio::spawn(task.in_current_span());
    task.await
        .unwrap_or_else(|_| Problem::internal().into_response())
}

async fn serve_once(state: ApiState, request: Request, next: Next) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let user = state.auth.authenticate(&mut parts).await?.user;
    let key_hash = key_hash(&parts)?;
    let bytes = read_body(body, state.max_body_bytes).await?;
    let fingerprint = fingerprint(&parts, &bytes);
    let manage = state.manage();

    match manage
        .claim_idempotency_key(&user, &key_hash, &fingerprint, state.request_timeout())
        .await?
    {
        IdempotencyClaim::Reused => Err(Problem::idempotency_key_reused()),
        IdempotencyClaim::InProgress => Err(Problem::idempotency_key_in_use()),
        IdempotencyClaim::TooManyKeys => Err(Problem::too_many_idempotency_keys()),
        IdempotencyClaim::Answered(stored) => restore(&stored).ok_or_else(|| {
            recurring!(error, %user, "stored responses cannot be parsed");
            Problem::internal()
        }),
        IdempotencyClaim::New(id) => {
            let request = Request::from_parts(parts, Body::from(bytes));
            let response = AssertUnwindSafe(next.run(request))
                .catch_unwind()
                .await
                .unwrap_or_else(respond_to_panic);
            Ok(store(manage, &user, id, response).await)
        }
    }
}

fn key_hash(parts: &Parts) -> Result<[u8; 32], Problem> {
    let mut values = parts.headers.get_all(KEY).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Problem::malformed_idempotency_key());
    };

    let key = value.as_bytes();
    let is_printable = key.iter().all(|byte| (b' '..=b'~').contains(byte));
    match is_printable && (1..=MAX_KEY_LENGTH).contains(&key.len()) {
        true => Ok(Sha256::digest(key).into()),
        false => Err(Problem::malformed_idempotency_key()),
    }
}

/// A hash of the method, the target, and the body with its type. JSON has no mark, as in
/// fingerprints that are stored already.
fn fingerprint(parts: &Parts, body: &Bytes) -> [u8; 32] {
    let target = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let mut hash = Sha256::new();

    hash.update(parts.method.as_str());
    hash.update([0]);
    hash.update(target);
    hash.update([0]);
    hash.update(body);

    let content_type = parts
        .headers
        .get(header::CONTENT_TYPE)
        .map_or(&[][..], HeaderValue::as_bytes);
    let has_type = !body.is_empty() || !content_type.is_empty();
    if has_type && !is_json(&parts.headers) {
        hash.update([0]);
        hash.update(content_type);
    }

    hash.finalize().into()
}

/// Whether the same request would get this response at any time: a success, or an error that
/// depends on the request alone.
fn is_final(response: &Response) -> bool {
    const REQUEST_ERRORS: [StatusCode; 4] = [
        StatusCode::BAD_REQUEST,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];

    let is_transient = response.extensions().get::<Transient>().is_some();
    response.status().is_success() || (REQUEST_ERRORS.contains(&response.status()) && !is_transient)
}

/// Stores a final response. Releases the key after any other.
async fn store(manage: &Manage, user: &UserId, id: Uuid, response: Response) -> Response {
    let is_final = is_final(&response);
    let (parts, body) = response.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_RESPONSE_BYTES).await else {
        return Problem::internal().into_response();
    };

    let stored = match is_final {
        false => manage.release_idempotency_key(id).await,
        true => {
            let text = |(name, value): (&HeaderName, &HeaderValue)| {
                STORED_HEADERS
                    .contains(name)
                    .then(|| Some((name.to_string(), value.to_str().ok()?.to_owned())))?
            };

            let stored = StoredResponse {
                status: parts.status.as_u16(),
                headers: parts.headers.iter().filter_map(text).collect(),
                body: String::from_utf8_lossy(&body).into_owned(),
            };

            let stored =
                serde_json::to_vec(&stored).expect("strings and numbers can be serialized");
            manage.store_response(id, &stored).await
        }
    };

    if let Err(error) = stored {
        recurring!(error, %error, %user, "responses cannot be stored: repeated requests are rejected for a while");
    }

    Response::from_parts(parts, body.into())
}

fn restore(stored: &[u8]) -> Option<Response> {
    let StoredResponse {
        status,
        headers,
        body,
    } = serde_json::from_slice(stored).ok()?;
    let mut response = body.into_response();

    *response.status_mut() = StatusCode::from_u16(status).ok()?;
    response.headers_mut().clear();

    for (name, value) in headers {
        response.headers_mut().insert(
            HeaderName::try_from(name).ok()?,
            HeaderValue::try_from(value).ok()?,
        );
    }

    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    Some(response)
}
