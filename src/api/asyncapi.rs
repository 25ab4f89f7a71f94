//! The AsyncAPI document of the requests that receivers get, built from the catalogue.

use serde_json::{Map, Value, json};

use super::messages::{body_example, body_schema, description, header_examples, headers};
use crate::events::{CATALOGUE, Rule};

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
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Walhook deliveries",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Signed HTTP notifications of what happens in a user's account: the requests that Walhook sends to receivers. \
                            The management API has an OpenAPI document.",
            "license": { "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0" },
        },
        "defaultContentType": "application/json",
        "servers": { "receiver": receiver() },
        "channels": {
            "deliveries": {
                // The owner of each webhook chooses it.
                "address": null,
                "title": "Deliveries",
                "description": "The URL of a webhook. It gets the events that the webhook subscribes to and its filter accepts, each at \
                                least once, as a POST with the event in the body.",
                "servers": [{ "$ref": "#/servers/receiver" }],
                "messages": by_name(reference),
            },
        },
        "operations": by_name(operation),
        "components": { "messages": by_name(message) },
    })
}

fn receiver() -> Value {
    json!({
        "host": "{host}",
        "pathname": "/{path}",
        "protocol": "https",
        "description": "Your receiver: the URL that you choose for the webhook",
        "variables": {
            "host": { "description": "The host, with a port if it is not 443", "examples": ["hooks.example.com"] },
            "path": { "description": "The path, with the query", "examples": ["walhook"] },
        },
    })
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
        .map(|header| header.name)
        .collect();

    let properties: Map<String, Value> = all
        .iter()
        .map(|header| {
            let mut schema = header.schema.clone();
            schema["description"] = header.description.into();
            (header.name.to_owned(), schema)
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
