//! Builds spans from events and attempts, with the attribute names of OpenTelemetry's semantic
//! conventions where these define one. No I/O.

use jiff::Timestamp;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use url::Url;
use uuid::Uuid;

use crate::domain::delivery::{Answer, Attempted, ErrorKind, Outcome, Sent};
use crate::domain::event::Event;
use crate::domain::position::Position;
use crate::domain::trace::{SpanId, Stage};

/// The `sampled` flag of W3C Trace Context.
const SAMPLED: u32 = 1;

/// Builds the root span of an event's trace and its two parts: waiting to be read, and being
/// stored.
pub fn stored(event: &Event, read_at: Timestamp, stored: Timestamp) -> [Span; 3] {
    // The commit time is from the primary, whose clock may be ahead.
    let committed = event.occurred_at;
    let read_at = read_at.max(committed);
    let stored = stored.max(read_at);
    let root = SpanId::of_stage(event.id, Stage::Event);

    let child = |stage, name: &str, start, end| Span {
        parent_span_id: root.0.to_vec(),
        ..span(
            event.id,
            SpanId::of_stage(event.id, stage),
            name,
            SpanKind::Internal,
            (start, end),
        )
    };

    let name = format!("event {}", event.kind);
    [
        Span {
            attributes: of_event(event),
            ..span(
                event.id,
                root,
                &name,
                SpanKind::Producer,
                (committed, stored),
            )
        },
        child(Stage::Capture, "capture", committed, read_at),
        child(Stage::Store, "store", read_at, stored),
    ]
}

/// Builds the span of one attempt: a client request, or an internal span if nothing was sent.
pub fn attempt(attempted: &Attempted, outcome: Outcome, parent: Option<SpanId>) -> Span {
    let Attempted { delivery, attempt } = attempted;
    let id = SpanId::of_attempt(delivery.id, delivery.attempt, attempt.started_at);
    let (name, kind) = match attempt.sent {
        Some(_) => ("POST", SpanKind::Client),
        None => ("not sent", SpanKind::Internal),
    };

    let duration = attempt
        .sent
        .as_ref()
        .map(|sent| sent.duration)
        .unwrap_or_default();
    let end = attempt
        .started_at
        .checked_add(duration)
        .unwrap_or(attempt.started_at);

    let mut attributes = vec![
        text("walhook.event.type", delivery.kind.as_str()),
        text("walhook.delivery.id", delivery.id.to_string()),
        text("walhook.webhook.id", delivery.webhook.to_string()),
        number("walhook.delivery.round", delivery.round),
        number("walhook.delivery.attempt", delivery.attempt),
        text("walhook.delivery.outcome", outcome.as_str()),
    ];

    attempt
        .sent
        .iter()
        .for_each(|sent| attributes.extend(of_request(sent, delivery.attempt)));
    attributes.extend(
        attempt
            .answer
            .status()
            .map(|status| number("http.response.status_code", status)),
    );

    let error = error_type(&attempt.answer);
    let code = if error.is_some() {
        StatusCode::Error
    } else {
        StatusCode::Unset
    };

    attributes.extend(error.map(|error| text("error.type", error)));

    Span {
        parent_span_id: parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        attributes,
        status: Some(Status {
            code: code.into(),
            message: String::new(),
        }),
        ..span(delivery.event, id, name, kind, (attempt.started_at, end))
    }
}

fn span(
    trace: Uuid,
    id: SpanId,
    name: &str,
    kind: SpanKind,
    (start, end): (Timestamp, Timestamp),
) -> Span {
    Span {
        trace_id: trace.as_bytes().to_vec(),
        span_id: id.0.to_vec(),
        flags: SAMPLED,
        name: name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(start),
        end_time_unix_nano: nanoseconds(end),
        ..Span::default()
    }
}

fn of_event(event: &Event) -> Vec<KeyValue> {
    let position = match event.position {
        Position::Wal { commit, .. } => text("walhook.lsn", commit.to_string()),
        Position::Log { number: event, .. } => number("walhook.log.number", event as i64),
        Position::Outbox { transaction, .. } => number("walhook.transaction", transaction as i64),
    };

    vec![
        text("walhook.event.id", event.id.to_string()),
        text("walhook.event.type", event.kind.as_str()),
        position,
        number("walhook.ordinal", event.position.ordinal() as i64),
        text("user.id", &*event.user.0),
    ]
}

/// Returns the attributes of a request. Of the URL only scheme, host and port: path and query may
/// contain secrets.
fn of_request(sent: &Sent, attempt: u16) -> Vec<KeyValue> {
    let mut attributes = vec![text("http.request.method", "POST")];

    if attempt > 1 {
        attributes.push(number("http.request.resend_count", attempt - 1));
    }

    if let Ok(url) = Url::parse(&sent.url) {
        attributes.push(text("url.scheme", url.scheme()));
        attributes.extend(
            url.host_str()
                .map(|host| text("server.address", host.trim_matches(['[', ']']))),
        );
        attributes.extend(
            url.port_or_known_default()
                .map(|port| number("server.port", port)),
        );
    }

    attributes
}

/// Returns the status code if there is one, otherwise the kind of error.
fn error_type(answer: &Answer) -> Option<String> {
    match (answer.error()?, answer.status()) {
        (ErrorKind::HttpStatus, Some(status)) => Some(status.to_string()),
        (kind, _) => Some(kind.as_str().to_owned()),
    }
}

/// Returns an attribute with a text value.
pub fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

fn number(key: &str, value: impl Into<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.into()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::domain::delivery::{Attempt, Delivery, Lease, Signatures, Timing};
    use crate::domain::event::{EventKind, UserId};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn shown(span: &Span, key: &str) -> Option<String> {
        let pair = span.attributes.iter().find(|pair| pair.key == key)?;
        match pair.value.clone()?.value? {
            Value::StringValue(text) => Some(text),
            Value::IntValue(number) => Some(number.to_string()),
            _ => None,
        }
    }

    #[test]
    fn no_span_ends_before_it_starts_if_the_primarys_clock_is_ahead() {
        let event = Event {
            id: Uuid::from_u128(7),
            kind: EventKind::DeliveryFailed,
            user: UserId("u".into()),
            label: None,
            occurred_at: at(100),
            position: Position::Outbox {
                window: 1,
                transaction: 700,
                ordinal: 5,
            },
            repaired: false,
            data: "{}".into(),
        };

        let spans = stored(&event, at(90), at(95));
        assert!(
            spans
                .iter()
                .all(|span| span.start_time_unix_nano <= span.end_time_unix_nano)
        );
        assert_eq!(
            shown(&spans[0], "walhook.transaction").as_deref(),
            Some("700")
        );

        assert_eq!(
            (
                shown(&spans[0], "walhook.lsn"),
                shown(&spans[0], "walhook.ordinal")
            ),
            (None, Some("5".into()))
        );
    }

    fn attempted(answer: Answer, url: Option<&str>) -> Attempted {
        let delivery = Delivery {
            id: Uuid::from_u128(1),
            webhook: Uuid::from_u128(2),
            event: Uuid::from_u128(7),
            kind: EventKind::DeliveryFailed,
            occurred_at: at(100),
            data: "{}".into(),
            round: 1,
            attempt: 1,
            sequence: None,
            order_key: None,
            activation: 0,
            lease: Lease {
                token: Uuid::nil(),
                until: Instant::now(),
                place: None,
            },
        };

        let sent = url.map(|url| Sent {
            url: Arc::from(url),
            signatures: Signatures {
                body: [0; 32],
                standard: [0; 32],
                more: Vec::new(),
            },
            duration: Duration::from_millis(1_500),
            timing: Timing::default(),
            response_headers: Vec::new(),
            excerpt: Vec::new(),
            retry_after: None,
        });

        Attempted {
            delivery,
            attempt: Attempt {
                started_at: at(101),
                answer,
                sent,
            },
        }
    }

    #[test]
    fn a_failure_without_a_response_has_its_kind_as_error_type_and_only_the_server_of_the_url() {
        let refused = Answer::Failed {
            kind: ErrorKind::ConnectRefused,
            message: "no".into(),
            status: None,
        };

        let span = attempt(
            &attempted(refused, Some("https://[::1]/hook?token=hush")),
            Outcome::Failed,
            None,
        );
        assert_eq!(
            shown(&span, "error.type").as_deref(),
            Some("connect_refused")
        );
        assert_eq!(
            (shown(&span, "server.address"), shown(&span, "server.port")),
            (Some("::1".into()), Some("443".into()))
        );
        assert_eq!(
            span.end_time_unix_nano - span.start_time_unix_nano,
            1_500_000_000
        );
        assert!(!format!("{span:?}").contains("hush"));
    }

    #[test]
    fn a_delivery_that_was_not_sent_has_no_request_attributes() {
        let span = attempt(
            &attempted(Answer::TooLarge { bytes: 70_000 }, None),
            Outcome::PermanentlyFailed,
            None,
        );
        assert_eq!(
            (span.kind(), span.name.as_str()),
            (SpanKind::Internal, "not sent")
        );
        assert_eq!(
            shown(&span, "error.type").as_deref(),
            Some("payload_too_large")
        );
        assert_eq!(shown(&span, "http.request.method"), None);
    }
}
