//! Formats of numbers, and labels. The types are for templates: `{{ Count(number) }}`.

use std::borrow::Borrow;
use std::fmt;

use serde_json::Value;

use crate::domain::delivery::ErrorKind;
use crate::domain::webhook::BY_OPERATOR;
use crate::manage::{JobScope, Ordering, Webhook};

/// A number with commas between the thousands.
pub struct Count<T>(pub T);

impl<T: fmt::Display> fmt::Display for Count<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }

            write!(f, "{digit}")?;
        }

        Ok(())
    }
}

/// A share from 0 to 1 in per cent. Only 0 and 1 themselves are shown as 0 % and 100 %.
pub struct Percent<T>(pub T);

impl<T: Borrow<Option<f64>>> fmt::Display for Percent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0.borrow() {
            None => f.write_str("–"),
            Some(share) if share >= 1.0 => f.write_str("100 %"),
            Some(share) if share <= 0.0 => f.write_str("0 %"),
            Some(share) => write!(f, "{:.1} %", (share * 100.0).clamp(0.1, 99.9)),
        }
    }
}

/// A duration in milliseconds.
pub struct Millis<T>(pub T);

impl<T: Borrow<Option<u64>>> fmt::Display for Millis<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0.borrow() {
            None => f.write_str("–"),
            Some(0) => f.write_str("< 1 ms"),
            Some(millis @ 1..1_000) => write!(f, "{millis} ms"),
            Some(millis) => write!(f, "{:.1} s", millis as f64 / 1_000.0),
        }
    }
}

/// Returns "1 delivery" or "2 deliveries".
pub fn deliveries(count: u64) -> String {
    format!(
        "{} {}",
        Count(count),
        if count == 1 { "delivery" } else { "deliveries" }
    )
}

/// Capitalises a message and adds a full stop.
pub fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars
        .next()
        .map(|c| c.to_uppercase().to_string())
        .unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };

    format!("{first}{}{end}", chars.as_str())
}

/// Formats JSON for reading.
pub fn pretty(json: &str) -> String {
    serde_json::from_str::<Value>(json)
        .map_or_else(|_| json.to_owned(), |value| format!("{value:#}"))
}

/// Returns how a webhook was disabled, as the beginning of a sentence.
pub fn disabled_by(webhook: &Webhook) -> &'static str {
    if webhook.is_disabled_by_operator() {
        "Disabled by the operator"
    } else {
        "Disabled automatically"
    }
}

/// Returns "58 failures".
pub fn failures(count: impl fmt::Display) -> String {
    let count = Count(count).to_string();
    let noun = if count == "1" { "failure" } else { "failures" };
    format!("{count} {noun}")
}

/// Returns "13 events are", or "50,000 or more events are" if there are too many to count.
pub fn events_are(scope: &JobScope) -> String {
    match (scope.count, scope.is_exact) {
        (0, true) => "No events are".to_owned(),
        (1, true) => "1 event is".to_owned(),
        (count, true) => format!("{} events are", Count(count)),
        (count, false) => format!("{} or more events are", Count(count)),
    }
}

/// Returns why a webhook was disabled, as a sentence: without the kind of the failure, such as
/// `(http_status)` at the end.
pub fn disabled_reason(reason: &str) -> String {
    let is_kind = |kind: &str| ErrorKind::ALL.iter().any(|known| known.as_str() == kind);

    match reason.strip_prefix(BY_OPERATOR).unwrap_or(reason) {
        "gone" => "The receiver answered 410 Gone.".to_owned(),
        other => match other
            .strip_suffix(')')
            .and_then(|text| text.rsplit_once(" ("))
        {
            Some((words, kind)) if is_kind(kind) => sentence(words),
            _ => sentence(other),
        },
    }
}

/// Returns the label of an outcome and the class of its badge.
pub fn outcome_label(outcome: &str) -> (&'static str, &'static str) {
    match outcome {
        "delivered" => ("Delivered", "good"),
        "failed" => ("Failed, will retry", "warn"),
        "permanently_failed" => ("Failed permanently", "bad"),
        _ => ("Cancelled", "muted"),
    }
}

/// Returns the label of an ordering.
pub fn ordering_label(ordering: &Ordering) -> &'static str {
    match ordering {
        Ordering::None => "Any order",
        Ordering::Release => "In order, per release",
        Ordering::Strict => "In order (strict)",
    }
}

/// Returns the label of a kind of failure.
pub fn failure_label(kind: &str) -> &'static str {
    match kind {
        "dns" => "Host not found",
        "connect_refused" => "Connection refused",
        "connect_timeout" => "Connection timed out",
        "response_timeout" => "Response timed out",
        "tls" => "TLS error",
        "connection_reset" => "Connection reset",
        "http_status" => "HTTP error status",
        "blocked_address" => "Address not allowed",
        "payload_too_large" => "Payload too large",
        "webhook_inactive" => "Webhook inactive",
        "event_expired" => "Event expired",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let shown = [0, 999, 1_000, 1_234_567].map(|number| Count(number).to_string());
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_few_failures_among_many_are_not_rounded_away() {
        let shown = [Some(0.99999), Some(0.00001), Some(1.0), Some(0.0), None]
            .map(|share| Percent(share).to_string());
        assert_eq!(shown, ["99.9 %", "0.1 %", "100 %", "0 %", "–"]);
    }

    #[test]
    fn the_reason_of_a_disablement_is_a_sentence_without_the_kind() {
        let shown = [
            "HTTP 500 answers (http_status)",
            "too many (see the mail)",
            "gone",
        ]
        .map(disabled_reason);
        assert_eq!(
            shown,
            [
                "HTTP 500 answers.",
                "Too many (see the mail).",
                "The receiver answered 410 Gone."
            ]
        );
    }

    #[test]
    fn every_kind_of_failure_has_a_label() {
        let unlabelled = ErrorKind::ALL
            .iter()
            .filter(|kind| failure_label(kind.as_str()) == "Other");
        assert_eq!(unlabelled.count(), 0);
    }
}
