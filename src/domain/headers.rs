//! The custom headers of a webhook, which are sent with every request. Their values are secrets.

use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

/// What is shown instead of every value. Has a fixed length, so that it reveals nothing about the
/// value.
pub const MASK: &str = "***";
/// Longer than any name in the IANA registry.
pub const MAX_NAME_LENGTH: usize = 64;
/// Enough for a bearer token. Servers accept about 8 KiB of headers in total.
pub const MAX_VALUE_LENGTH: usize = 1 << 10;

#[derive(Clone, Debug)]
pub struct CustomHeader {
    /// As the owner spelled it. Names are compared without regard to case.
    pub name: String,
    pub value: SecretString,
}

/// The custom headers of a webhook. Each name occurs once.
#[derive(Clone, Debug, Default)]
pub struct CustomHeaders(pub Vec<CustomHeader>);

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
    /// Returns the names in their order.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|header| header.name.clone()).collect()
    }

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

        assert_eq!(read.names(), ["X-Key"]);
        assert_eq!(read.value("x-key").unwrap().expose_secret(), "a \"b\"");
        assert!(!format!("{read:?}").contains("\"b"));

        for malformed in ["", "{}", r#"[["X Y","v"]]"#, r#"[["X","a\nb"]]"#, "whsec_x"] {
            assert!(CustomHeaders::from_text(malformed).is_none(), "{malformed}");
        }
    }
}
