//! Documents that change rarely: compressed once, and served from memory with an entity tag.

use std::io::Write;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// A receiver learns of a new key this much later, at the latest: much less than a useful overlap.
/// The other documents change with a release.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// A public document in memory.
#[derive(Clone, Debug)]
pub struct Document {
    content_type: &'static str,
    etag: HeaderValue,
    plain: Bytes,
    gzip: Bytes,
}

impl Document {
    pub fn new(content_type: &'static str, content: impl Into<Bytes>) -> Document {
        let plain = content.into();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let gzip = encoder
            .write_all(&plain)
            .and_then(|()| encoder.finish())
            .expect("writing to memory cannot fail");

        Document {
            content_type,
            etag: etag(&plain),
            plain,
            gzip: gzip.into(),
        }
    }

    pub fn json(content: impl Into<Bytes>) -> Document {
        Document::new("application/json", content)
    }

    /// Responds to a request with these headers.
    pub fn response(&self, request: &HeaderMap) -> Response {
        let compressed = accepts_gzip(request);
        let body = if compressed { &self.gzip } else { &self.plain };
        let mut response = cacheable(self.content_type, self.etag.clone(), body.clone());
        let headers = response.headers_mut();

        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));

        if compressed {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }

        response
    }
}

/// Responds with content that clients may cache. Not compressed: it is short.
pub fn short_json(content: impl Into<Bytes>) -> Response {
    let content = content.into();
    cacheable("application/json", etag(&content), content)
}

fn cacheable(content_type: &'static str, etag: HeaderValue, content: Bytes) -> Response {
    let content_type = HeaderValue::from_static(content_type);
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, CACHE_CONTROL),
        (header::ETAG, etag),
    ];
    (headers, content).into_response()
}

/// A weak tag: the compressed form of the same content has it too.
fn etag(content: &[u8]) -> HeaderValue {
    let tag = format!("W/\"{}\"", hex::encode(&Sha256::digest(content)[..16]));
    HeaderValue::try_from(tag).expect("hexadecimal digits and quotes")
}

/// Whether the client accepts gzip (RFC 9110, section 12.5.3).
fn accepts_gzip(request: &HeaderMap) -> bool {
    let lines = request
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let mut any = false;

    for coding in lines.flat_map(|line| line.split(',')) {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let is_accepted = weight
            .trim()
            .strip_prefix("q=")
            .is_none_or(|weight| weight.parse() != Ok(0.0));

        if name.trim().eq_ignore_ascii_case("gzip") {
            return is_accepted;
        }

        any |= name.trim() == "*" && is_accepted;
    }

    any
}
