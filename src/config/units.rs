//! Durations like `200ms` and sizes like `1MiB`, as the configuration writes them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A duration such as `200ms`, `30s` or `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(inline, with = "String")]
pub struct Period(pub Duration);

impl Period {
    pub const fn secs(seconds: u64) -> Self {
        Period(Duration::from_secs(seconds))
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = text
            .parse::<jiff::SignedDuration>()
            .ok()
            .and_then(|parsed| Duration::try_from(parsed).ok());
        parsed.map(Period).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is not a duration like `200ms`, `30s` or `5m`"
            ))
        })
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const UNITS: [(u128, &str); 4] = [
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];

        let nanos = self.0.as_nanos();
        let whole = UNITS.iter().find(|(unit, _)| nanos.is_multiple_of(*unit));
        serializer.serialize_str(&match whole {
            _ if nanos == 0 => "0s".to_owned(),
            Some((unit, name)) => format!("{}{name}", nanos / unit),
            None => format!("{nanos}ns"),
        })
    }
}

/// A size such as `64KiB`, or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(inline, with = "String")]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bytesize::ByteSize::deserialize(deserializer).map(|size| Size(size.as_u64()))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const UNITS: [(u64, &str); 2] = [(1 << 20, "MiB"), (1 << 10, "KiB")];
        let whole = UNITS
            .iter()
            .find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit));
        match whole {
            Some((unit, name)) => serializer.serialize_str(&format!("{}{name}", self.0 / unit)),
            None => serializer.serialize_u64(self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_they_can_be_read() {
        for text in [
            "0s", "5m", "90s", "200ms", "1500ms", "500us", "1500us", "7ns",
        ] {
            let period: Period = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(period).unwrap(), text);
        }
    }
}
