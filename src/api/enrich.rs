//! What the OpenAPI document says beyond what is written at the handlers: errors, idempotency keys, examples, and the events
//! that are sent.

use serde_json::{Map, Value, json};

use crate::events::{CATALOGUE, Rule};

const METHODS: [&str; 4] = ["get", "post", "patch", "delete"];
const EXAMPLE_ID: &str = "0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11";
const EXAMPLE_TIME: &str = "2026-03-01T09:05:00.123+00:00";

pub fn enrich(document: &mut Value) {
    for (_, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for method in METHODS {
            if let Some(operation) = item.get_mut(method) {
                if method == "post" {
                    add_idempotency_key(operation);
                }
                add_problems(operation, method == "post");
                add_examples(operation);
                if operation["operationId"] == "testWebhook" {
                    operation["responses"]["200"]["links"] = log_link();
                }
            }
        }
    }
    let events = CATALOGUE.iter().map(|rule| (rule.kind.as_str().to_owned(), event(rule)));
    document["webhooks"] = events.collect::<Map<_, _>>().into();
}

fn add_idempotency_key(operation: &mut Value) {
    let parameter = json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Any text of your choice, such as a UUID. For 24 hours the same request under the same key is done once: \
                        made again it is answered as it was, with `Idempotency-Replayed: true`",
        "required": false,
        "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$" },
    });
    match operation["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(parameter),
        None => operation["parameters"] = json!([parameter]),
    }
}

struct Problem {
    status: u16,
    when: When,
    description: &'static str,
    slug: &'static str,
    title: &'static str,
    detail: &'static str,
}

/// The operations that a problem may come of.
enum When {
    Always,
    Post,
    HasBody,
    /// A POST's body is read for its Idempotency-Key even where it means nothing.
    ReadsBody,
    /// There is something to be wrong in the body, the query or the Idempotency-Key.
    Checks,
    /// There is a parameter of this name.
    Mentions(&'static str),
}

const PROBLEMS: [Problem; 12] = [
    Problem::new(
        400,
        When::ReadsBody,
        "The body is not JSON, or ended early",
        "malformed-json",
        "The body is not JSON",
        "expected value at line 1 column 1",
    ),
    Problem::new(
        401,
        When::Always,
        "No valid token",
        "unauthorized",
        "No valid token",
        "send `Authorization: Bearer <token>` with a token that is neither revoked nor expired",
    ),
    Problem::new(
        404,
        When::Mentions("webhook"),
        "The user has no such webhook",
        "not-found",
        "Not found",
        "there is no such webhook",
    ),
    Problem::new(
        408,
        When::ReadsBody,
        "The body took too long to arrive",
        "request-timeout",
        "The request took too long",
        "the request's body took too long to arrive",
    ),
    Problem::new(
        409,
        When::Post,
        "A request with this Idempotency-Key is being served",
        "idempotency-key-in-use",
        "The request is being served",
        "a request with this Idempotency-Key is being served: ask again for its answer",
    ),
    Problem::new(
        412,
        When::Mentions("If-Match"),
        "The webhook is another version",
        "precondition-failed",
        "The webhook has changed",
        "the webhook is not as If-Match says: read it again",
    ),
    Problem::new(
        413,
        When::ReadsBody,
        "The body is too large",
        "content-too-large",
        "The body is too large",
        "a body may have 65536 bytes",
    ),
    Problem::new(
        415,
        When::HasBody,
        "The body is not declared as JSON",
        "unsupported-media-type",
        "The body's type is not supported",
        "send the body as `Content-Type: application/json`",
    ),
    Problem::new(
        422,
        When::Checks,
        "The request is not valid: `errors` lists every fault; or the Idempotency-Key is malformed or was used for another request",
        "validation-failed",
        "The request is not valid",
        "/url: is required",
    ),
    Problem::new(
        429,
        When::Always,
        "Too many requests; Retry-After says how many seconds to wait",
        "rate-limited",
        "Too many requests",
        "too many requests with this token: wait 1 s",
    ),
    Problem::new(
        500,
        When::Always,
        "The fault is ours",
        "internal-error",
        "Internal error",
        "the fault is ours; the header X-Request-Id names this request in our log",
    ),
    Problem::new(
        503,
        When::Always,
        "Temporarily unavailable",
        "unavailable",
        "Temporarily unavailable",
        "the service cannot reach its store at the moment",
    ),
];

/// Adds the errors that the operation can answer with.
fn add_problems(operation: &mut Value, is_post: bool) {
    let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    let mentions = |name: &str| parameters.iter().any(|parameter| parameter["name"] == name);
    let has_body = !operation["requestBody"].is_null();
    let applies = |problem: &&Problem| match problem.when {
        When::Always => true,
        When::Post => is_post,
        When::HasBody => has_body,
        When::ReadsBody => has_body || is_post,
        When::Checks => has_body || is_post || mentions("limit"),
        When::Mentions(name) => mentions(name),
    };
    for problem in PROBLEMS.iter().filter(applies) {
        let response = &mut operation["responses"][problem.status.to_string()];
        if response.is_null() {
            *response = problem.response();
        } else {
            response["content"]["application/problem+json"]["example"] = problem.example();
        }
    }
}

impl Problem {
    const fn new(
        status: u16,
        when: When,
        description: &'static str,
        slug: &'static str,
        title: &'static str,
        detail: &'static str,
    ) -> Problem {
        Problem { status, when, description, slug, title, detail }
    }

    fn response(&self) -> Value {
        let schema = json!({ "$ref": "#/components/schemas/Problem" });
        let content = json!({ "application/problem+json": { "schema": schema, "example": self.example() } });
        let header = |description: &str, schema: Value| json!({ "description": description, "required": true, "schema": schema });
        let seconds = || header("Seconds to wait", json!({ "type": "integer", "minimum": 1 }));
        match self.status {
            401 => {
                let scheme = header("The scheme to use", json!({ "type": "string" }));
                json!({ "description": self.description, "headers": { "WWW-Authenticate": scheme }, "content": content })
            }
            429 | 503 => {
                json!({ "description": self.description, "headers": { "Retry-After": seconds() }, "content": content })
            }
            _ => json!({ "description": self.description, "content": content }),
        }
    }

    fn example(&self) -> Value {
        let mut example = json!({
            "type": format!("/problems/{}", self.slug),
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        });
        if self.slug == "validation-failed" {
            example["errors"] = json!([{ "pointer": "/url", "detail": "is required" }]);
        }
        example
    }
}

/// Examples of what goes in and comes out, by the schema's name.
fn add_examples(operation: &mut Value) {
    let bodies = ["200", "201", "202"].map(|status| format!("/responses/{status}/content"));
    for pointer in bodies.iter().map(String::as_str).chain(["/requestBody/content"]) {
        let Some(media) = operation.pointer_mut(pointer).and_then(|content| content.get_mut("application/json")) else {
            continue;
        };
        let schema = &media["schema"];
        let alternatives = schema["oneOf"].as_array().into_iter().flatten();
        let reference = alternatives.chain([schema]).find_map(|schema| schema["$ref"].as_str());
        let name = reference.and_then(|reference| reference.rsplit('/').next()).unwrap_or_default();
        if let Some(example) = example(name) {
            media["example"] = example;
        }
    }
}

fn example(schema: &str) -> Option<Value> {
    let settings = json!({
        "name": "My label",
        "url": "https://label.example/hooks",
        "events": ["delivery.completed", "delivery.failed"],
        "active": true,
    });
    let page = |entry: Option<Value>| json!({ "data": [entry], "next_cursor": null });
    Some(match schema {
        "CreateWebhook" => settings,
        "UpdateWebhook" => json!({ "active": false }),
        "TestWebhook" => json!({ "event": "delivery.failed" }),
        "Webhook" => {
            let mut webhook = json!({ "id": EXAMPLE_ID });
            let members = webhook.as_object_mut()?;
            members.extend(settings.as_object()?.clone());
            let counters = json!({
                "success_count": 1204,
                "failure_count": 3,
                "consecutive_failures": 0,
                "last_triggered_at": EXAMPLE_TIME,
                "disabled_at": null,
                "disabled_reason": null,
                "created_at": EXAMPLE_TIME,
                "updated_at": EXAMPLE_TIME,
            });
            members.extend(counters.as_object()?.clone());
            webhook
        }
        "CreatedWebhook" => {
            let mut created = example("Webhook")?;
            created["secret"] = "whsec_…".into();
            created
        }
        "NewSecret" => json!({ "id": EXAMPLE_ID, "secret": "whsec_…" }),
        "TestReport" => {
            json!({ "delivered": true, "response_status": 204, "duration_ms": 87, "error": null, "log_id": EXAMPLE_ID })
        }
        "LogEntry" => log_entry(),
        "LogDetail" => {
            let mut detail = log_entry();
            let request = json!({
                "request_url": "https://label.example/hooks",
                "request_headers": { "Content-Type": "application/json", "X-Webhook-Event": "delivery.failed" },
                "request_body": "{\"event\":\"delivery.failed\",…}",
                "response_body": "upstream is down",
            });
            detail.as_object_mut()?.extend(request.as_object()?.clone());
            detail
        }
        "Page_Webhook" => page(example("Webhook")),
        "Page_LogEntry" => page(example("LogEntry")),
        _ => return None,
    })
}

/// From a test's report to its entry in the log.
fn log_link() -> Value {
    let parameters = json!({ "webhook": "$request.path.webhook", "log": "$response.body#/log_id" });
    json!({ "log": { "operationId": "readLog", "parameters": parameters } })
}

fn log_entry() -> Value {
    json!({
        "id": EXAMPLE_ID,
        "delivery_id": "c2b8f0de-4a53-5b0d-9a53-2f6b7f0f8a7e",
        "event_type": "delivery.failed",
        "response_status": 502,
        "duration_ms": 87,
        "attempt": 1,
        "round": 1,
        "timestamp": EXAMPLE_TIME,
        "outcome": "failed",
        "error": { "kind": "http_status", "message": "it answered 502" },
        "test": false,
    })
}

/// One event as its receiver gets it.
fn event(rule: &Rule) -> Value {
    let name = rule.kind.as_str();
    let mut data = (rule.schema)();
    if let Some(schema) = data.as_object_mut() {
        schema.shift_remove("$schema");
    }
    let example: Value = serde_json::from_str(&(rule.example)()).unwrap_or_default();
    let schema = json!({
        "type": "object",
        "required": ["event", "timestamp", "webhook_id", "data"],
        "properties": {
            "event": { "const": name },
            "timestamp": { "type": "string", "format": "date-time", "description": "The time of this attempt" },
            "webhook_id": { "type": "string", "format": "uuid" },
            "data": data,
        },
    });
    let example = json!({ "event": name, "timestamp": EXAMPLE_TIME, "webhook_id": EXAMPLE_ID, "data": example });
    let description = match rule.requires_addon {
        Some(addon) => format!("{} (for accounts with the add-on `{}`)", rule.description, addon.as_str()),
        None => rule.description.to_owned(),
    };
    json!({
        "post": {
            "tags": ["deliveries"],
            "operationId": format!("on.{name}"),
            "summary": name,
            "description": description,
            "security": [],
            "parameters": headers(),
            "requestBody": {
                "required": true,
                "content": { "application/json": { "schema": schema, "example": example } },
            },
            "responses": {
                "2XX": { "description": "Taken: it is not sent again" },
                "default": { "description": "Not taken, as is no answer within 10 seconds: it is sent again later" },
            },
        },
    })
}

fn headers() -> Value {
    let header = |name: &str, required: bool, schema: Value, description: &str| json!({ "name": name, "in": "header", "required": required, "description": description, "schema": schema });
    let text = || json!({ "type": "string" });
    let time = || json!({ "type": "string", "format": "date-time" });
    let id = || json!({ "type": "string", "format": "uuid" });
    let hexadecimal = || json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    let number = || json!({ "type": "integer", "minimum": 1 });
    json!([
        header(
            "X-Webhook-Signature",
            true,
            hexadecimal(),
            "HMAC-SHA256 of the raw body, in hexadecimal; the key is the whole secret, `whsec_` included"
        ),
        header(
            "X-Webhook-Timestamp",
            true,
            time(),
            "The body's `timestamp`: the time of this attempt. Refuse what is older than five minutes"
        ),
        header("X-Webhook-Event", true, text(), "The body's `event`"),
        header("X-Webhook-Id", true, id(), "The body's `webhook_id`"),
        header("X-Webhook-Delivery", true, id(), "The same on every attempt of a delivery: recognises repeats"),
        header("X-Webhook-Attempt", true, number(), "The number of this attempt"),
        header("X-Webhook-Event-Id", true, id(), "The event's id"),
        header(
            "X-Webhook-Occurred-At",
            true,
            time(),
            "When the event's change was committed: deliveries may overtake each other"
        ),
        header("X-Webhook-Test", false, json!({ "const": "true" }), "On tests that the owner asked for"),
        header("webhook-id", true, id(), "Standard Webhooks: the delivery's id"),
        header(
            "webhook-timestamp",
            true,
            json!({ "type": "integer" }),
            "Standard Webhooks: the time of this attempt, in seconds"
        ),
        header(
            "webhook-signature",
            true,
            text(),
            "Standard Webhooks: `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64"
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_at_a_handler_is_not_overwritten() {
        let mut operation = json!({ "responses": { "409": { "description": "ours", "content": {} } } });
        add_problems(&mut operation, true);
        assert_eq!(operation["responses"]["409"]["description"], "ours");
        assert_eq!(operation["responses"]["401"]["description"], "No valid token");
        assert!(operation["responses"]["412"].is_null());
    }
}
