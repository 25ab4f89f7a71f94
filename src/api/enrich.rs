//! Adds to the OpenAPI document what the handlers do not declare: the errors, idempotency keys and
//! examples that operations share, and the events that are delivered.
//!
//! Not with utoipa: its macros would repeat the shared responses at each handler, and cannot
//! describe webhooks (OpenAPI 3.1) from a catalogue.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::messages::{Header, body_example, body_schema, description, headers};
use crate::domain::members::FieldError;
use crate::events::{Catalogue, EventType};
use crate::http::problem::Problem;
use crate::manage::{Fault, MalformedCursor};

const PROBLEM: &str = "application/problem+json";
const REQUEST_ID: Option<&str> = Some("0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11");
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Adds the shared parts to a document that was collected from the handlers.
pub fn enrich(document: &mut Value, catalogue: &Catalogue) {
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for method in METHODS {
            if let Some(operation) = item.get_mut(method) {
                add_parameters(path, operation, method == "post");

                describe_optional_body(operation);
                add_problems(operation, method);
                add_examples(operation);

                if operation["operationId"] == "testWebhook" {
                    operation["responses"]["200"]["links"] = SHARED["log_link"].clone();
                }
            }
        }
    }

    let events = catalogue
        .iter()
        .map(|event_type| (event_type.rule.kind.as_str().to_owned(), event(event_type)));
    document["webhooks"] = events.collect::<Map<_, _>>().into();
}

/// Describes the ids in the path, and the idempotency key of a POST.
fn add_parameters(path: &str, operation: &mut Value, is_post: bool) {
    let names = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));

    let ids = names.map(|name| {
        let schema = match name {
            "name" => json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
            _ => json!({ "type": "string", "format": "uuid" }),
        };
        json!({
            "name": name,
            "in": "path",
            "description": SHARED["ids"][name],
            "required": true,
            "schema": schema,
        })
    });

    let declared = operation["parameters"].take();
    let others = declared.as_array().into_iter().flatten();
    let others = others
        .filter(|parameter| parameter["in"] != "path")
        .cloned();
    let key = is_post.then(|| SHARED["idempotency_key"].clone());

    operation["parameters"] = ids.chain(others).chain(key).collect();
}

/// A body that may be omitted is collected as an object or null. But null is not accepted.
fn describe_optional_body(operation: &mut Value) {
    if let Some(schema) = operation.pointer_mut("/requestBody/content/application~1json/schema") {
        let mut alternatives = schema["oneOf"].as_array().into_iter().flatten();
        if let Some(object) = alternatives
            .find(|schema| schema["$ref"].is_string())
            .cloned()
        {
            *schema = object;
        }
    }
}

/// The operations that a problem may be the response of.
enum When {
    Always,
    Changes,
    Post,
    HasBody,
    /// The body of a POST is read for its idempotency key even if the operation has none.
    ReadsBody,
    ReadsNoBody,
    /// The body, the query or the idempotency key is validated.
    Validates,
    /// There is a parameter of this name.
    HasParameter(&'static str),
}

/// The problems that several operations share: when they occur, their description in the document,
/// and an example.
fn problems() -> [(When, &'static str, Problem); 15] {
    let invalid = "The request is not valid: `errors` lists every error; or the Idempotency-Key is malformed or was used for another request";
    let required = FieldError::new("/url", "is required");

    [
        (
            When::ReadsBody,
            "The body is not JSON, or ended early; or the query has an unknown parameter",
            Problem::malformed_json("expected value at line 1 column 1"),
        ),
        (
            When::ReadsNoBody,
            "The query has an unknown parameter, or a cursor that does not belong to this list",
            Problem::invalid_cursor(vec![FieldError::new(
                "/cursor",
                MalformedCursor.to_string(),
            )]),
        ),
        (When::Always, "No valid token", Problem::unauthorized()),
        (
            When::Changes,
            "The token may only read",
            Problem::read_only(),
        ),
        (
            When::HasParameter("webhook"),
            "The user has no such webhook",
            Fault::NoSuchWebhook.into(),
        ),
        (
            When::HasParameter("token"),
            "The user has no such token",
            Fault::NoSuchToken.into(),
        ),
        (
            When::ReadsBody,
            "The body took too long to arrive",
            Problem::body_timeout(),
        ),
        (
            When::Post,
            "A request with this Idempotency-Key is in progress",
            Problem::idempotency_key_in_use(),
        ),
        (
            When::HasParameter("If-Match"),
            "The webhook has another version",
            Fault::VersionMismatch.into(),
        ),
        (
            When::ReadsBody,
            "The body is too large",
            Problem::content_too_large(65_536),
        ),
        (
            When::HasBody,
            "The body is not declared as JSON",
            Problem::unsupported_media_type(),
        ),
        (
            When::Validates,
            invalid,
            Problem::validation(vec![required]),
        ),
        (
            When::Always,
            "Too many requests; Retry-After is the number of seconds to wait",
            Problem::rate_limited(1),
        ),
        (When::Always, "A fault of the service", Problem::internal()),
        (
            When::Always,
            "Temporarily unavailable",
            Problem::unavailable(),
        ),
    ]
}

/// Adds the errors that the operation can respond with.
fn add_problems(operation: &mut Value, method: &str) {
    let is_post = method == "post";
    let parameters = operation["parameters"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let has_parameter = |name: &str| parameters.iter().any(|parameter| parameter["name"] == name);
    let has_body = !operation["requestBody"].is_null();

    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.starts_with(['4', '5']) && response["content"].is_null() {
            response["content"] = json!({ PROBLEM: { "schema": problem_schema() } });
        }
    }

    for (when, description, problem) in problems() {
        let applies = match when {
            When::Always => true,
            When::Changes => method != "get",
            When::Post => is_post,
            When::HasBody => has_body,
            When::ReadsBody => has_body || is_post,
            When::ReadsNoBody => !has_body && !is_post,
            When::Validates => has_body || is_post || has_parameter("limit"),
            When::HasParameter(name) => has_parameter(name),
        };

        if !applies {
            continue;
        }

        let response = &mut operation["responses"][problem.status().as_str()];
        if response.is_null() {
            *response = problem_response(description, &problem);
        } else {
            response["content"][PROBLEM]["example"] = problem.json(REQUEST_ID);
        }
    }
}

fn problem_schema() -> Value {
    json!({ "$ref": "#/components/schemas/Problem" })
}

fn problem_response(description: &str, problem: &Problem) -> Value {
    let content =
        json!({ PROBLEM: { "schema": problem_schema(), "example": problem.json(REQUEST_ID) } });
    match SHARED["headers"].get(problem.status().as_str()) {
        Some(headers) => {
            json!({ "description": description, "headers": headers, "content": content })
        }
        None => json!({ "description": description, "content": content }),
    }
}

/// Adds examples of request and response bodies, by the names of their schemas.
fn add_examples(operation: &mut Value) {
    let bodies = ["200", "201", "202"].map(|status| format!("/responses/{status}/content"));
    for pointer in bodies
        .iter()
        .map(String::as_str)
        .chain(["/requestBody/content"])
    {
        let Some(media) = operation
            .pointer_mut(pointer)
            .and_then(|content| content.get_mut("application/json"))
        else {
            continue;
        };

        let reference = media["schema"]["$ref"].as_str();
        let name = reference
            .and_then(|reference| reference.rsplit('/').next())
            .unwrap_or_default();
        if let Some(example) = EXAMPLES.get(name) {
            media["example"] = example.clone();
        }
    }
}

/// The examples of request and response bodies, by the name of their schema.
static EXAMPLES: LazyLock<Value> = LazyLock::new(|| object(include_str!("examples.json")));

/// The parts of the document that operations share.
static SHARED: LazyLock<Value> = LazyLock::new(|| object(include_str!("shared.json")));

fn object(file: &str) -> Value {
    serde_json::from_str(file).expect("the file is a JSON object")
}

/// Describes the request that delivers an event.
fn event(event_type: &EventType) -> Value {
    let name = event_type.rule.kind.as_str();
    json!({
        "post": {
            "tags": ["deliveries"],
            "operationId": format!("on.{name}"),
            "summary": name,
            "description": description(event_type),
            "security": [],
            "parameters": headers(name).into_iter().map(parameter).collect::<Vec<_>>(),
            "requestBody": {
                "required": true,
                "content": { "application/json": { "schema": body_schema(event_type), "example": body_example(event_type) } },
            },
            "responses": SHARED["delivery_responses"],
        },
    })
}

fn parameter(header: Header) -> Value {
    let required = header.is_required();
    json!({ "name": header.name, "in": "header", "required": required, "description": header.description, "schema": header.schema })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_that_a_handler_declares_are_kept() {
        let mut operation =
            json!({ "responses": { "409": { "description": "declared", "content": {} } } });
        add_problems(&mut operation, "post");
        assert_eq!(operation["responses"]["409"]["description"], "declared");
        assert_eq!(
            operation["responses"]["401"]["description"],
            "No valid token"
        );
        assert!(operation["responses"]["412"].is_null());
    }
}
