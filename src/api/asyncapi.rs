//! The AsyncAPI document of the requests that receivers get, built from the catalogue.

use serde_json::{Map, Value, json};

use super::messages::{body_example, body_schema, description, header_examples, headers};
use crate::events::{Catalogue, EventType};

/// What does not depend on the catalogue. The channel has no address, because the owner of each webhook
/// chooses it.
const FRAME: &str = include_str!("asyncapi.json");
const CHANNEL: &str = "#/channels/deliveries";

/// The document as it is served and as `walhook asyncapi` prints it.
pub fn document_text(catalogue: &Catalogue) -> String {
    let mut text =
        serde_json::to_string_pretty(&document(catalogue)).expect("the document is representable");
    text.push('\n');
    text
}

fn document(catalogue: &Catalogue) -> Value {
    let by_name = |describe: fn(&EventType) -> Value| -> Map<String, Value> {
        catalogue
            .iter()
            .map(|event_type| {
                let name = event_type.rule.kind.as_str().to_owned();
                (name, describe(event_type))
            })
            .collect()
    };

    let reference = |event_type: &EventType| json!({ "$ref": format!("#/components/messages/{}", event_type.rule.kind.as_str()) });
    let mut document: Value = serde_json::from_str(FRAME).expect("the file is JSON");

    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["channels"]["deliveries"]["messages"] = by_name(reference).into();
    document["operations"] = by_name(operation).into();
    document["components"]["messages"] = by_name(message).into();

    document
}

fn operation(event_type: &EventType) -> Value {
    let name = event_type.rule.kind.as_str();
    json!({
        "action": "send",
        "channel": { "$ref": CHANNEL },
        "title": name,
        "summary": description(event_type),
        "description": "A response with a 2xx status within 10 seconds accepts the delivery. Any other response is a failure, and the delivery \
                        is sent again later: ten attempts over about four and a half hours.",
        "bindings": { "http": { "method": "POST", "bindingVersion": "0.3.0" } },
        "messages": [{ "$ref": format!("{CHANNEL}/messages/{name}") }],
    })
}

fn message(event_type: &EventType) -> Value {
    let name = event_type.rule.kind.as_str();
    let all = headers(name);
    let required: Vec<&str> = all
        .iter()
        .filter(|header| header.is_required())
        .map(|header| header.name.as_str())
        .collect();

    let properties: Map<String, Value> = all
        .iter()
        .map(|header| {
            let mut schema = header.schema.clone();
            schema["description"] = header.description.as_str().into();
            (header.name.clone(), schema)
        })
        .collect();

    let headers = json!({ "type": "object", "required": required, "properties": properties });
    let examples = json!([{ "name": "example", "headers": header_examples(name), "payload": body_example(event_type) }]);

    json!({
        "name": name,
        "title": name,
        "summary": description(event_type),
        "contentType": "application/json",
        "headers": headers,
        "payload": body_schema(event_type),
        "examples": examples,
    })
}
