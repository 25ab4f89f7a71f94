//! The requests that deliver events, as the OpenAPI and the AsyncAPI document describe them:
//! headers, body and an example.

use serde_json::{Map, Value, json};

use crate::events::Rule;

const EXAMPLE_ID: &str = "0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11";
const EXAMPLE_DELIVERY: &str = "0195512d-7c6c-7b0d-9a53-2f6b7f0f8a7e";
const EXAMPLE_EVENT: &str = "0195512d-7c6c-7f02-b1aa-9d40e1f7c2b3";
const EXAMPLE_TIME: &str = "2026-03-01T09:05:00.123+00:00";

/// A header of a request.
pub struct Header {
    pub name: &'static str,
    pub description: &'static str,
    pub schema: Value,
    /// Null if the header is not always sent.
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
    let text = || json!({ "type": "string" });
    let time = || json!({ "type": "string", "format": "date-time" });
    let id = || json!({ "type": "string", "format": "uuid" });
    let number = |lowest: u8| json!({ "type": "integer", "minimum": lowest });
    let hexadecimal = json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    let traceparent = json!({ "type": "string", "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$" });
    let signature = "HMAC-SHA256 of the raw body, in hexadecimal; the key is the whole secret, `whsec_` included";
    let timestamp = "The body's `timestamp`: the time of this attempt. Reject requests that are older than five minutes";
    let occurred_at =
        "When the event's change was committed: deliveries may arrive in another order";
    let sequence = "The delivery's number within the webhook: 1 for the first, without gaps. The same on every attempt; absent for tests";
    let standard = "Standard Webhooks: entries separated by spaces: `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64, \
         also with the previous secret during an overlap; `v1a,` and an ed25519 signature of the same, if the webhook has a key pair";
    let hmac = "9f1c3a5e7b2d4f6081a3c5e7092b4d6f8192a3b4c5d6e7f8091a2b3c4d5e6f70";

    [
        ("X-Webhook-Signature", signature, hexadecimal, json!(hmac)),
        (
            "X-Webhook-Timestamp",
            timestamp,
            time(),
            json!(EXAMPLE_TIME),
        ),
        (
            "X-Webhook-Event",
            "The body's `event`",
            json!({ "const": event }),
            json!(event),
        ),
        (
            "X-Webhook-Id",
            "The body's `webhook_id`",
            id(),
            json!(EXAMPLE_ID),
        ),
        (
            "User-Agent",
            "The service's name, and the version of this format",
            text(),
            json!("Walhook-Webhooks/1.0"),
        ),
        (
            "X-Webhook-Delivery",
            "The same on every attempt of a delivery: identifies duplicates",
            id(),
            json!(EXAMPLE_DELIVERY),
        ),
        (
            "X-Webhook-Attempt",
            "The number of this attempt",
            number(1),
            json!(1),
        ),
        (
            "X-Webhook-Event-Id",
            "The event's id",
            id(),
            json!(EXAMPLE_EVENT),
        ),
        (
            "X-Webhook-Occurred-At",
            occurred_at,
            time(),
            json!("2026-03-01T09:04:59.123456+00:00"),
        ),
        ("X-Webhook-Sequence", sequence, number(1), Value::Null),
        (
            "X-Webhook-Test",
            "Only on tests that the owner requested",
            json!({ "const": "true" }),
            Value::Null,
        ),
        (
            "traceparent",
            "W3C Trace Context: only if the service records traces",
            traceparent,
            Value::Null,
        ),
        (
            "webhook-id",
            "Standard Webhooks: the delivery's id",
            id(),
            json!(EXAMPLE_DELIVERY),
        ),
        (
            "webhook-timestamp",
            "Standard Webhooks: the time of this attempt, in seconds",
            number(0),
            json!(1_772_355_900),
        ),
        (
            "webhook-signature",
            standard,
            text(),
            json!("v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
        ),
    ]
    .map(|(name, description, schema, example)| Header {
        name,
        description,
        schema,
        example,
    })
    .into()
}

/// Returns the JSON Schema of the body.
pub fn body_schema(rule: &Rule) -> Value {
    let mut data = (rule.schema)();
    if let Some(schema) = data.as_object_mut() {
        schema.shift_remove("$schema");
    }

    json!({
        "type": "object",
        "required": ["event", "timestamp", "webhook_id", "data"],
        "properties": {
            "event": { "const": rule.kind.as_str() },
            "timestamp": { "type": "string", "format": "date-time", "description": "The time of this attempt" },
            "webhook_id": { "type": "string", "format": "uuid" },
            "data": data,
        },
    })
}

/// Returns an example of the body: an instance of [`body_schema`].
pub fn body_example(rule: &Rule) -> Value {
    let data: Value = serde_json::from_str(&(rule.example)()).unwrap_or_default();
    json!({ "event": rule.kind.as_str(), "timestamp": EXAMPLE_TIME, "webhook_id": EXAMPLE_ID, "data": data })
}

/// Returns examples of the headers that are always sent.
pub fn header_examples(event: &str) -> Map<String, Value> {
    let required = headers(event).into_iter().filter(Header::is_required);
    required
        .map(|header| (header.name.to_owned(), header.example))
        .collect()
}

/// Describes the event, and names the add-on that it needs.
pub fn description(rule: &Rule) -> String {
    match rule.requires_addon {
        Some(addon) => format!(
            "{} (for accounts with the add-on `{}`)",
            rule.description,
            addon.as_str()
        ),
        None => rule.description.to_owned(),
    }
}
