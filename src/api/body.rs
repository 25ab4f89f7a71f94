//! Request bodies: JSON objects with limits on size and time. All errors of a body are reported at
//! once.

use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::ready;
use std::iter::successors;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use futures_util::stream::once;
use http_body_util::BodyExt;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::problem::{FieldError, MAX_ERRORS, Problem};
use super::state::ApiState;
use crate::config::MAX_BODY_BYTES;
use crate::manage::Manage;

const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// What each connection may hold of a body: more than most bodies have.
const UNRESERVED_BYTES: usize = 16 << 10;
/// The bytes of an oversized body that are read and discarded. A client that is still sending may
/// not read the response.
const MAX_DISCARDED_BYTES: usize = 8 << 20;

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
        let bytes = read(request.into_body(), state.max_body_bytes).await?;

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
        let bytes = read(body, state.max_body_bytes).await?;
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

/// Returns the body, which `receive` has received, if it has up to `limit` bytes.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let bytes = body.collect().await.map_err(problem)?.to_bytes();
    if bytes.len() > limit {
        Err(Problem::content_too_large(limit))
    } else {
        Ok(bytes)
    }
}

/// Receives a whole body before a handler reads it, so that no request in progress waits for its
/// client. Of a body that is too large for every handler, only the beginning is kept. If the body
/// does not arrive, the handler that reads it gets the problem.
///
/// `reserve` is called once if the body takes more memory than any connection may, with the bytes
/// that it may take. Its permit is held until the body is dropped.
pub async fn receive(
    body: Body,
    reserve: impl AsyncFnOnce(usize) -> Result<OwnedSemaphorePermit, Problem>,
) -> Body {
    let received = tokio::time::timeout(RECEIVE_TIMEOUT, beginning(body, reserve)).await;
    match received.unwrap_or_else(|_| Err(Problem::body_timeout())) {
        Ok(received) => Body::from(Bytes::from_owner(received)),
        Err(problem) => Body::from_stream(once(ready(Err::<Bytes, _>(problem)))),
    }
}

/// A body in memory.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// That of a large body.
    permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body to its end. Returns at most one byte more than handlers accept.
async fn beginning(
    body: Body,
    reserve: impl AsyncFnOnce(usize) -> Result<OwnedSemaphorePermit, Problem>,
) -> Result<Received, Problem> {
    let length = body
        .size_hint()
        .exact()
        .and_then(|length| usize::try_from(length).ok());
    let most = length.unwrap_or(usize::MAX).min(MAX_BODY_BYTES + 1);
    let mut frames = body.into_data_stream();
    let mut received = Received::default();
    let mut discarded = 0;
    let mut reserve = Some(reserve);

    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(problem)?;
        let kept = frame.len().min(most - received.bytes.len());
        if received.bytes.len() + kept > UNRESERVED_BYTES
            && let Some(reserve) = reserve.take()
        {
            received.permit = Some(reserve(most).await?);
            received.bytes.reserve_exact(most - received.bytes.len());
        }

        received.bytes.extend_from_slice(&frame[..kept]);
        discarded += frame.len() - kept;

        if discarded > MAX_DISCARDED_BYTES {
            break;
        }
    }

    Ok(received)
}

/// Returns the problem among the causes of an error.
fn problem(error: axum::Error) -> Problem {
    let causes = successors(Some(&error as &(dyn Error + 'static)), |error| {
        (*error).source()
    });

    let known = causes
        .filter_map(|error| error.downcast_ref::<Problem>())
        .next();
    known.cloned().unwrap_or_else(Problem::unreadable_body)
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

        let under = |error: FieldError| FieldError {
            pointer: format!("/{name}{}", error.pointer),
            ..error
        };

        let checked =
            check(value).map_err(|errors| self.errors.extend(errors.into_iter().map(under)));
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
