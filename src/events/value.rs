//! Column values: how each type of `data` is parsed from a column's text, with its JSON form and
//! its schema.

use std::borrow::Cow;

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::domain::change::canonical_int;
use crate::domain::time;

/// A type that a column's text can be parsed into.
pub(super) trait FromText: Sized {
    /// What the text must be, as a noun for the error message.
    const EXPECTED: &'static str;

    fn from_text(text: &str) -> Option<Self>;
}

impl FromText for i64 {
    const EXPECTED: &'static str = "a 64-bit integer";

    fn from_text(text: &str) -> Option<Self> {
        canonical_int(text)
    }
}

impl FromText for String {
    const EXPECTED: &'static str = "text";

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl FromText for bool {
    const EXPECTED: &'static str = "a boolean";

    /// Accepts Postgres's spelling, JSON's, and the numbers of platforms that have no boolean type.
    fn from_text(text: &str) -> Option<Self> {
        match text {
            "t" | "true" | "1" => Some(true),
            "f" | "false" | "0" => Some(false),
            _ => None,
        }
    }
}

/// Returns the self-contained JSON Schema of a data struct.
pub(super) fn schema_of<T: JsonSchema>() -> serde_json::Value {
    let settings = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.inline_subschemas = true);
    settings
        .with_transform(RecursiveTransform(drop_width))
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Removes formats such as `int64`: JSON Schema does not define them, and strict validators reject
/// a schema that has one.
fn drop_width(schema: &mut Schema) {
    if schema
        .get("format")
        .and_then(|format| format.as_str())
        .is_some_and(|format| format.starts_with("int"))
    {
        schema.remove("format");
    }
}

/// Returns a data object as JSON text.
pub(super) fn to_json<T: Serialize>(data: &T) -> String {
    serde_json::to_string(data).expect("data has string keys and values that always serialise")
}

macro_rules! schema {
    ($type:ident, $schema:tt) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

/// The smallest number that is read as milliseconds. It means the year 5138 in seconds and 1973 in
/// milliseconds: no platform has rows from after the former or before the latter.
const FIRST_MILLISECONDS: u64 = 100_000_000_000;

/// A point in time, in UTC with microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(Timestamp);

impl FromText for Time {
    const EXPECTED: &'static str = "a finite time";

    /// Parses Postgres's text. A time without time zone is read as UTC, an integer as Unix time: in
    /// seconds, or in milliseconds if it has twelve digits or more.
    fn from_text(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse::<i64>() {
            let in_seconds = number.unsigned_abs() < FIRST_MILLISECONDS;
            let at = if in_seconds {
                Timestamp::from_second(number)
            } else {
                Timestamp::from_millisecond(number)
            };

            return at.ok().map(Time);
        }

        let without_zone = || {
            text.parse::<civil::DateTime>()
                .ok()?
                .to_zoned(TimeZone::UTC)
                .ok()
        };

        let at = text
            .parse::<Timestamp>()
            .ok()
            .or_else(|| without_zone().map(|zoned| zoned.timestamp()));
        at.map(Time)
    }
}

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Time(at)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time::micros(self.0))
    }
}

schema!(Time, { "type": "string", "format": "date-time" });

/// A calendar day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Date(civil::Date);

impl FromText for Date {
    const EXPECTED: &'static str = "a finite date";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().map(Date)
    }
}

schema!(Date, { "type": "string", "format": "date" });

/// A decimal number with exactly the digits that the database stores. A binary float would drop the
/// zero of `120.50` and round long numbers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Amount(Box<RawValue>);

impl FromText for Amount {
    /// NaN and the infinities have no JSON form.
    const EXPECTED: &'static str = "a finite number";

    fn from_text(text: &str) -> Option<Self> {
        let starts = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        let ends = text.ends_with(|last: char| last.is_ascii_digit());
        let number = (starts && ends).then(|| RawValue::from_string(text.to_owned()))?;
        number.ok().map(Amount)
    }
}

schema!(Amount, { "type": "number" });

/// The platform's JSON array of review issues, byte for byte.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Issues(Box<RawValue>);

impl FromText for Issues {
    const EXPECTED: &'static str = "JSON";

    /// Reads a JSON null as no issues, and a value that is not an array as one issue.
    fn from_text(text: &str) -> Option<Self> {
        let value: &RawValue = serde_json::from_str(text).ok()?;
        let array = match value.get() {
            "null" => return Some(Issues::default()),
            array if array.starts_with('[') => Ok(value.to_owned()),
            single => RawValue::from_string(format!("[{single}]")),
        };

        array.ok().map(Issues)
    }
}

impl Default for Issues {
    fn default() -> Self {
        Issues(RawValue::from_string("[]".to_owned()).expect("valid JSON"))
    }
}

schema!(Issues, { "type": "array", "items": true });

#[cfg(test)]
mod tests {
    use super::*;

    fn json<T: Serialize>(value: Option<T>) -> Option<String> {
        value.map(|value| to_json(&value))
    }

    #[test]
    fn times_are_utc_with_microseconds_in_every_format_the_server_sends() {
        for (text, expected) in [
            (
                "2026-03-01 09:05:00.123+00",
                "2026-03-01T09:05:00.123000+00:00",
            ),
            ("2026-03-01 09:05:00+00", "2026-03-01T09:05:00.000000+00:00"),
            (
                "2026-03-01 09:05:00.000001+00",
                "2026-03-01T09:05:00.000001+00:00",
            ),
            (
                "2026-03-01 14:35:00+05:30",
                "2026-03-01T09:05:00.000000+00:00",
            ),
            (
                "2026-02-28 23:35:00.5-09:30",
                "2026-03-01T09:05:00.500000+00:00",
            ),
            (
                "1900-01-01 05:53:28+05:53:28",
                "1900-01-01T00:00:00.000000+00:00",
            ),
            (
                "2026-03-01T09:05:00.123456+00:00",
                "2026-03-01T09:05:00.123456+00:00",
            ),
            ("2026-03-01 09:05:00.7", "2026-03-01T09:05:00.700000+00:00"),
            ("1772355900", "2026-03-01T09:05:00.000000+00:00"),
            ("1772355900123", "2026-03-01T09:05:00.123000+00:00"),
            ("0", "1970-01-01T00:00:00.000000+00:00"),
        ] {
            assert_eq!(
                json(Time::from_text(text)),
                Some(format!("\"{expected}\"")),
                "{text}"
            );
        }

        for text in [
            "infinity",
            "-infinity",
            "",
            "0044-03-15 00:00:00+00 BC",
            "12000-01-01 00:00:00+00",
            "yesterday",
        ] {
            assert_eq!(Time::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn dates_have_no_time() {
        assert_eq!(
            json(Date::from_text("2026-03-31")),
            Some("\"2026-03-31\"".into())
        );

        for text in ["infinity", "", "0044-03-15 BC", "31.03.2026"] {
            assert_eq!(Date::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_keep_their_digits() {
        for text in [
            "120.50",
            "0.00",
            "-3.10",
            "12345678901234567890.123456789012345678901",
            "7",
            "1e+20",
        ] {
            assert_eq!(json(Amount::from_text(text)).as_deref(), Some(text));
        }

        for text in [
            "NaN",
            "Infinity",
            "-Infinity",
            "",
            "-",
            "$120.50",
            " 1",
            "1 ",
            "1,5",
            "01",
            "null",
            "\"1\"",
            "[1",
        ] {
            assert!(Amount::from_text(text).is_none(), "{text}");
        }
    }

    #[test]
    fn issues_are_a_json_array_byte_for_byte() {
        for (text, expected) in [
            (
                r#"[{"code": "artwork",  "n": 1.50}]"#,
                r#"[{"code": "artwork",  "n": 1.50}]"#,
            ),
            ("[]", "[]"),
            (" null ", "[]"),
            (r#"{"code": "artwork"}"#, r#"[{"code": "artwork"}]"#),
            (r#""blurred""#, r#"["blurred"]"#),
        ] {
            assert_eq!(
                json(Issues::from_text(text)).as_deref(),
                Some(expected),
                "{text}"
            );
        }

        for text in ["", "[", "blurred", "[] []"] {
            assert!(Issues::from_text(text).is_none(), "{text}");
        }

        assert_eq!(to_json(&Issues::default()), "[]");
    }
}
