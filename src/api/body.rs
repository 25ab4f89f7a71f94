//! Request bodies that are JSON objects. All errors of a body are reported at once.

use std::collections::HashSet;
use std::fmt;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::state::ApiState;
use crate::http::problem::{FieldError, MAX_ERRORS, Problem};
use crate::http::read_body;
use crate::manage::Manage;

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

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

/// The value that a member was converted to, or its errors. The errors' pointers are relative to
/// the member.
pub type Checked<T> = Result<T, Vec<FieldError>>;

/// A request body that is read from the members of a JSON object. Its type is also its schema in
/// the OpenAPI document.
///
/// Not `deserr`: it would replace [`Members`], but needs as many lines for an error type with JSON
/// pointers, the limit on errors, and members that may be absent but not null. It also cannot check
/// URLs against the configuration.
pub trait FromMembers: Sized {
    /// Reads the members. Returns None if one of them is invalid, after adding an error to
    /// `members`.
    fn from_members(members: &mut Members, manage: &Manage) -> Option<Self>;
}

impl Object {
    /// Reads the body, or returns all its errors. Unknown members are errors.
    pub fn read<T: FromMembers>(self, manage: &Manage) -> Result<T, Problem> {
        self.read_with(|members| T::from_members(members, manage))
    }

    /// Reads the body by `from_members`, a function as in [`FromMembers`].
    pub fn read_with<T>(
        self,
        from_members: impl FnOnce(&mut Members) -> Option<T>,
    ) -> Result<T, Problem> {
        let values = serde_json::from_slice(&self.0)
            .map_err(|error| Problem::malformed_json(error.to_string()))?;
        let mut members = Members {
            values,
            errors: Vec::new(),
        };

        let read = from_members(&mut members);
        members.finish()?;

        read.ok_or_else(Problem::internal)
    }
}

/// The members of a JSON object that have not been read yet, and the errors of those that have.
pub struct Members {
    values: Map<String, Value>,
    errors: Vec<FieldError>,
}

impl Members {
    /// Reads the member `name`. Returns `Some(None)` if it is absent, and `None` if it is invalid.
    pub fn optional<T>(
        &mut self,
        name: &str,
        check: impl FnOnce(Value) -> Checked<T>,
    ) -> Option<Option<T>> {
        let Some(value) = self.values.shift_remove(name) else {
            return Some(None);
        };

        let checked = check(value).map_err(|errors| {
            let errors = errors.into_iter().map(|error| error.below(name));
            self.errors.extend(errors);
        });
        checked.ok().map(Some)
    }

    /// Reads the member `name`. Returns `None` if it is absent or invalid.
    pub fn required<T>(
        &mut self,
        name: &str,
        check: impl FnOnce(Value) -> Checked<T>,
    ) -> Option<T> {
        if !self.values.contains_key(name) {
            self.error(FieldError::new(format!("/{name}"), "is required"));
        }

        self.optional(name, check)?
    }

    pub fn error(&mut self, error: FieldError) {
        self.errors.push(error);
    }

    fn finish(mut self) -> Result<(), Problem> {
        for name in self
            .values
            .keys()
            .take(MAX_ERRORS.saturating_sub(self.errors.len()))
        {
            self.errors
                .push(FieldError::member(name, "is not a known key"));
        }

        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(Problem::validation(self.errors))
        }
    }
}

/// Returns a check for strings that `parse` accepts.
pub fn string<T, E: fmt::Display>(
    parse: impl FnOnce(String) -> Result<T, E>,
) -> impl FnOnce(Value) -> Checked<T> {
    move |value| match value {
        Value::String(text) => parse(text).map_err(invalid),
        _ => Err(invalid("expected a string")),
    }
}

pub fn boolean(value: Value) -> Checked<bool> {
    value
        .as_bool()
        .ok_or_else(|| invalid("expected true or false"))
}

/// Checks each item of an array. Stops when it has as many errors as a response may have.
/// `expected` is the error of another value.
pub fn items<T>(
    value: Value,
    expected: &str,
    check: impl Fn(&Value) -> Result<T, String>,
) -> Checked<Vec<T>> {
    let Value::Array(items) = value else {
        return Err(invalid(expected));
    };

    let mut checked = Vec::new();
    let mut errors = Vec::new();

    for (index, item) in items.iter().enumerate() {
        match check(item) {
            Ok(item) => checked.push(item),
            Err(detail) if errors.len() < MAX_ERRORS => {
                errors.push(FieldError::new(format!("/{index}"), detail))
            }
            Err(_) => break,
        }
    }

    if errors.is_empty() {
        Ok(checked)
    } else {
        Err(errors)
    }
}

/// The error of the value itself, not of a part of it.
pub fn invalid(detail: impl fmt::Display) -> Vec<FieldError> {
    vec![FieldError::new("", detail.to_string())]
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

    #[test]
    fn errors_are_collected_and_unknown_keys_are_named_by_escaped_pointers() {
        let values = serde_json::from_str(r#"{"a": 1, "n": null, "x/y~z": 2}"#).unwrap();
        let mut members = Members {
            values,
            errors: Vec::new(),
        };

        assert_eq!(members.required("a", Ok), Some(Value::from(1)));
        assert_eq!(members.required("b", Ok), None);
        assert_eq!(members.optional("n", boolean), None);
        assert_eq!(members.optional("absent", boolean), Some(None));

        let expected = [
            FieldError::new("/b", "is required"),
            FieldError::new("/n", "expected true or false"),
        ];
        assert_eq!(members.errors, expected);
        assert!(format!("{:?}", members.finish().unwrap_err()).contains("/x~1y~0z"));
    }
}
