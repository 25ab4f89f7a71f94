//! The custom headers of webhooks, in the form that requests need.

use hyper::header::{HeaderName, HeaderValue};
use secrecy::ExposeSecret;

use crate::domain::headers::{CustomHeader, CustomHeaders};

/// Custom headers, parsed once for all requests. Without any, nothing is allocated.
#[derive(Clone, Debug, Default)]
pub struct ParsedHeaders(pub Vec<(HeaderName, HeaderValue)>);

impl From<&CustomHeaders> for ParsedHeaders {
    fn from(headers: &CustomHeaders) -> ParsedHeaders {
        ParsedHeaders(headers.0.iter().map(parse).collect())
    }
}

fn parse(header: &CustomHeader) -> (HeaderName, HeaderValue) {
    let name = header.name.parse().expect("the name is a token");
    let mut value: HeaderValue = header
        .value
        .expose_secret()
        .parse()
        .expect("the value is visible ASCII");

    // HTTP/2 must not put it in compression tables, nor a log print it.
    value.set_sensitive(true);
    (name, value)
}
