//! The settings of a webhook, each defined once: type, default, checks, documentation and JSON
//! Schema.
//!
//! Their JSON object is what the API shows, what creates and edits a webhook, and, by columns, what
//! the store reads and writes. The web UI turns its form into the same object.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::event::EventKind;
use super::headers::{Headers, MAX_HEADERS, MAX_NAME_LENGTH, MAX_VALUE_LENGTH, given_headers};
use super::members::{Checked, Members, boolean, entries, invalid, items, string};
use super::ordering::Ordering;
use super::signing::Signing;
use super::subject::EventFilter;
use super::text::{self, HIDDEN};

/// A few sentences.
const MAX_DESCRIPTION_LENGTH: usize = 500;
/// As many pairs as receivers' owners need to find a webhook's counterpart in their own systems.
pub const MAX_METADATA: usize = 20;
const MAX_METADATA_KEY_LENGTH: usize = 40;
const MAX_METADATA_VALUE_LENGTH: usize = 500;
/// Each event is compared with each entry when it is stored.
const MAX_FILTER_ENTRIES: usize = 100;
const MAX_STATUS_LENGTH: usize = 64;

/// The error of a text that does not name an event.
pub const UNKNOWN_EVENT: &str = "is not an event: GET /webhooks/event-types lists them";

/// Parses and checks a URL without a DNS lookup. The error is a predicate of the URL.
pub type CheckUrl<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Settings that have no default.
const REQUIRED: [&str; 3] = ["name", "url", "events"];

/// Defines [`Settings`]: the documentation of each setting, its name, type, default, check and JSON
/// Schema.
macro_rules! settings {
    (|$check_url:ident| $(
        $(#[doc = $doc:literal])+
        $(#[serde($($serde:tt)+)])?
        $name:ident: $type:ty = $default:expr, $check:expr, $schema:expr;
    )+) => {
        /// The settings of a webhook, which its owner can change. Only [`Settings::read`] and the
        /// store make them, so that each is valid.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct Settings {
            $( $(#[doc = $doc])+ $(#[serde($($serde)+)])? pub $name: $type, )+
        }

        impl Default for Settings {
            fn default() -> Settings {
                Settings { $( $name: $default ),+ }
            }
        }

        impl Settings {
            /// Reads settings from the members of an object.
            fn of_members(
                members: &mut Members,
                base: Base<'_>,
                $check_url: CheckUrl<'_>,
            ) -> Option<Settings> {
                if !matches!(base, Base::Edit(_)) {
                    REQUIRED.iter().for_each(|name| members.require(name));
                }

                let others = base.others();
                $( let $name = members.optional(stringify!($name), $check); )+
                Some(Settings { $( $name: $name?.unwrap_or(others.$name) ),+ })
            }

            /// Returns the names of the settings that differ.
            pub fn differences(&self, other: &Settings) -> Vec<&'static str> {
                let differs = [ $( (stringify!($name), self.$name != other.$name) ),+ ];
                let differing = differs.into_iter().filter(|(_, differs)| *differs);
                differing.map(|(name, _)| name).collect()
            }
        }

        /// The name of each setting, its documentation and its JSON Schema.
        fn schemas() -> Vec<(&'static str, &'static str, Value)> {
            vec![ $( (stringify!($name), concat!($($doc),+), $schema) ),+ ]
        }
    };
}

settings! { |check_url|
    /// Without control and invisible characters. Spaces at the ends are removed.
    name: String = String::new(),
        string(|name| text::name(&name).map(str::to_owned)),
        text_schema(1, text::MAX_NAME_LENGTH, format!("^(?=.*\\S){}*$", visible_class(|_| true)));

    /// The receiver's address, which is stored in its normalized form. A host whose name does not
    /// resolve yet is accepted, with an entry in `warnings`. If an edit changes the scheme, host or
    /// port, it must give the values of custom headers again in `headers`.
    url: String = String::new(),
        string(|url| checked_url(&url, check_url)),
        json!({ "type": "string", "format": "uri", "maxLength": 2048, "example": "https://receiver.example/hooks" });

    /// The events to deliver. They are stored without duplicates, in the catalogue's order.
    events: Vec<String> = Vec::new(),
        events,
        json!({ "type": "array", "items": { "$ref": "#/components/schemas/Event" }, "minItems": 1 });

    /// Whether events are delivered. False cancels pending deliveries; true after an automatic
    /// disablement resets the failure counters.
    active: bool = true,
        boolean,
        json!({ "type": "boolean" });

    /// Which deliveries are delivered one after the other: `none`, those of the same `release`, or
    /// all (`strict`). An edit applies to deliveries that are made afterwards.
    // A later build may know more.
    #[serde(deserialize_with = "known_or_default")]
    ordering: Ordering = Ordering::None,
        string(|name| name.parse::<Ordering>()),
        names_schema(Ordering::ALL.iter().map(|ordering| ordering.as_str()));

    /// How `webhook-signature` is made. With ed25519, a webhook without a key pair gets one; `hmac`
    /// removes the key pair.
    signing: Signing = Signing::Hmac,
        string(|name| name.parse::<Signing>()),
        names_schema(Signing::ALL.iter().map(|signing| signing.as_str()));

    /// For people. Line feeds are its only control or invisible characters.
    description: Option<String> = None,
        description,
        nullable(text_schema(
            0,
            MAX_DESCRIPTION_LENGTH,
            format!("^{}*$", visible_class(|hidden| !hidden.contains(&'\n'))),
        ));

    /// Data of your own, which Walhook stores and returns. An edit replaces all pairs; null or {}
    /// removes them.
    metadata: BTreeMap<String, String> = BTreeMap::new(),
        metadata,
        entries_schema(
            text_schema(1, MAX_METADATA_KEY_LENGTH, "^[A-Za-z0-9_.-]+$"),
            text_schema(0, MAX_METADATA_VALUE_LENGTH, NO_CONTROLS),
            MAX_METADATA,
        );

    /// Headers that are sent with each delivery, at most 4,096 bytes in total. Their values are
    /// stored encrypted and shown as `***`. Names are compared without regard to case; those that
    /// Walhook or the connection sets are reserved. An edit replaces all headers; null or {}
    /// removes them. The value `***` keeps the value that the header has.
    #[serde(rename(deserialize = "header_names"))]
    headers: Headers = Headers::default(),
        given_headers,
        entries_schema(
            text_schema(1, MAX_NAME_LENGTH, "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"),
            text_schema(1, MAX_VALUE_LENGTH, "^[!-~]([ -~]*[!-~])?$"),
            MAX_HEADERS,
        );

    /// Which of the subscribed events are delivered: those whose value is in each of the given
    /// lists. A list does not apply to events that have no such value. Null delivers all.
    filter: Option<EventFilter> = None,
        filter,
        filter_schema();
}

/// What an object with settings changes, which decides about members that are absent.
#[derive(Clone, Copy)]
pub enum Base<'a> {
    /// Nothing: they get their defaults.
    New,
    /// These settings: they stay as they are.
    Edit(&'a Settings),
    /// These settings as a whole: they get their defaults, except `active`, which is also a state.
    Replacement(&'a Settings),
}

impl<'a> Base<'a> {
    pub fn present(self) -> Option<&'a Settings> {
        match self {
            Base::New => None,
            Base::Edit(present) | Base::Replacement(present) => Some(present),
        }
    }

    /// The settings that absent members get.
    fn others(self) -> Settings {
        match self {
            Base::New => Settings::default(),
            Base::Edit(present) => present.clone(),
            Base::Replacement(present) => Settings {
                active: present.active,
                ..Settings::default()
            },
        }
    }
}

/// A receiver to test before a webhook with these settings is saved.
pub struct TestDraft {
    pub url: String,
    pub headers: Headers,
    /// None for any.
    pub event: Option<EventKind>,
}

impl TestDraft {
    /// Reads a draft by the checks of the settings.
    pub fn read(json: &[u8], check_url: CheckUrl<'_>) -> Checked<TestDraft> {
        let values = serde_json::from_slice(json).map_err(invalid)?;
        Members::read(values, |members| {
            let event = |name: String| name.parse().map_err(|_| UNKNOWN_EVENT);
            let url = members.required("url", string(|url| checked_url(&url, check_url)));
            let headers = members.optional("headers", given_headers);
            let event = members.optional("event", string(event));

            Some(TestDraft {
                url: url?,
                headers: headers?.unwrap_or_default(),
                event: event?,
            })
        })
    }
}

/// What an object with settings is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Create,
    /// The webhook is named elsewhere.
    Replace,
    Edit,
    Show,
}

impl Settings {
    /// Reads the settings that an object gives.
    pub fn read(json: &[u8], base: Base<'_>, check_url: CheckUrl<'_>) -> Checked<Settings> {
        let values = serde_json::from_slice(json).map_err(invalid)?;
        Members::read(values, |members| {
            Settings::of_members(members, base, check_url)
        })
    }

    /// Returns the settings by the names of their columns.
    pub fn columns(&self) -> Value {
        let mut columns = json!(self);
        columns["header_names"] = self.headers.names().cloned().collect();

        if let Some(columns) = columns.as_object_mut() {
            columns.shift_remove("headers");
        }

        columns
    }

    /// Adds the settings to the JSON Schema of an object.
    pub fn describe(schema: &mut Value, purpose: Purpose) {
        let defaults = json!(Settings::default());

        for (name, documentation, mut setting) in schemas() {
            let is_named = purpose == Purpose::Replace && name == "name";
            let is_required = REQUIRED.contains(&name) && !is_named;
            let is_whole = matches!(purpose, Purpose::Create | Purpose::Replace);
            setting["description"] = documentation.trim().trim_end_matches('.').into();

            if purpose != Purpose::Show && setting["type"] == "object" {
                setting = nullable(setting);
            }

            if is_whole && !is_required && !is_named {
                setting["default"] = defaults[name].clone();
            }

            schema["properties"][name] = setting;

            if purpose == Purpose::Show || (is_whole && is_required) {
                match schema["required"].as_array_mut() {
                    Some(required) => required.push(name.into()),
                    None => schema["required"] = json!([name]),
                }
            }
        }
    }
}

/// Returns the names of the events: at least one, each once, in the catalogue's order.
pub fn event_set(events: impl IntoIterator<Item = EventKind>) -> Result<Vec<String>, &'static str> {
    let events: BTreeSet<EventKind> = events.into_iter().collect();
    if events.is_empty() {
        return Err("select at least one event");
    }

    Ok(events.iter().map(|kind| kind.as_str().to_owned()).collect())
}

fn events(value: Value) -> Checked<Vec<String>> {
    let event = |item: &Value| {
        item.as_str()
            .and_then(|name| name.parse().ok())
            .ok_or_else(|| UNKNOWN_EVENT.to_owned())
    };
    event_set(items(value, "expected an array of events", event)?).map_err(invalid)
}

/// Keeps the URL that was parsed, not the text: parsing drops and replaces characters, and what is
/// shown must be what is called.
fn checked_url(text: &str, parse: CheckUrl<'_>) -> Result<String, String> {
    let text = text.trim();

    // Two URLs that were pasted at once would be parsed as one.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("must not contain spaces or control characters".to_owned());
    }

    parse(text)
}

fn known_or_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ordering, D::Error> {
    let name = String::deserialize(deserializer)?;
    Ok(name.parse().unwrap_or(Ordering::None))
}

/// A blank description is none.
fn description(value: Value) -> Checked<Option<String>> {
    if value.is_null() {
        return Ok(None);
    }

    let check = |text: String| text::check_lines(&text, MAX_DESCRIPTION_LENGTH).map(|()| text);
    let text = string(check)(value)?;
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

fn metadata(value: Value) -> Checked<BTreeMap<String, String>> {
    let pairs = entries(value, MAX_METADATA, |key, value| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_key =
            (1..=MAX_METADATA_KEY_LENGTH).contains(&key.len()) && key.bytes().all(is_letter);

        match value {
            _ if !is_key => Err(format!(
                "a key must have 1 to {MAX_METADATA_KEY_LENGTH} characters: A-Z, a-z, 0-9, _ . and -"
            )),
            Value::String(text) if is_text(&text, 0, MAX_METADATA_VALUE_LENGTH) => Ok(text),
            _ => Err(format!(
                "must be a string of at most {MAX_METADATA_VALUE_LENGTH} characters, none of them control"
            )),
        }
    });

    Ok(pairs?.into_iter().collect())
}

fn is_text(text: &str, min: usize, max: usize) -> bool {
    (min..=max).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// A filter without lists is none.
fn filter(value: Value) -> Checked<Option<EventFilter>> {
    let lists = match value {
        Value::Null => return Ok(None),
        Value::Object(lists) => lists,
        _ => return Err(invalid("expected an object or null")),
    };

    let id = |item: &Value| {
        let id = item.as_i64().filter(|id| *id > 0);
        id.ok_or_else(|| "expected a positive integer".to_owned())
    };

    let status = |item: &Value| {
        let status = item
            .as_str()
            .filter(|text| is_text(text, 1, MAX_STATUS_LENGTH));
        status.map(str::to_owned).ok_or_else(|| {
            format!("expected a status: 1 to {MAX_STATUS_LENGTH} characters, none of them control")
        })
    };

    let filter = Members::read(lists, |members| {
        let label_ids = members.optional("label_ids", |value| set(value, id));
        let outlet_ids = members.optional("outlet_ids", |value| set(value, id));
        let statuses = members.optional("statuses", |value| set(value, status));
        Some(EventFilter {
            label_ids: label_ids?,
            outlet_ids: outlet_ids?,
            statuses: statuses?,
        })
    })?;

    Ok(Some(filter).filter(|filter| !filter.is_empty()))
}

fn set<T: Ord>(value: Value, check: impl Fn(&Value) -> Result<T, String>) -> Checked<Vec<T>> {
    let length = value.as_array().map_or(1, Vec::len);
    if !(1..=MAX_FILTER_ENTRIES).contains(&length) {
        return Err(invalid(format!(
            "must have 1 to {MAX_FILTER_ENTRIES} entries"
        )));
    }

    let items: BTreeSet<T> = items(value, "expected an array", check)?
        .into_iter()
        .collect();
    Ok(items.into_iter().collect())
}

const NO_CONTROLS: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";

fn text_schema(min: usize, max: usize, pattern: impl Into<String>) -> Value {
    json!({ "type": "string", "minLength": min, "maxLength": max, "pattern": pattern.into() })
}

fn entries_schema(names: Value, values: Value, max: usize) -> Value {
    json!({ "type": "object", "propertyNames": names, "additionalProperties": values, "maxProperties": max })
}

fn names_schema(names: impl Iterator<Item = &'static str>) -> Value {
    json!({ "type": "string", "enum": names.collect::<Vec<_>>() })
}

fn nullable(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

fn filter_schema() -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items, "minItems": 1, "maxItems": MAX_FILTER_ENTRIES });
    let ids = list(json!({ "type": "integer", "minimum": 1, "maximum": i64::MAX }));
    let statuses = list(text_schema(1, MAX_STATUS_LENGTH, NO_CONTROLS));

    nullable(json!({
        "type": "object",
        "properties": { "label_ids": ids, "outlet_ids": ids, "statuses": statuses },
        "additionalProperties": false,
    }))
}

/// Returns the class of a regular expression for the characters that are in none of the listed
/// ranges of hidden ones. Those beyond U+FFFF are left out: each dialect writes them in its own
/// way.
fn visible_class(is_listed: impl Fn(&RangeInclusive<char>) -> bool) -> String {
    let listed = HIDDEN
        .iter()
        .filter(|hidden| *hidden.end() <= '\u{ffff}' && is_listed(hidden));
    let ranges = listed.map(|hidden| (u32::from(*hidden.start()), u32::from(*hidden.end())));
    let class: String = ranges
        .map(|(first, last)| format!("\\u{first:04x}-\\u{last:04x}"))
        .collect();

    format!("[^{class}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: Value) -> Checked<Settings> {
        let parse = |url: &str| match url.starts_with("https://") {
            true => Ok(url.to_owned()),
            false => Err("must begin with https://".to_owned()),
        };

        let mut settings =
            json!({ "name": "n", "url": "https://a", "events": ["delivery.failed"] });
        settings
            .as_object_mut()
            .unwrap()
            .extend(json.as_object().unwrap().clone());
        Settings::read(settings.to_string().as_bytes(), Base::New, &parse)
    }

    #[track_caller]
    fn rejected(json: Value) -> Vec<String> {
        let errors = read(json).unwrap_err();
        errors.into_iter().map(|error| error.pointer).collect()
    }

    #[test]
    fn urls_are_trimmed_and_have_no_spaces() {
        assert_eq!(
            read(json!({ "url": " https://a.example\n" })).unwrap().url,
            "https://a.example"
        );

        for wrong in [
            "https://a.example/\tx",
            "https://a https://b",
            "https://a/\u{85}x",
            "http://a",
        ] {
            assert_eq!(rejected(json!({ "url": wrong })), ["/url"], "{wrong}");
        }
    }

    #[test]
    fn settings_are_stored_by_columns_and_read_from_them() {
        let settings = read(json!({
            "filter": { "statuses": ["b", "a", "b"] },
            "headers": { "X-B": "secret", "X-A": "v" },
        }))
        .unwrap();

        let mut columns = settings.columns();
        assert_eq!(columns["header_names"], json!(["X-B", "X-A"]));
        assert_eq!(columns["filter"]["statuses"], json!(["a", "b"]));
        assert!(columns.get("headers").is_none() && !columns.to_string().contains("secret"));

        columns["ordering"] = "of a later build".into();
        let read: Settings = serde_json::from_value(columns).unwrap();
        assert_eq!(
            settings.differences(&read),
            ["headers"],
            "they have new values"
        );
        assert_eq!(read.ordering, Ordering::None);
    }

    #[test]
    fn every_error_is_named_by_its_pointer() {
        let long = "x".repeat(501);
        let settings = json!({
            "description": long,
            "metadata": { "": "v", "a b": "v", "a/~": "v", "k": long, "l": "a\nb", "n": 1 },
            "headers": { "X Y": "v", "Host": "v", "X-A": "v", "x-a": "v", "X-B": "a\nb", "X-C": "" },
            "filter": { "label_ids": [1, 0], "outlet_ids": [], "statuses": ["x".repeat(65)] },
        });

        let expected = [
            "/description",
            "/metadata/",
            "/metadata/a b",
            "/metadata/a~1~0",
            "/metadata/k",
            "/metadata/l",
            "/metadata/n",
            "/headers/X Y",
            "/headers/Host",
            "/headers/x-a",
            "/headers/X-B",
            "/headers/X-C",
            "/filter/label_ids/1",
            "/filter/outlet_ids",
            "/filter/statuses/0",
        ];
        assert_eq!(rejected(settings), expected);
        assert_eq!(
            read(json!({ "description": " \n", "filter": {} })).unwrap(),
            read(json!({})).unwrap()
        );
    }
}
