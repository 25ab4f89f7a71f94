//! The custom headers of a webhook, which are sent with every request. Their values are secrets.

use std::collections::BTreeSet;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use zeroize::Zeroizing;

use super::members::{Checked, FieldError, entries, invalid};
use super::reserved::is_reserved;

/// What is shown instead of every value. Has a fixed length, so that it reveals nothing about the
/// value.
pub const MASK: &str = "***";
/// Longer than any name in the IANA registry.
pub const MAX_NAME_LENGTH: usize = 64;
/// Enough for a bearer token. Servers accept about 8 KiB of headers in total.
pub const MAX_VALUE_LENGTH: usize = 1 << 10;

/// One or two for the receiver's gateway, and the rest for routing behind it.
pub const MAX_HEADERS: usize = 10;
/// Servers accept about 8 KiB of headers, and Walhook sends 1 KiB of its own.
const MAX_BYTES: usize = 4 << 10;

#[derive(Clone, Debug)]
pub struct CustomHeader {
    /// As the owner spelled it. Names are compared without regard to case.
    pub name: String,
    pub value: SecretString,
}

/// The custom headers of a webhook. Each name occurs once.
#[derive(Clone, Debug, Default)]
pub struct CustomHeaders(pub Vec<CustomHeader>);

/// The custom headers among the settings: their names in the owner's order, each with the value to
/// set, or None to keep the value that it has. In JSON, the mask stands for each value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Vec<String>")]
pub struct Headers(Vec<(String, Option<SecretString>)>);

/// Reads headers to set. The mask keeps a value.
pub fn given_headers(value: Value) -> Checked<Headers> {
    let mut names = BTreeSet::new();
    let headers = entries(value, MAX_HEADERS, |name, value| match value {
        _ if !is_name(name) => Err(format!(
            "a name must have 1 to {MAX_NAME_LENGTH} characters: letters, digits and !#$%&'*+-.^_`|~"
        )),
        _ if is_reserved(name) => {
            Err("is reserved: Walhook or the connection sets this header".to_owned())
        }
        _ if !names.insert(name.to_ascii_lowercase()) => {
            Err("occurs twice: the case of names does not matter".to_owned())
        }
        Value::String(text) if text == MASK => Ok(None),
        Value::String(text) if is_value(&text) => Ok(Some(text.into())),
        _ => Err(format!(
            "a value must have 1 to {MAX_VALUE_LENGTH} printable ASCII characters, without spaces at the ends"
        )),
    });
    headers.map(Headers)
}

impl Headers {
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(name, _)| name)
    }

    /// The names of the headers whose values are kept.
    pub fn kept(&self) -> impl Iterator<Item = &String> {
        let kept = self.0.iter().filter(|(_, value)| value.is_none());
        kept.map(|(name, _)| name)
    }

    /// Returns the headers with their values. Those that are kept are taken from `present`.
    pub fn resolve(&self, present: &CustomHeaders) -> Checked<CustomHeaders> {
        let mut headers = Vec::new();
        let mut errors = Vec::new();

        for (name, value) in &self.0 {
            match value.as_ref().or_else(|| present.value(name)).cloned() {
                Some(value) => headers.push(CustomHeader {
                    name: name.clone(),
                    value,
                }),
                None => {
                    let detail = format!(
                        "{MASK} keeps the value of a header, but the webhook has no such header"
                    );
                    errors.push(FieldError::member(name, detail));
                }
            }
        }

        let bytes = |header: &CustomHeader| header.name.len() + header.value.expose_secret().len();
        if headers.iter().map(bytes).sum::<usize>() > MAX_BYTES {
            errors.extend(invalid(format!(
                "names and values must not have more than {MAX_BYTES} bytes in total"
            )));
        }

        if errors.is_empty() {
            Ok(CustomHeaders(headers))
        } else {
            Err(errors)
        }
    }
}

impl From<Vec<String>> for Headers {
    fn from(names: Vec<String>) -> Headers {
        Headers(names.into_iter().map(|name| (name, None)).collect())
    }
}

/// A new value differs from any other.
impl PartialEq for Headers {
    fn eq(&self, other: &Headers) -> bool {
        let is_kept = |headers: &Headers| headers.0.iter().all(|(_, value)| value.is_none());
        is_kept(self) && is_kept(other) && self.names().eq(other.names())
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.names().map(|name| (name, MASK)))
    }
}

/// Returns whether `name` is a token (RFC 9110) of a length that is accepted.
pub fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_NAME_LENGTH).contains(&name.len()) && name.bytes().all(is_token)
}

/// Returns whether `value` is visible ASCII, with spaces only within, of a length that is accepted.
pub fn is_value(value: &str) -> bool {
    let is_trimmed = !value.starts_with(' ') && !value.ends_with(' ');
    (1..=MAX_VALUE_LENGTH).contains(&value.len())
        && is_trimmed
        && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

impl CustomHeaders {
    /// Returns the value of the header with this name.
    pub fn value(&self, name: &str) -> Option<&SecretString> {
        self.0
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| &header.value)
    }

    /// Returns the headers as text, to be encrypted.
    pub fn to_text(&self) -> Zeroizing<String> {
        let pairs: Vec<(&str, &str)> = self
            .0
            .iter()
            .map(|header| (&*header.name, header.value.expose_secret()))
            .collect();
        Zeroizing::new(serde_json::to_string(&pairs).expect("strings can be serialized"))
    }

    /// Reads the text that [`CustomHeaders::to_text`] returned. None if it is malformed.
    pub fn from_text(text: &str) -> Option<CustomHeaders> {
        let pairs: Vec<(String, SecretString)> = serde_json::from_str(text).ok()?;
        let headers: Vec<CustomHeader> = pairs
            .into_iter()
            .map(|(name, value)| CustomHeader { name, value })
            .collect();
        let is_valid =
            |header: &CustomHeader| is_name(&header.name) && is_value(header.value.expose_secret());

        headers
            .iter()
            .all(is_valid)
            .then_some(CustomHeaders(headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens_and_values_visible_ascii() {
        for name in ["X-Api-Key", "a", "!#$%&'*+-.^_`|~09", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }

        for name in ["", "X Y", "X:Y", "X\n", "Bücher", "a/b", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }

        for value in ["x", "Bearer a b", "~!\"\\", &"x".repeat(1_024)] {
            assert!(is_value(value), "{value}");
        }

        for value in [
            "",
            " x",
            "x ",
            "a\tb",
            "a\r\nX-Evil: 1",
            "é",
            "\u{7f}",
            &"x".repeat(1_025),
        ] {
            assert!(!is_value(value), "{value:?}");
        }
    }

    #[test]
    fn headers_round_trip_as_text_and_are_not_printed() {
        let value = |text: &str| SecretString::from(text.to_owned());
        let headers = CustomHeaders(vec![CustomHeader {
            name: "X-Key".into(),
            value: value("a \"b\""),
        }]);
        let read = CustomHeaders::from_text(&headers.to_text()).unwrap();

        assert_eq!(read.0[0].name, "X-Key");
        assert_eq!(read.value("x-key").unwrap().expose_secret(), "a \"b\"");
        assert!(!format!("{read:?}").contains("\"b"));

        for malformed in ["", "{}", r#"[["X Y","v"]]"#, r#"[["X","a\nb"]]"#, "whsec_x"] {
            assert!(CustomHeaders::from_text(malformed).is_none(), "{malformed}");
        }
    }
}
