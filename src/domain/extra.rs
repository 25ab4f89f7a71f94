//! Values of the platform's own columns that events show under `data.extra`.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The most characters of a text. Extra values are ids and codes; longer texts are cut.
pub const MAX_CHARACTERS: usize = 1024;
/// The most extra values of one table.
pub const MAX_VALUES: usize = 16;

/// The extra values of a row by their keys, each as JSON: a text, a number, a boolean or null. A key
/// that is missing was not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra(BTreeMap<Box<str>, Box<str>>);

/// How a column's values are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Number,
    Boolean,
}

impl Extra {
    /// Reads an object as the primary or [`Extra::to_json`] writes it. Anything else has no values.
    pub fn from_json(text: &str) -> Extra {
        let values: BTreeMap<Box<str>, Box<RawValue>> =
            serde_json::from_str(text).unwrap_or_default();
        let values = values.into_iter();
        Extra(
            values
                .map(|(key, value)| (key, value.get().into()))
                .collect(),
        )
    }

    /// Returns the values as an object.
    pub fn to_json(&self) -> String {
        let members = self.0.iter().map(|(key, value)| (&**key, &**value));
        object(members)
    }

    /// Adds the value of a column in PostgreSQL's text form. NaN and the infinities are texts.
    pub fn set(&mut self, key: &str, value: Option<&str>, kind: ValueKind) {
        let is_number = |text: &str| {
            let first = text.trim_start_matches('-').as_bytes().first();
            first.is_some_and(u8::is_ascii_digit) && serde_json::from_str::<&RawValue>(text).is_ok()
        };

        let json = match (value, kind) {
            (None, _) => "null".into(),
            (Some("t"), ValueKind::Boolean) => "true".into(),
            (Some("f"), ValueKind::Boolean) => "false".into(),
            (Some(text), ValueKind::Number) if is_number(text) => text.into(),
            (Some(text), _) => {
                let cut: String = text.chars().take(MAX_CHARACTERS).collect();
                serde_json::Value::from(cut).to_string().into()
            }
        };

        self.0.insert(key.into(), json);
    }

    /// Returns a value as JSON. None if it was not sent.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|value| &**value)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the values of `older` that were not sent.
    pub fn fill_from(&mut self, older: &Extra) {
        for (key, value) in &older.0 {
            self.0.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }

    /// The size of keys and values, in bytes.
    pub fn size(&self) -> usize {
        let sizes = self.0.iter().map(|(key, value)| key.len() + value.len());
        sizes.sum()
    }
}

fn object<'a>(members: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let members: Vec<String> = members
        .map(|(key, value)| format!("{}:{value}", serde_json::Value::from(key)))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// Adds `extra` to an event's data, which is an object with other keys. The values are JSON.
pub fn add_to<'a>(data: &mut String, values: impl Iterator<Item = (&'a str, &'a str)>) {
    data.pop();
    *data += &format!(",\"extra\":{}}}", object(values));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_type_and_their_digits() {
        let mut extra = Extra::default();
        extra.set("code", Some("a\"b"), ValueKind::Text);
        extra.set("digits", Some("0012"), ValueKind::Text);
        extra.set("amount", Some("120.50"), ValueKind::Number);
        extra.set("nan", Some("NaN"), ValueKind::Number);
        extra.set("flag", Some("t"), ValueKind::Boolean);
        extra.set("none", None, ValueKind::Number);

        let json = r#"{"amount":120.50,"code":"a\"b","digits":"0012","flag":true,"nan":"NaN","none":null}"#;
        assert_eq!(extra.to_json(), json);

        // As the primary writes it.
        assert_eq!(Extra::from_json(&json.replace("\":", "\" : ")), extra);
    }

    #[test]
    fn a_long_text_is_cut_and_a_value_that_was_not_sent_is_filled() {
        let mut extra = Extra::default();
        extra.set("long", Some(&"é".repeat(5_000)), ValueKind::Text);
        assert_eq!(
            extra.get("long").unwrap().chars().count(),
            MAX_CHARACTERS + 2
        );

        let mut newer = Extra::from_json(r#"{"b":2}"#);
        newer.fill_from(&Extra::from_json(r#"{"a":1,"b":1}"#));
        assert_eq!(newer.to_json(), r#"{"a":1,"b":2}"#);
    }
}
