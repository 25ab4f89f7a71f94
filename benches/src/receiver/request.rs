//! Parses the subset of HTTP/1.1 that webhook senders use: sequential requests with a length. No
//! I/O.

/// The parts of a request that the receiver uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    pub path: &'a [u8],
    pub delivery: Option<&'a [u8]>,
    pub webhook: Option<&'a [u8]>,
    pub signature: Option<&'a [u8]>,
    pub body: &'a [u8],
    /// The length of the request in bytes.
    pub length: usize,
}

/// Parses the first request in `bytes`. `None` if it is incomplete, `Err` if it is not supported.
pub fn parse(bytes: &[u8]) -> Result<Option<Request<'_>>, &'static str> {
    let mut lines = Lines(bytes);
    let Some(first) = lines.next() else {
        return Ok(None);
    };

    let mut words = first.split(|byte| *byte == b' ');
    let method = words.next();
    let path = words.next();

    if method != Some(b"POST") {
        return Err("only POST is supported");
    }

    let mut request = Request {
        path: path.ok_or("no path")?,
        ..Request::default()
    };

    let mut content_length = 0;

    loop {
        let Some(line) = lines.next() else {
            return Ok(None);
        };

        if line.is_empty() {
            break;
        }

        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or("a header without a colon")?;
        let name = &line[..colon];
        let value = line[colon + 1..].trim_ascii();

        match name.len() {
            12 if name.eq_ignore_ascii_case(b"x-webhook-id") => request.webhook = Some(value),
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                content_length = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or("no length")?;
            }
            18 if name.eq_ignore_ascii_case(b"x-webhook-delivery") => {
                request.delivery = Some(value)
            }
            19 if name.eq_ignore_ascii_case(b"x-webhook-signature") => {
                request.signature = Some(value)
            }
            _ => {}
        }
    }

    let body = lines.0;
    if body.len() < content_length {
        return Ok(None);
    }

    request.body = &body[..content_length];
    request.length = bytes.len() - body.len() + content_length;

    Ok(Some(request))
}

/// Splits into complete lines.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// Finds the number after `key` in JSON text, without parsing it.
pub fn number_after(body: &[u8], key: &[u8]) -> Option<u64> {
    let at = body.windows(key.len()).position(|window| window == key)? + key.len();
    let digits = body[at..]
        .iter()
        .copied()
        .skip_while(|byte| matches!(byte, b':' | b' '))
        .take_while(u8::is_ascii_digit);
    let mut number = None;

    for digit in digits {
        number = Some(number.unwrap_or(0) * 10 + u64::from(digit - b'0'));
    }

    number
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"POST /slow/20 HTTP/1.1\r\nHost: x\r\nX-Webhook-Delivery: d\r\nX-Webhook-Id:w\r\n\
        X-Webhook-Signature: s\r\nContent-Length: 4\r\n\r\nbodyPOST ";

    #[test]
    fn a_request_is_parsed_once_it_is_complete() {
        let whole = TEXT.len() - b"POST ".len();
        for end in 0..whole {
            assert_eq!(parse(&TEXT[..end]), Ok(None), "{end}");
        }

        let request = parse(TEXT).unwrap().unwrap();
        assert_eq!(
            (request.path, request.body, request.length),
            (&b"/slow/20"[..], &b"body"[..], whole)
        );
        assert_eq!(
            (request.delivery, request.webhook),
            (Some(&b"d"[..]), Some(&b"w"[..]))
        );
        assert_eq!(request.signature, Some(&b"s"[..]));
        assert!(parse(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }

    #[test]
    fn the_number_after_a_key_is_found() {
        assert_eq!(
            number_after(
                br#"{"data":{"distro_queue_id":8812,"x":1}}"#,
                br#""distro_queue_id""#
            ),
            Some(8812)
        );
        assert_eq!(number_after(b"{}", br#""distro_queue_id""#), None);
    }
}
