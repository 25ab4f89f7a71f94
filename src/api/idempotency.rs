//! `Idempotency-Key`: a POST that is made again is answered again, and done once.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

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

use super::ApiState;
use super::auth::authenticate;
use super::body;
use super::middleware::answer_panic;
use super::problem::{Problem, Transient};
use crate::domain::event::UserId;
use crate::store::idempotency::{self, Claim};
use crate::telemetry::recurring;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const LONGEST_KEY: usize = 255;
/// What a handler takes at most beside the exchange with a receiver, generously.
pub const LONGEST_REQUEST: Duration = Duration::from_secs(60);
/// Ours are far smaller.
const LARGEST_ANSWER: usize = 4 << 20;
/// What else an answer has is of its own time.
const KEPT_HEADERS: [HeaderName; 4] = [header::CONTENT_TYPE, header::ETAG, header::LOCATION, header::RETRY_AFTER];

/// An answer as it is kept, encrypted.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Serves a POST with an Idempotency-Key once; whatever has none passes through.
pub async fn replay(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST || !request.headers().contains_key(KEY) {
        return next.run(request).await;
    }
    // A task of its own: a client that goes away and asks again finds the answer that it missed.
    let task = async move { serve_once(state, request, next).await.unwrap_or_else(IntoResponse::into_response) };
    let task = tokio::spawn(task.in_current_span());
    task.await.unwrap_or_else(|_| Problem::internal().into_response())
}

async fn serve_once(state: ApiState, request: Request, next: Next) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let user = authenticate(&mut parts, &state).await?.user;
    let key_hash = key_hash(&parts)?;
    let bytes = body::read(body, state.max_body_bytes).await?;
    let fingerprint = fingerprint(&parts, &bytes);
    match idempotency::claim(&state.store, &user, &key_hash, &fingerprint, state.hold).await? {
        Claim::Reused => Err(Problem::idempotency_key_reused()),
        Claim::UnderWay => Err(Problem::idempotency_key_in_use()),
        Claim::Full => Err(Problem::too_many_idempotency_keys()),
        Claim::Answered { id, answer } => {
            let kept = state.vault.open(id, &answer.key_id, &answer.bytes);
            let kept = kept.ok().and_then(|kept| restore(&kept));
            kept.ok_or_else(|| {
                recurring!(error, %user, "kept answers cannot be read: was a key removed from secrets.master_key?");
                Problem::internal()
            })
        }
        Claim::Ours(id) => {
            let request = Request::from_parts(parts, Body::from(bytes));
            let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(answer_panic);
            Ok(keep(&state, &user, id, answer).await)
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
    match is_printable && (1..=LONGEST_KEY).contains(&key.len()) {
        true => Ok(Sha256::digest(key).into()),
        false => Err(Problem::malformed_idempotency_key()),
    }
}

/// Of all that makes a request what it is.
fn fingerprint(parts: &Parts, body: &Bytes) -> [u8; 32] {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut hash = Sha256::new();
    hash.update(parts.method.as_str());
    hash.update([0]);
    hash.update(target);
    hash.update([0]);
    hash.update(body);
    hash.finalize().into()
}

/// Whether the same request would get the same answer at any time: a success, or a refusal of the request itself.
fn is_final(answer: &Response) -> bool {
    const OF_THE_REQUEST: [StatusCode; 4] = [
        StatusCode::BAD_REQUEST,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    let is_transient = answer.extensions().get::<Transient>().is_some();
    answer.status().is_success() || (OF_THE_REQUEST.contains(&answer.status()) && !is_transient)
}

/// Keeps a final answer. After any other, the key is free again.
async fn keep(state: &ApiState, user: &UserId, id: Uuid, answer: Response) -> Response {
    let is_final = is_final(&answer);
    let (parts, body) = answer.into_parts();
    let Ok(body) = axum::body::to_bytes(body, LARGEST_ANSWER).await else {
        return Problem::internal().into_response();
    };
    let stored = match is_final {
        false => idempotency::release(&state.store, id).await,
        true => {
            let text = |(name, value): (&HeaderName, &HeaderValue)| {
                KEPT_HEADERS.contains(name).then(|| Some((name.to_string(), value.to_str().ok()?.to_owned())))?
            };
            let kept = Kept {
                status: parts.status.as_u16(),
                headers: parts.headers.iter().filter_map(text).collect(),
                body: String::from_utf8_lossy(&body).into_owned(),
            };
            let kept = serde_json::to_vec(&kept).expect("texts and numbers are representable");
            idempotency::keep(&state.store, id, &state.vault.seal(id, &kept)).await
        }
    };
    if let Err(error) = stored {
        recurring!(error, %error, %user, "answers cannot be kept: asked again, the requests are refused for a while");
    }
    Response::from_parts(parts, body.into())
}

fn restore(kept: &[u8]) -> Option<Response> {
    let Kept { status, headers, body } = serde_json::from_slice(kept).ok()?;
    let mut response = body.into_response();
    *response.status_mut() = StatusCode::from_u16(status).ok()?;
    response.headers_mut().clear();
    for (name, value) in headers {
        response.headers_mut().insert(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Some(response)
}
