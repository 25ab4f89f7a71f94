//! Conditional requests (RFC 9110, section 13): `If-Match` and `If-None-Match`.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

/// Whether a request with these headers may change what has this entity tag.
pub fn may_change(request: &HeaderMap, etag: &str) -> bool {
    let is_wanted =
        !request.contains_key(header::IF_MATCH) || names(request, header::IF_MATCH, etag);
    is_wanted && !names_weakly(request, etag)
}

/// Whether a request with these headers may create what does not exist yet.
pub fn may_create(request: &HeaderMap) -> bool {
    !request.contains_key(header::IF_MATCH)
}

/// Responds to a GET with 304 if the client has what it requests.
pub async fn not_modified(request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read || !request.headers().contains_key(header::IF_NONE_MATCH) {
        return next.run(request).await;
    }

    let conditions = request.headers().clone();
    let response = next.run(request).await;
    let etag = response
        .headers()
        .get(header::ETAG)
        .and_then(|etag| etag.to_str().ok());

    if response.status() != StatusCode::OK
        || !etag.is_some_and(|etag| names_weakly(&conditions, etag))
    {
        return response;
    }

    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::NOT_MODIFIED;

    for name in [
        header::CONTENT_TYPE,
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
    ] {
        parts.headers.remove(name);
    }

    Response::from_parts(parts, Body::empty())
}

/// Whether `If-None-Match` names the tag. Weak tags match too.
fn names_weakly(request: &HeaderMap, etag: &str) -> bool {
    names(
        request,
        header::IF_NONE_MATCH,
        etag.strip_prefix("W/").unwrap_or(etag),
    )
}

/// Whether the header names the tag. `*` names every tag. Only `If-None-Match` ignores that a tag
/// is weak.
fn names(request: &HeaderMap, header: HeaderName, etag: &str) -> bool {
    let ignores_weakness = header == header::IF_NONE_MATCH;
    let mut tags = request
        .get_all(header)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','));

    tags.any(|tag| {
        let tag = tag.trim_ascii();
        let opaque = tag
            .strip_prefix(b"W/")
            .filter(|_| ignores_weakness)
            .unwrap_or(tag);
        tag == b"*" || opaque == etag.as_bytes()
    })
}
