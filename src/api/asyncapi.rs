//! The AsyncAPI document of the requests that receivers get, built from the catalogue.

use serde_json::{Map, Value, json};

use super::messages::{body_example, body_schema, description, header_examples, headers};
use crate::events::{CATALOGUE, Rule};

/// What does not depend on the catalogue. The channel has no address, because the owner of each webhook
/// chooses it.
const FRAME: &str = include_str!("asyncapi.json");
const CHANNEL: &str = "#/channels/deliveries";

/// The document as it is served and as `walhook asyncapi` prints it. It is the same for every
/// installation.
pub fn document_text() -> String {
    let mut text =
        serde_json::to_string_pretty(&document()).expect("the document is representable");
    text.push('\n');
    text
}

fn document() -> Value {
    let by_name = |describe: fn(&Rule) -> Value| -> Map<String, Value> {
        CATALOGUE
            .iter()
            .map(|rule| (rule.kind.as_str().to_owned(), describe(rule)))
            .collect()
    };

    let reference =
        |rule: &Rule| json!({ "$ref": format!("#/components/messages/{}", rule.kind.as_str()) });
    let mut document: Value = serde_json::from_str(FRAME).expect("the file is JSON");

    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["channels"]["deliveries"]["messages"] = by_name(reference).into();
    document["operations"] = by_name(operation).into();
    document["components"]["messages"] = by_name(message).into();

    document
}

fn operation(rule: &Rule) -> Value {
    let name = rule.kind.as_str();
    json!({
        "action": "send",
        "channel": { "$ref": CHANNEL },
        "title": name,
        "summary": description(rule),
        "description": "A response with a 2xx status within 10 seconds accepts the delivery. Any other response is a failure, and the delivery \
                        is sent again later: ten attempts over about four and a half hours.",
        "bindings": { "http": { "method": "POST", "bindingVersion": "0.3.0" } },
        "messages": [{ "$ref": format!("{CHANNEL}/messages/{name}") }],
    })
}

fn message(rule: &Rule) -> Value {
    let name = rule.kind.as_str();
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
    let examples = json!([{ "name": "example", "headers": header_examples(name), "payload": body_example(rule) }]);

    json!({
        "name": name,
        "title": name,
        "summary": description(rule),
        "contentType": "application/json",
        "headers": headers,
        "payload": body_schema(rule),
        "examples": examples,
    })
}
