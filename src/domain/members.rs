//! Reading the members of JSON objects. All errors are reported at once, with JSON pointers.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The most errors that one response lists. A body may have thousands, and the first are enough to
/// start with.
pub const MAX_ERRORS: usize = 20;

/// One error of a request
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// A JSON pointer (RFC 6901) into the request's body; for a query parameter, a slash and its
    /// name
    #[schema(example = "/url")]
    pub pointer: String,
    #[schema(example = "is required")]
    pub detail: String,
    /// Whether the same value may be valid later.
    #[serde(skip)]
    #[schema(ignore)]
    pub is_transient: bool,
}

impl FieldError {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError {
            pointer: pointer.into(),
            detail: detail.into(),
            is_transient: false,
        }
    }

    /// The error of a member of the body, or of a parameter of the query.
    pub fn member(name: &str, detail: impl Into<String>) -> Self {
        FieldError::new(
            format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            detail,
        )
    }

    /// Makes the pointer, which is relative to a member of this name, relative to the member's
    /// object.
    pub fn below(mut self, name: &str) -> FieldError {
        self.pointer.insert_str(0, &format!("/{name}"));
        self
    }

    /// Marks the error as one that the same value may not have later: it depends on the time, or on
    /// what can be changed.
    pub fn transient(self) -> FieldError {
        FieldError {
            is_transient: true,
            ..self
        }
    }

    /// Returns the names that the pointer consists of.
    pub fn path(&self) -> Vec<String> {
        let names = self.pointer.split('/').skip(1);
        names
            .map(|name| name.replace("~1", "/").replace("~0", "~"))
            .collect()
    }
}

/// The value that a member was converted to, or its errors. The errors' pointers are relative to
/// the member.
pub type Checked<T> = Result<T, Vec<FieldError>>;

/// The members of a JSON object that have not been read yet, and the errors of those that have.
///
/// Not `deserr`: it needs as many lines for an error type with JSON pointers, the limit on errors,
/// and members that may be absent but not null. It also cannot check URLs against the
/// configuration. Not `garde` or `validator` with `serde_path_to_error`: they check what serde has
/// read, and serde stops at the first error.
pub struct Members {
    values: Map<String, Value>,
    errors: Vec<FieldError>,
}

impl Members {
    /// Reads an object by `from_members`, which returns None if a member is invalid, after adding
    /// an error. Members that it does not read are errors.
    pub fn read<T>(
        values: Map<String, Value>,
        from_members: impl FnOnce(&mut Members) -> Option<T>,
    ) -> Checked<T> {
        let errors = Vec::new();
        let mut members = Members { values, errors };
        let read = from_members(&mut members);
        let Members { values, mut errors } = members;

        for name in values.keys().take(MAX_ERRORS.saturating_sub(errors.len())) {
            errors.push(FieldError::member(name, "is not a known key"));
        }

        match read {
            Some(read) if errors.is_empty() => Ok(read),
            _ => Err(errors),
        }
    }

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

    /// Adds an error if there is no member `name`.
    pub fn require(&mut self, name: &str) {
        if !self.values.contains_key(name) {
            self.error(FieldError::new(format!("/{name}"), "is required"));
        }
    }

    /// Reads the member `name`. Returns `None` if it is absent or invalid.
    pub fn required<T>(
        &mut self,
        name: &str,
        check: impl FnOnce(Value) -> Checked<T>,
    ) -> Option<T> {
        self.require(name);
        self.optional(name, check)?
    }

    pub fn error(&mut self, error: FieldError) {
        self.errors.push(error);
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

    let checked = items
        .iter()
        .enumerate()
        .map(|(index, item)| (index.to_string(), check(item)));
    all(checked)
}

/// Checks each member of an object, which has at most `most`. Null is an empty object.
pub fn entries<T>(
    value: Value,
    most: usize,
    mut check: impl FnMut(&str, Value) -> Result<T, String>,
) -> Checked<Vec<(String, T)>> {
    let object = match value {
        Value::Null => Map::new(),
        Value::Object(object) if object.len() <= most => object,
        Value::Object(_) => return Err(invalid(format!("must not have more than {most} entries"))),
        _ => return Err(invalid("expected an object or null")),
    };

    all(object.into_iter().map(|(name, value)| {
        let checked = check(&name, value).map(|value| (name.clone(), value));
        (name, checked)
    }))
}

/// Returns all values, or at most as many errors as a response may have.
fn all<T>(checked: impl Iterator<Item = (String, Result<T, String>)>) -> Checked<Vec<T>> {
    let mut values = Vec::new();
    let mut errors = Vec::new();

    for (name, checked) in checked {
        match checked {
            Ok(value) => values.push(value),
            Err(detail) => errors.push(FieldError::member(&name, detail)),
        }

        if errors.len() == MAX_ERRORS {
            break;
        }
    }

    if errors.is_empty() {
        Ok(values)
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
    fn errors_are_collected_and_unknown_keys_are_named_by_escaped_pointers() {
        let values = serde_json::from_str(r#"{"a": 1, "n": null, "x/y~z": 2}"#).unwrap();
        let read = Members::read(values, |members| {
            assert_eq!(members.required("a", Ok), Some(Value::from(1)));
            assert_eq!(members.required("b", Ok), None);
            assert_eq!(members.optional("n", boolean), None);
            assert_eq!(members.optional("absent", boolean), Some(None));
            Some(())
        });

        let expected = [
            FieldError::new("/b", "is required"),
            FieldError::new("/n", "expected true or false"),
            FieldError::new("/x~1y~0z", "is not a known key"),
        ];
        assert_eq!(read.unwrap_err(), expected);
        assert_eq!(expected[2].path(), ["x/y~z"]);
    }
}
