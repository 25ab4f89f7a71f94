//! What an owner may set on a webhook: the rules, and all that is wrong told at once.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::ApiState;
use super::body::Reader;
use super::problem::{FieldError, MAX_ERRORS, Problem};
use super::url_check::{Warning, look_up};
use crate::domain::event::{EventKind, UserId};
use crate::manage::Manage;
use crate::store::webhooks::{Changes, Settings, event_names};

const LONGEST_NAME: usize = 200;
const LONGEST_URL: usize = 2_048;

type Checked<T> = Result<T, Vec<FieldError>>;

/// What was made of a request's members, and what its sender should know of it.
type WithWarnings<T> = (T, Vec<Warning>);

/// The settings of a new webhook.
pub async fn new_settings(
    state: &ApiState,
    user: &UserId,
    members: Map<String, Value>,
) -> Result<WithWarnings<Settings>, Problem> {
    let mut reader = Reader::new(members);
    let name = reader.required("name", name);
    let url = reader.required("url", url);
    let events = reader.required("events", events);
    let active = reader.optional("active", boolean).unwrap_or(true);
    check_form(state, &mut reader, url.as_deref());
    reader.finish()?;
    let (Some(name), Some(url), Some(events)) = (name, url, events) else { return Err(Problem::internal()) };
    let warnings = look_up(state, user, Some(&url)).await?;
    Ok((Settings { name, url, events: event_names(&events), active }, warnings))
}

/// The changes to a webhook.
pub async fn changes(
    state: &ApiState,
    user: &UserId,
    members: Map<String, Value>,
) -> Result<WithWarnings<Changes>, Problem> {
    let mut reader = Reader::new(members);
    let changes = Changes {
        name: reader.optional("name", name),
        url: reader.optional("url", url),
        events: reader.optional("events", events),
        active: reader.optional("active", boolean),
    };
    check_form(state, &mut reader, changes.url.as_deref());
    reader.finish()?;
    let warnings = look_up(state, user, changes.url.as_deref()).await?;
    Ok((changes, warnings))
}

/// What is wrong with the URL is said together with all the rest. Its host is looked up for requests that are valid otherwise.
fn check_form(state: &ApiState, reader: &mut Reader, url: Option<&str>) {
    if let Some(Err(reason)) = url.map(|url| Manage::receiver_url(state.manage(), url.to_owned())) {
        reader.fault("/url", reason.to_string());
    }
}

fn name(value: Value) -> Checked<String> {
    let name = string(value)?;
    match name.chars().count() {
        0 => fault("must not be empty"),
        1..=LONGEST_NAME if name.chars().any(char::is_control) => fault("must not contain control characters"),
        1..=LONGEST_NAME => Ok(name),
        _ => fault(format!("must not be longer than {LONGEST_NAME} characters")),
    }
}

/// The form alone; whether the address may be called is another's to say.
fn url(value: Value) -> Checked<String> {
    let text = string(value)?;
    if text.len() > LONGEST_URL {
        return fault(format!("must not be longer than {LONGEST_URL} bytes"));
    }
    // The URL standard takes these out silently: what is shown would not be what is called.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return fault("must not contain spaces or control characters");
    }
    match url::Url::parse(&text) {
        Ok(url) if url.has_host() => Ok(text),
        Ok(_) => fault("must name a host"),
        Err(error) => fault(format!("is not a URL: {error}")),
    }
}

fn events(value: Value) -> Checked<Vec<EventKind>> {
    let Value::Array(items) = value else { return fault("expected an array of events") };
    if items.is_empty() {
        return fault("must name at least one event");
    }
    let mut events = BTreeSet::new();
    let mut errors = Vec::new();
    for (place, item) in items.iter().enumerate() {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        match item.as_str().and_then(|name| name.parse().ok()) {
            Some(event) => {
                events.insert(event);
            }
            None => errors
                .push(FieldError::new(format!("/{place}"), "is not an event: GET /webhooks/event-types lists them")),
        }
    }
    if errors.is_empty() { Ok(events.into_iter().collect()) } else { Err(errors) }
}

/// One event, by its name.
pub fn event(value: Value) -> Checked<EventKind> {
    string(value)?.parse().or_else(|_| fault("is not an event: GET /webhooks/event-types lists them"))
}

pub fn boolean(value: Value) -> Checked<bool> {
    value.as_bool().map_or_else(|| fault("expected true or false"), Ok)
}

fn string(value: Value) -> Checked<String> {
    match value {
        Value::String(text) => Ok(text),
        _ => fault("expected a string"),
    }
}

fn fault<T>(detail: impl Into<String>) -> Checked<T> {
    Err(vec![FieldError::new("", detail)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_have_1_to_200_characters_and_no_control_characters() {
        assert!(name(json!("é".repeat(200))).is_ok());
        for wrong in
            [json!(""), json!("x".repeat(201)), json!("a\u{0}b"), json!("a\nb"), json!("\u{85}"), json!(7), json!(null)]
        {
            assert!(name(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_are_a_set_in_the_catalogue_s_order() {
        let given = json!(["transcode.failed", "delivery.failed", "transcode.failed", "delivery.completed"]);
        let expected = [EventKind::DeliveryCompleted, EventKind::DeliveryFailed, EventKind::TranscodeFailed];
        assert_eq!(events(given).unwrap(), expected);
        let errors = events(json!(["delivery.failed", "delivery.exploded", 3])).unwrap_err();
        assert_eq!(errors.iter().map(|error| &*error.pointer).collect::<Vec<_>>(), ["/1", "/2"]);
        assert!(events(json!([])).is_err() && events(json!("delivery.failed")).is_err());
    }

    #[test]
    fn urls_are_kept_as_given_and_refused_where_they_would_be_read_as_something_else() {
        let longest = format!("https://a.example/{}", "x".repeat(LONGEST_URL - 18));
        for good in ["https://a.example/in?x=1", "https://bücher.example/", &longest] {
            assert_eq!(url(json!(good)).unwrap(), good);
        }
        let too_long = format!("{longest}x");
        for wrong in [
            "",
            "a.example",
            "mailto:a@example.com",
            "https://",
            "https://a.example/\tx",
            " https://a.example",
            &too_long,
        ] {
            assert!(url(json!(wrong)).is_err(), "{wrong}");
        }
    }
}
