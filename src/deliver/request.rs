//! Renders requests: body, signatures and headers. No I/O.

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use uuid::Uuid;

pub use super::signer::Signer;

use super::signer::standard_header;
use crate::domain::delivery::{Delivery, Signatures};
use crate::domain::event::omitted_bytes;
use crate::domain::time;

/// The content of a request, without the time and the signatures.
#[derive(Clone, Copy, Debug)]
pub struct Notification<'a> {
    pub delivery: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    /// The name of the event type.
    pub kind: &'static str,
    pub occurred_at: Timestamp,
    pub data: &'a str,
    pub attempt: u16,
    pub sequence: Option<i64>,
    /// Requested by the webhook's owner, not raised by the platform.
    pub test: bool,
}

impl<'a> From<&'a Delivery> for Notification<'a> {
    fn from(delivery: &'a Delivery) -> Self {
        Notification {
            delivery: delivery.id,
            webhook: delivery.webhook,
            event: delivery.event,
            kind: delivery.kind.as_str(),
            occurred_at: delivery.occurred_at,
            data: &delivery.data,
            attempt: delivery.attempt,
            sequence: delivery.sequence,
            test: false,
        }
    }
}

/// The name of a header.
#[derive(Debug)]
pub struct Name {
    /// As the delivery log shows it.
    pub shown: &'static str,
    /// As the client takes it.
    pub sent: HeaderName,
}

/// Declares names, made once for all requests.
macro_rules! names {
    ($($name:ident $shown:literal $sent:literal;)+) => {
        $(static $name: Name = Name { shown: $shown, sent: HeaderName::from_static($sent) };)+
    };
}

names! {
    SIGNATURE "X-Webhook-Signature" "x-webhook-signature";
    TIMESTAMP "X-Webhook-Timestamp" "x-webhook-timestamp";
    EVENT "X-Webhook-Event" "x-webhook-event";
    WEBHOOK "X-Webhook-Id" "x-webhook-id";
    USER_AGENT "User-Agent" "user-agent";
    CONTENT_TYPE "Content-Type" "content-type";
    DELIVERY "X-Webhook-Delivery" "x-webhook-delivery";
    ATTEMPT "X-Webhook-Attempt" "x-webhook-attempt";
    EVENT_ID "X-Webhook-Event-Id" "x-webhook-event-id";
    OCCURRED_AT "X-Webhook-Occurred-At" "x-webhook-occurred-at";
    STANDARD_ID "webhook-id" "webhook-id";
    STANDARD_TIMESTAMP "webhook-timestamp" "webhook-timestamp";
    STANDARD_SIGNATURE "webhook-signature" "webhook-signature";
    SEQUENCE "X-Webhook-Sequence" "x-webhook-sequence";
    TEST "X-Webhook-Test" "x-webhook-test";
    TRACEPARENT "traceparent" "traceparent";
}

/// A header of a request.
pub type Header = (&'static Name, HeaderValue);

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Rendered<'a> {
    pub body: Bytes,
    pub signatures: Signatures,
    /// The value of the header `traceparent`.
    pub traceparent: Option<String>,
    notification: Notification<'a>,
    at: Timestamp,
    timestamp: String,
    user_agent: &'a str,
}

/// The body would have `bytes` bytes, more than may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub bytes: usize,
}

/// Renders and signs a request. `at` is the time of this attempt in milliseconds: with the time of
/// the first attempt, a retry would fail the receiver's replay check.
pub fn render<'a>(
    notification: &Notification<'a>,
    at: Timestamp,
    signer: &Signer,
    user_agent: &'a str,
    max_bytes: usize,
) -> Result<Rendered<'a>, TooLarge> {
    if let Some(bytes) = omitted_bytes(notification.data) {
        return Err(TooLarge { bytes });
    }

    let timestamp = time::millis(at);
    let body = body(notification, &timestamp, max_bytes)?;
    let signatures = signer.sign(notification.delivery, at, &body);

    Ok(Rendered {
        body: body.into(),
        signatures,
        traceparent: None,
        notification: *notification,
        at,
        timestamp,
        user_agent,
    })
}

/// Renders the request of a logged attempt, with the logged signatures: the secret may have changed
/// since.
pub fn replay<'a>(
    notification: &Notification<'a>,
    at: Timestamp,
    signatures: Signatures,
    user_agent: &'a str,
) -> Rendered<'a> {
    let timestamp = time::millis(at);
    let body =
        body(notification, &timestamp, usize::MAX).expect("no body is larger than usize::MAX");

    Rendered {
        body: body.into(),
        signatures,
        traceparent: None,
        notification: *notification,
        at,
        timestamp,
        user_agent,
    }
}

/// Renders the envelope. Contains `data` byte for byte.
fn body(
    notification: &Notification<'_>,
    timestamp: &str,
    max_bytes: usize,
) -> Result<Vec<u8>, TooLarge> {
    // Neither the kind, the time nor the id contains a character that JSON escapes.
    let head = format!(
        r#"{{"event":"{}","timestamp":"{timestamp}","webhook_id":"{}","data":"#,
        notification.kind, notification.webhook
    );
    let bytes = head.len() + notification.data.len() + 1;
    if bytes > max_bytes {
        return Err(TooLarge { bytes });
    }

    let mut body = head.into_bytes();
    body.reserve_exact(bytes - body.len());
    body.extend_from_slice(notification.data.as_bytes());
    body.push(b'}');

    Ok(body)
}

impl Rendered<'_> {
    /// Renders the headers. Each call makes the same ones.
    pub fn headers(&self) -> impl Iterator<Item = Header> {
        let Rendered {
            notification, at, ..
        } = self;
        let all = [
            (&SIGNATURE, hexadecimal(&self.signatures.body)),
            (&TIMESTAMP, value(self.timestamp.clone())),
            (&EVENT, HeaderValue::from_static(notification.kind)),
            (&WEBHOOK, id(notification.webhook)),
            (&USER_AGENT, value(self.user_agent.to_owned())),
            (&CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (&DELIVERY, id(notification.delivery)),
            (&ATTEMPT, notification.attempt.into()),
            (&EVENT_ID, id(notification.event)),
            (&OCCURRED_AT, value(time::micros(notification.occurred_at))),
            (&STANDARD_ID, id(notification.delivery)),
            (&STANDARD_TIMESTAMP, at.as_second().into()),
            (
                &STANDARD_SIGNATURE,
                value(standard_header(&self.signatures)),
            ),
        ];

        let sequence = notification
            .sequence
            .map(|sequence| (&SEQUENCE, sequence.into()));
        let test = notification
            .test
            .then(|| (&TEST, HeaderValue::from_static("true")));
        let traceparent = self
            .traceparent
            .clone()
            .map(|traceparent| (&TRACEPARENT, value(traceparent)));

        all.into_iter()
            .chain(sequence)
            .chain(test)
            .chain(traceparent)
    }
}

fn id(id: Uuid) -> HeaderValue {
    let mut buffer = Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut buffer);
    HeaderValue::from_str(text).expect("an id is printable ASCII")
}

fn hexadecimal(digest: &[u8; 32]) -> HeaderValue {
    let mut text = [0; 64];
    hex::encode_to_slice(digest, &mut text).expect("the text is twice as long");
    HeaderValue::from_bytes(&text).expect("digits are printable ASCII")
}

/// Takes the text without a copy.
fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("header values are printable ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base64 of the bytes 0 to 31. The expected digests below come from Python's hmac module.
    const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn notification(data: &str) -> Notification<'_> {
        Notification {
            delivery: "0195504c-a3a0-7abc-8def-0123456789ab".parse().unwrap(),
            webhook: "0195504c-0000-7000-8000-000000000001".parse().unwrap(),
            event: "0195504c-1111-7000-8000-000000000002".parse().unwrap(),
            kind: "release.distributed",
            occurred_at: "2026-03-01T09:04:59.123456Z".parse().unwrap(),
            data,
            attempt: 3,
            sequence: Some(1_042),
            test: false,
        }
    }

    fn rendered(data: &str, max: usize) -> Result<Rendered<'_>, TooLarge> {
        let at = "2026-03-01T09:05:00.120Z".parse().unwrap();
        render(
            &notification(data),
            at,
            &Signer::new(SECRET),
            "Walhook-Webhooks/1.0",
            max,
        )
    }

    const BODY: &str = concat!(
        r#"{"event":"release.distributed","timestamp":"2026-03-01T09:05:00.120+00:00","#,
        r#""webhook_id":"0195504c-0000-7000-8000-000000000001","data":{"release_id": 7,  "t":"ä\u0041"}}"#
    );

    #[test]
    fn the_envelope_keeps_its_order_and_every_byte_of_data() {
        let request = rendered(r#"{"release_id": 7,  "t":"ä\u0041"}"#, 65_536).unwrap();
        assert_eq!(std::str::from_utf8(&request.body).unwrap(), BODY);
    }

    #[test]
    fn headers_and_signatures_match_the_contract() {
        let request = rendered(r#"{"release_id": 7,  "t":"ä\u0041"}"#, 65_536).unwrap();
        let expected = [
            (
                "X-Webhook-Signature",
                "37449586aaf1d60e87b2df4ec1910bfea681d6cbbc91daa7d280e7b2d7907e35",
            ),
            ("X-Webhook-Timestamp", "2026-03-01T09:05:00.120+00:00"),
            ("X-Webhook-Event", "release.distributed"),
            ("X-Webhook-Id", "0195504c-0000-7000-8000-000000000001"),
            ("User-Agent", "Walhook-Webhooks/1.0"),
            ("Content-Type", "application/json"),
            ("X-Webhook-Delivery", "0195504c-a3a0-7abc-8def-0123456789ab"),
            ("X-Webhook-Attempt", "3"),
            ("X-Webhook-Event-Id", "0195504c-1111-7000-8000-000000000002"),
            ("X-Webhook-Occurred-At", "2026-03-01T09:04:59.123456+00:00"),
            ("webhook-id", "0195504c-a3a0-7abc-8def-0123456789ab"),
            ("webhook-timestamp", "1772355900"),
            (
                "webhook-signature",
                "v1,cvzK7yhjhYBvU/TW3LsxbfsjUkdSUjCTkX2PCDyyajE=",
            ),
            ("X-Webhook-Sequence", "1042"),
        ];

        let headers: Vec<Header> = request.headers().collect();
        let shown: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.shown, value.to_str().unwrap()))
            .collect();
        assert_eq!(shown, expected);
        assert!(headers.iter().all(|(name, _)| name.sent == name.shown));
    }

    #[test]
    fn tests_have_a_header_of_their_own() {
        let test = Notification {
            test: true,
            sequence: None,
            ..notification("{}")
        };

        let request = render(
            &test,
            Timestamp::UNIX_EPOCH,
            &Signer::new(SECRET),
            "W",
            1_000,
        )
        .unwrap();

        assert!(
            request
                .headers()
                .all(|(name, _)| name.shown != "X-Webhook-Sequence")
        );

        assert!(
            request
                .headers()
                .any(|(name, value)| name.shown == "X-Webhook-Test" && value == "true")
        );
    }

    #[test]
    fn the_size_limit_applies_to_the_whole_body() {
        let envelope = rendered("{}", 65_536).unwrap().body.len() - 2;
        let fitting = format!("\"{}\"", "x".repeat(65_536 - envelope - 2));

        assert_eq!(rendered(&fitting, 65_536).unwrap().body.len(), 65_536);
        let larger = format!("\"{}\"", "x".repeat(65_536 - envelope - 1));
        assert_eq!(
            rendered(&larger, 65_536).unwrap_err(),
            TooLarge { bytes: 65_537 }
        );
    }

    /// RFC 4231, test case 2.
    #[test]
    fn the_body_is_signed_with_the_whole_secret() {
        let signatures = Signer::new("Jefe").sign(
            Uuid::nil(),
            Timestamp::UNIX_EPOCH,
            b"what do ya want for nothing?",
        );
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex::encode(signatures.body), expected);
    }
}
