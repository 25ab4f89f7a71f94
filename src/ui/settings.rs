//! The settings of a webhook as the fields of a form, each of which is text.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::format::sentence;
use crate::domain::members::FieldError;
use crate::domain::settings::Settings;

/// How the form shows a setting.
enum Input {
    Text,
    Switch,
    /// A field for each item.
    Choices,
    /// A name and a value per line, separated by this.
    Lines(&'static str),
    /// A field for each list, by its name in the setting and its label.
    Lists(&'static [(&'static str, &'static str)]),
}

/// Each setting in the order of the form, the subject of its errors if they need one, and its input.
const INPUTS: [(&str, &str, Input); 10] = [
    ("name", "The name ", Input::Text),
    ("url", "The URL ", Input::Text),
    ("events", "", Input::Choices),
    ("filter", "", Input::Lists(LISTS)),
    ("active", "", Input::Switch),
    ("ordering", "", Input::Text),
    ("signing", "", Input::Text),
    ("description", "", Input::Text),
    ("headers", "", Input::Lines(": ")),
    ("metadata", "", Input::Lines("=")),
];

pub const LISTS: &[(&str, &str)] = &[
    ("label_ids", "Labels"),
    ("outlet_ids", "Outlets"),
    ("statuses", "Statuses"),
];

/// Error messages by setting or list of one, or by "form" if they concern the form as a whole.
#[derive(Default)]
pub struct Errors(BTreeMap<&'static str, String>);

impl Errors {
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&String> {
        self.0.get(name)
    }

    /// Returns the first field of the form that has an error.
    pub fn first(&self) -> Option<&'static str> {
        let fields = INPUTS.iter().flat_map(|(name, _, input)| match input {
            Input::Lists(lists) => lists.iter().map(|(list, _)| *list).collect(),
            _ => vec![*name],
        });
        fields.into_iter().find(|name| self.0.contains_key(name))
    }

    pub fn set(&mut self, name: &'static str, message: String) {
        self.0.insert(name, message);
    }

    /// Adds errors, except of settings that have an error already.
    pub fn add(&mut self, errors: &[FieldError]) {
        let mut messages: BTreeMap<&str, Vec<String>> = BTreeMap::new();

        for error in errors {
            let path = error.path();
            let detail = &error.detail;
            let is_of =
                |(name, ..): &&(&str, &str, Input)| path.first().is_some_and(|first| first == name);
            let (name, subject, input) =
                INPUTS
                    .iter()
                    .find(is_of)
                    .unwrap_or(&("form", "", Input::Text));

            // Positions in a list mean nothing in a form; names of headers and keys do.
            let part = path
                .get(1)
                .filter(|part| !part.is_empty())
                .map(String::as_str);
            let (name, message) = match (input, part) {
                (Input::Lines(_), Some(part)) => (*name, format!("{part}: {detail}.")),
                (Input::Lists(lists), part) => (list(lists, part), sentence(detail)),
                _ => (*name, sentence(&format!("{subject}{detail}"))),
            };
            messages.entry(name).or_default().push(message);
        }

        for (name, messages) in messages {
            self.0.entry(name).or_insert_with(|| messages.join(" "));
        }
    }
}

/// Returns the name of the list that an error concerns: the first one, if it concerns all.
fn list(lists: &[(&'static str, &str)], name: Option<&str>) -> &'static str {
    let list = lists.iter().find(|(list, _)| Some(*list) == name);
    list.or(lists.first()).map_or("form", |(list, _)| *list)
}

/// Returns the fields of a form that shows these settings.
pub fn fields(settings: &Settings) -> Fields {
    let settings = json!(settings);
    let mut fields = Vec::new();

    for (name, _, input) in &INPUTS {
        let mut add = |name: &str, text: String| fields.push((name.to_owned(), text));

        match (&settings[name], input) {
            (Value::Array(items), _) => items.iter().for_each(|item| add(name, text(item))),
            (Value::Object(pairs), Input::Lines(separator)) => {
                let line = |(name, value)| format!("{name}{separator}{}", text(value));
                let lines: Vec<String> = pairs.iter().map(line).collect();
                add(name, lines.join("\n"));
            }
            (Value::Object(lists), _) => {
                for (list, items) in lists {
                    add(
                        list,
                        listed(items.as_array().map(Vec::as_slice).unwrap_or_default()),
                    );
                }
            }
            (value, _) => add(name, text(value)),
        }
    }

    Fields::from(fields)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn listed(items: &[Value]) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the settings that a form gives, as a JSON object. A setting without a field stays as it
/// is. One whose field cannot be converted is added to `errors` and made invalid, so that the
/// errors of the others are found too.
pub fn json(fields: &Fields, errors: &mut Errors) -> String {
    let mut settings = Map::new();

    for (name, _, input) in &INPUTS {
        // Browsers send line breaks as CR LF.
        let given = fields.get(name).map(|text| text.replace("\r\n", "\n"));
        let value = match input {
            Input::Text => given.map(|text| json!(text.trim())),
            Input::Switch => given.map(|text| text.parse().map_or(Value::Null, Value::Bool)),
            Input::Choices => Some(fields.all(name).collect()),
            Input::Lines(separator) => given.map(|text| {
                pairs(&text, separator.trim()).unwrap_or_else(|message| {
                    errors.set(name, message);
                    Value::Bool(false)
                })
            }),
            Input::Lists(lists) => {
                let is_given = lists.iter().any(|(list, _)| fields.get(list).is_some());
                let values = lists.iter().map(|(list, _)| (*list, values(list, fields)));
                let filled = values.filter(|(_, values)| !values.is_empty());
                let filled = filled.map(|(list, values)| (list.to_owned(), values.into()));
                is_given.then(|| filled.collect::<Map<_, _>>().into())
            }
        };

        if let Some(value) = value {
            settings.insert((*name).to_owned(), value);
        }
    }

    Value::Object(settings).to_string()
}

/// Returns the values of a list, which has checkboxes and a field. Ids are numbers.
fn values(list: &str, fields: &Fields) -> Vec<Value> {
    let items = fields.all(list).flat_map(items);
    items
        .map(|item| match item.parse::<i64>() {
            Ok(id) if list.ends_with("_ids") => id.into(),
            _ => Value::from(item),
        })
        .collect()
}

/// Splits the text of a list.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    let items = text.split([',', '\n']).map(str::trim);
    items.filter(|item| !item.is_empty())
}

/// Parses a pair per line. Ignores empty lines. Errors do not contain the line, which may be a
/// secret.
fn pairs(text: &str, separator: &str) -> Result<Value, String> {
    let mut pairs = Map::new();

    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = line
            .split_once(separator)
            .ok_or_else(|| format!("Each line must contain a `{separator}`."))?;

        if pairs
            .insert(name.trim().to_owned(), value.trim().into())
            .is_some()
        {
            return Err(format!("{}: occurs twice.", name.trim()));
        }
    }

    Ok(pairs.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: &[(&str, &str)]) -> Fields {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Fields::from(fields.iter().map(owned).collect::<Vec<_>>())
    }

    fn read(fields: &[(&str, &str)]) -> (Value, Errors) {
        let mut errors = Errors::default();
        let settings = json(&form(fields), &mut errors);
        (serde_json::from_str(&settings).unwrap(), errors)
    }

    #[test]
    fn every_setting_is_read_from_the_fields_that_show_it() {
        let settings = json!({
            "name": "n", "url": "https://a/", "events": ["delivery.failed", "transcode.failed"],
            "active": false, "ordering": "strict", "signing": "hmac+ed25519", "description": "a\nb",
            "metadata": { "a": "b=c", "empty": "" }, "headers": { "X-A": "v" },
            "filter": { "label_ids": [1, 2], "statuses": ["7"] },
        });

        let check_url = |url: &str| Ok(url.to_owned());
        let text = settings.to_string();
        let read = Settings::read(
            text.as_bytes(),
            crate::domain::settings::Base::New,
            &check_url,
        )
        .unwrap();
        let mut errors = Errors::default();
        let again: Value = serde_json::from_str(&json(&fields(&read), &mut errors)).unwrap();

        assert_eq!(again, json!(read), "the header's value is masked");
        assert_eq!(INPUTS.len(), again.as_object().unwrap().len());
        assert!(!errors.any());
    }

    #[test]
    fn fields_are_lines_of_pairs_and_lists_and_absent_ones_stay_as_they_are() {
        let (settings, errors) = read(&[
            ("headers", "Authorization: Bearer a:b\r\n\r\n X-Key :v "),
            ("label_ids", "1, x,\n3"),
        ]);

        let expected = json!({
            "events": [],
            "headers": { "Authorization": "Bearer a:b", "X-Key": "v" },
            "filter": { "label_ids": [1, "x", 3] },
        });
        assert_eq!(settings, expected);
        assert!(!errors.any());
    }

    #[test]
    fn errors_name_the_header_but_not_its_value() {
        let (settings, mut errors) = read(&[("headers", "a secret"), ("metadata", "k=1\nk=2")]);
        errors.add(&[
            FieldError::new("/headers", "expected an object"),
            FieldError::new("/filter/outlet_ids/0", "expected a positive integer"),
            FieldError::new("/name", "is required"),
        ]);

        for (name, message) in [
            ("headers", "Each line must contain a `:`."),
            ("metadata", "k: occurs twice."),
            ("outlet_ids", "Expected a positive integer."),
            ("name", "The name is required."),
        ] {
            assert_eq!(errors.get(name).unwrap(), message);
        }

        assert_eq!(settings["headers"], false, "which no reader accepts");
    }
}
