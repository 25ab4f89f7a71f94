//! Request bodies: JSON objects, bounded in size and time, whose every key is known. All faults are told at once.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::ApiState;
use super::problem::{FieldError, MAX_ERRORS, Problem};

const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a body that is too large is read off, so that the client gets to read the answer.
const DISCARDED_AT_MOST: usize = 8 << 20;

/// A body that is a JSON object.
pub struct Object(pub Map<String, Value>);

/// A body that is a JSON object, or none at all.
pub struct OptionalObject(pub Map<String, Value>);

impl FromRequest<ApiState> for Object {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = read(request.into_body(), state.max_body_bytes).await?;
        if !is_json {
            return Err(Problem::unsupported_media_type());
        }
        object(&bytes).map(Object)
    }
}

impl FromRequest<ApiState> for OptionalObject {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = read(request.into_body(), state.max_body_bytes).await?;
        match bytes.is_empty() {
            true => Ok(OptionalObject(Map::new())),
            false if !is_json => Err(Problem::unsupported_media_type()),
            false => object(&bytes).map(OptionalObject),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let value = value.to_str().unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence == "application/merge-patch+json"
}

/// The whole body, if it comes in time and is no larger than that.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let whole = async {
        let mut frames = body.into_data_stream();
        let mut bytes = Vec::new();
        let mut length = 0;
        while let Some(frame) = frames.next().await {
            let frame = frame.map_err(|_| Problem::unreadable_body())?;
            length += frame.len();
            if length > limit.saturating_add(DISCARDED_AT_MOST) {
                break;
            }
            if length <= limit {
                bytes.extend_from_slice(&frame);
            }
        }
        if length > limit { Err(Problem::content_too_large(limit)) } else { Ok(bytes.into()) }
    };
    tokio::time::timeout(READ_TIMEOUT, whole).await.unwrap_or_else(|_| Err(Problem::body_timeout()))
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => match serde_json::from_slice::<UniqueKeys>(bytes) {
            Ok(UniqueKeys) => Ok(object),
            Err(error) => Err(Problem::malformed_json(error.to_string())),
        },
        Ok(_) => Err(Problem::validation(vec![FieldError::new("", "expected an object")])),
        Err(error) => Err(Problem::malformed_json(error.to_string())),
    }
}

/// An object that gives each key once. Of two values for one key we would take another than what stands before us may have
/// looked at.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueKeys)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = UniqueKeys;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Self, M::Error> {
        let mut seen = HashSet::new();
        while let Some((name, IgnoredAny)) = members.next_entry::<String, _>()? {
            if !seen.insert(name) {
                return Err(M::Error::custom("a key is given twice"));
            }
        }
        Ok(self)
    }
}

/// Takes an object apart, member by member, and remembers what is wrong with it.
pub struct Reader {
    members: Map<String, Value>,
    errors: Vec<FieldError>,
}

impl Reader {
    pub fn new(members: Map<String, Value>) -> Reader {
        Reader { members, errors: Vec::new() }
    }

    /// The member `name`, if it is there and `check` takes it.
    pub fn optional<T>(&mut self, name: &str, check: impl FnOnce(Value) -> Result<T, Vec<FieldError>>) -> Option<T> {
        let value = self.members.shift_remove(name)?;
        match check(value) {
            Ok(value) => Some(value),
            Err(errors) => {
                let under = |error: FieldError| FieldError { pointer: format!("/{name}{}", error.pointer), ..error };
                self.errors.extend(errors.into_iter().map(under));
                None
            }
        }
    }

    pub fn required<T>(&mut self, name: &str, check: impl FnOnce(Value) -> Result<T, Vec<FieldError>>) -> Option<T> {
        if !self.members.contains_key(name) {
            self.fault(format!("/{name}"), "is required");
        }
        self.optional(name, check)
    }

    pub fn fault(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.errors.push(FieldError::new(pointer, detail));
    }

    /// What is left over is unknown. Faults end the request here.
    pub fn finish(mut self) -> Result<(), Problem> {
        for name in self.members.keys().take(MAX_ERRORS.saturating_sub(self.errors.len())) {
            let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
            self.errors.push(FieldError::new(pointer, "is not a known key"));
        }
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::validation(self.errors)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_the_body_is_json_with_or_without_parameters() {
        let is = |value: &str| is_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]));
        assert!(is("application/json") && is("Application/JSON; charset=utf-8") && is("application/merge-patch+json"));
        assert!(!is("text/plain") && !is("application/jsonp") && !is("") && !is_json(&HeaderMap::new()));
    }

    #[test]
    fn unknown_keys_are_named_by_escaped_pointers() {
        let mut reader = Reader::new(object(br#"{"a": 1, "x/y~z": 2}"#).unwrap());
        assert_eq!(reader.required("a", Ok), Some(Value::from(1)));
        assert_eq!(reader.required("b", Ok), None);
        reader.fault("/c", "is odd");
        assert_eq!(reader.errors, [FieldError::new("/b", "is required"), FieldError::new("/c", "is odd")]);
        assert!(format!("{:?}", reader.finish().unwrap_err()).contains("/x~1y~0z"));
    }
}
