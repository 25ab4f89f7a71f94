//! The part of a response's headers that the delivery log keeps.

use std::collections::BTreeMap;

use super::headers::MASK;

/// Enough for the headers of usual servers, and less than the part of the body that is kept.
const MAX_BYTES: usize = 2 << 10;
/// Fits the headers of most servers: they are kept in one allocation.
const USUAL_BYTES: usize = 512;
/// More headers than usual servers send.
const MAX_HEADERS: usize = 40;
/// Its values are credentials.
const SET_COOKIE: &str = "set-cookie";

/// Returns the headers as lines, to be stored. Those that do not fit are left out.
pub fn keep<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let shown = headers.take(MAX_HEADERS).map(|(name, value)| match name {
        SET_COOKIE => (name, MASK.as_bytes()),
        _ => (name, value),
    });

    let mut lines = Vec::with_capacity(USUAL_BYTES);

    for (name, value) in shown {
        let length = name.len() + value.len() + ": \n".len();
        if lines.len() + length <= MAX_BYTES {
            lines.extend_from_slice(name.as_bytes());
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(value);
            lines.push(b'\n');
        }
    }

    lines
}

/// Reads stored headers. Values of one name are joined, as RFC 9110 allows.
pub fn read(lines: &[u8]) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    let text = String::from_utf8_lossy(lines);

    for (name, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        headers
            .entry(name.to_owned())
            .and_modify(|values| {
                values.push_str(", ");
                values.push_str(value);
            })
            .or_insert_with(|| value.to_owned());
    }

    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_kept_within_bounds_and_cookies_are_masked() {
        let long = "x".repeat(MAX_BYTES);
        let headers = [
            ("content-type", "text/plain"),
            ("vary", "accept"),
            ("x-long", &long),
            ("set-cookie", "session=secret"),
            ("vary", "origin"),
        ];
        let kept = keep(
            headers
                .into_iter()
                .map(|(name, value)| (name, value.as_bytes())),
        );
        let shown: Vec<(String, String)> = read(&kept).into_iter().collect();
        let expected = [
            ("content-type", "text/plain"),
            ("set-cookie", MASK),
            ("vary", "accept, origin"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));

        assert_eq!(shown, expected);

        let many = keep(std::iter::repeat_n(("a", &b"b"[..]), 1_000));
        assert_eq!(many.len(), MAX_HEADERS * "a: b\n".len());
    }
}
