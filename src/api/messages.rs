//! The requests that deliver events, as the OpenAPI and the AsyncAPI document describe them:
//! headers, body and an example.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::events::EventType;

const EXAMPLE_WEBHOOK: &str = "0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11";
const EXAMPLE_TIME: &str = "2026-03-01T09:05:00.123+00:00";

/// The headers. `{event}` stands for the name of the event.
const HEADERS: &str = include_str!("headers.json");

/// A header of a request.
#[derive(Deserialize)]
pub struct Header {
    pub name: String,
    pub description: String,
    pub schema: Value,
    /// Null if the header is not always sent.
    #[serde(default)]
    pub example: Value,
}

impl Header {
    pub fn is_required(&self) -> bool {
        !self.example.is_null()
    }
}

/// Returns the headers of a request that delivers the event. Custom headers of the webhook come in
/// addition.
pub fn headers(event: &str) -> Vec<Header> {
    serde_json::from_str(&HEADERS.replace("{event}", event)).expect("the file lists headers")
}

/// Returns the JSON Schema of the body.
pub fn body_schema(event_type: &EventType) -> Value {
    let mut data = event_type.schema.clone();
    if let Some(schema) = data.as_object_mut() {
        schema.shift_remove("$schema");
    }

    json!({
        "type": "object",
        "required": ["event", "timestamp", "webhook_id", "data"],
        "properties": {
            "event": { "const": event_type.rule.kind.as_str() },
            "timestamp": { "type": "string", "format": "date-time", "description": "The time of this attempt" },
            "webhook_id": { "type": "string", "format": "uuid" },
            "data": data,
        },
    })
}

/// Returns an example of the body: an instance of [`body_schema`].
pub fn body_example(event_type: &EventType) -> Value {
    let data: Value = serde_json::from_str(&event_type.example).unwrap_or_default();
    json!({ "event": event_type.rule.kind.as_str(), "timestamp": EXAMPLE_TIME, "webhook_id": EXAMPLE_WEBHOOK, "data": data })
}

/// Returns examples of the headers that are always sent.
pub fn header_examples(event: &str) -> Map<String, Value> {
    let required = headers(event).into_iter().filter(Header::is_required);
    required
        .map(|header| (header.name, header.example))
        .collect()
}

/// Describes the event. Names the add-on that it needs, and says if the platform never raises it.
pub fn description(event_type: &EventType) -> String {
    let mut description = event_type.rule.description.to_owned();

    if let Some(addon) = event_type.rule.requires_addon {
        description += &format!(" (for accounts with the add-on `{}`)", addon.as_str());
    }

    if !event_type.is_available {
        description += " Not available: this platform never sends it.";
    }

    description
}
