//! Request bodies that are JSON objects. All errors of a body are reported at once.

use std::collections::HashSet;
use std::fmt;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::state::ApiState;
use crate::domain::members::{FieldError, Members};
use crate::http::problem::Problem;
use crate::http::read_body;

/// A body that is a JSON object. It is kept as text until it is read: as values, an array of small
/// numbers takes forty times as much memory, and a handler may wait for the store before it reads
/// the body.
pub struct Object(Bytes);

/// A body that is a JSON object. An absent body is an empty object.
pub struct OptionalObject(pub Object);

impl FromRequest<ApiState> for Object {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = read_body(request.into_body(), state.max_body_bytes).await?;

        if is_json {
            checked(bytes).map(Object)
        } else {
            Err(Problem::unsupported_media_type())
        }
    }
}

impl FromRequest<ApiState> for OptionalObject {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read_body(body, state.max_body_bytes).await?;
        if bytes.is_empty() {
            return Ok(OptionalObject(Object(Bytes::from_static(b"{}"))));
        }

        let request = Request::from_parts(parts, Body::from(bytes));
        Object::from_request(request, state)
            .await
            .map(OptionalObject)
    }
}

pub fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };

    let value = value.to_str().unwrap_or_default();
    let essence = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();

    essence == "application/json" || essence == "application/merge-patch+json"
}

/// Returns the text if it is a JSON object.
fn checked(text: Bytes) -> Result<Bytes, Problem> {
    match serde_json::from_slice(&text) {
        Ok(UniqueKeys) if text.trim_ascii_start().starts_with(b"{") => Ok(text),
        Ok(UniqueKeys) => Err(Problem::validation(vec![FieldError::new(
            "",
            "expected an object",
        )])),
        Err(error) => Err(Problem::malformed_json(error.to_string())),
    }
}

/// Parses from JSON in whose objects each key occurs once. If a key had two values, a proxy might
/// inspect one and Walhook use the other.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeys)
    }
}

macro_rules! accept {
    ($($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Self, E> {
            Ok(self)
        })+
    };
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = UniqueKeys;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Self, M::Error> {
        let mut seen = HashSet::new();

        while let Some((name, UniqueKeys)) = members.next_entry::<String, _>()? {
            if !seen.insert(name) {
                return Err(M::Error::custom("a key occurs twice"));
            }
        }

        Ok(self)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Self, S::Error> {
        while let Some(UniqueKeys) = items.next_element()? {}
        Ok(self)
    }

    accept! { visit_str: &str, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64 }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

impl Object {
    /// Returns the text, which is a JSON object.
    pub fn json(&self) -> &[u8] {
        &self.0
    }

    /// Reads the body by `from_members`, which returns None if a member is invalid, after adding an
    /// error to the members. Returns all errors. Unknown members are errors.
    pub fn read<T>(
        self,
        from_members: impl FnOnce(&mut Members) -> Option<T>,
    ) -> Result<T, Problem> {
        let values = serde_json::from_slice(&self.0)
            .map_err(|error| Problem::malformed_json(error.to_string()))?;
        Members::read(values, from_members).map_err(Problem::validation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_content_type_is_accepted_with_or_without_parameters() {
        let is = |value: &str| {
            is_json(&HeaderMap::from_iter([(
                header::CONTENT_TYPE,
                value.parse().unwrap(),
            )]))
        };

        assert!(
            is("application/json")
                && is("Application/JSON; charset=utf-8")
                && is("application/merge-patch+json")
        );
        assert!(
            !is("text/plain") && !is("application/jsonp") && !is("") && !is_json(&HeaderMap::new())
        );
    }

    #[test]
    fn a_key_that_occurs_twice_is_malformed_at_any_depth() {
        for json in [
            r#"{"a": 1, "a": 2}"#,
            r#"{"a": {"b": 1, "b": 2}}"#,
            r#"{"a": [null, {"b": "x", "b": true}]}"#,
        ] {
            assert!(
                format!("{:?}", checked(json.into()).unwrap_err()).contains("a key occurs twice"),
                "{json}"
            );
        }

        assert!(
            checked(
                r#" {"a": {"a": 1.5, "b": -1}, "b": {"a": [{"a": false}, {"a": "x"}]}}"#.into()
            )
            .is_ok()
        );

        for json in ["[{}]", " null", "1", "\"{}\""] {
            assert_eq!(checked(json.into()).unwrap_err().status(), 422, "{json}");
        }
    }
}
