//! The two text formats of times in deliveries and responses: RFC 3339 in UTC, always with
//! `+00:00`.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use jiff::tz::Offset;

const MILLIS: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
const MICROS: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// Formats with milliseconds: the envelope's `timestamp` and every other time that Walhook creates.
pub fn millis(at: Timestamp) -> String {
    MILLIS.timestamp_with_offset_to_string(&at, Offset::UTC)
}

/// Formats with microseconds, as the platform's database stores them: the times inside `data`.
pub fn micros(at: Timestamp) -> String {
    MICROS.timestamp_with_offset_to_string(&at, Offset::UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_keep_trailing_zeros() {
        let at: Timestamp = "2026-03-01T09:05:00.5Z".parse().unwrap();
        assert_eq!(millis(at), "2026-03-01T09:05:00.500+00:00");
        assert_eq!(micros(at), "2026-03-01T09:05:00.500000+00:00");
    }
}
