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
        let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok());
        parsed
            .map(Period)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a duration like `200ms`, `30s` or `5m`")))
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = self.0.as_millis();
        let text = match millis {
            0 => "0s".to_owned(),
            _ if !millis.is_multiple_of(1_000) => format!("{millis}ms"),
            _ if !millis.is_multiple_of(60_000) => format!("{}s", millis / 1_000),
            _ => format!("{}m", millis / 60_000),
        };
        serializer.serialize_str(&text)
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
        let whole = UNITS.iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit));
        match whole {
            Some((unit, name)) => serializer.serialize_str(&format!("{}{name}", self.0 / unit)),
            None => serializer.serialize_u64(self.0),
        }
    }
}
