//! The OpenAPI document as a page to read: rendered once, without scripts, fetching nothing.

use askama::Template;
use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::openapi::document_json;

const STYLE: &str = include_str!("../../templates/docs.css");

#[derive(Template)]
#[template(path = "docs.html")]
struct Page {
    title: String,
    version: String,
    description: String,
    base: String,
    style: &'static str,
    operations: Vec<Operation>,
    events: Vec<Event>,
    schemas: Vec<Shown>,
}

struct Operation {
    id: String,
    method: String,
    path: String,
    summary: String,
    description: String,
    parameters: Vec<Parameter>,
    request: Option<Content>,
    answers: Vec<Answer>,
}

struct Parameter {
    name: String,
    place: String,
    required: bool,
    description: String,
}

struct Answer {
    status: String,
    description: String,
    content: Option<Content>,
}

struct Content {
    /// The schema's name, where it has one.
    schema: Option<String>,
    example: Option<String>,
}

struct Event {
    name: String,
    description: String,
    example: String,
    schema: String,
}

struct Shown {
    name: String,
    text: String,
}

/// The rendered page with its policy.
#[derive(Clone)]
pub struct Docs {
    html: Bytes,
    policy: HeaderValue,
}

impl Docs {
    pub fn new(base_path: &str) -> Docs {
        let html = page(&document_json(base_path), base_path).render().expect("writing to memory cannot fail");
        let style = STANDARD.encode(Sha256::digest(STYLE));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        Docs { html: html.into(), policy: HeaderValue::try_from(policy).expect("base64 and ASCII") }
    }

    pub fn answer(&self) -> Response {
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        let headers = [(header::CONTENT_SECURITY_POLICY, self.policy.clone()), (header::CONTENT_TYPE, content_type)];
        (headers, self.html.clone()).into_response()
    }
}

fn page(document: &Value, base_path: &str) -> Page {
    let schemas = members(&document["components"]["schemas"]);
    Page {
        title: text(&document["info"]["title"]),
        version: text(&document["info"]["version"]),
        description: text(&document["info"]["description"]),
        base: base_path.to_owned(),
        style: STYLE,
        operations: members(&document["paths"])
            .flat_map(|(path, item)| members(item).map(move |(method, operation)| (path, method, operation)))
            .map(|(path, method, shown)| operation(path, method, shown))
            .collect(),
        events: members(&document["webhooks"]).map(|(name, item)| event(name, &item["post"])).collect(),
        schemas: schemas.map(|(name, schema)| Shown { name: name.to_owned(), text: pretty(schema) }).collect(),
    }
}

fn operation(path: &str, method: &str, operation: &Value) -> Operation {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let parameter = |parameter: &Value| Parameter {
        name: text(&parameter["name"]),
        place: text(&parameter["in"]),
        required: parameter["required"] == true,
        description: text(&parameter["description"]),
    };
    let answer = |(status, response): (&str, &Value)| Answer {
        status: status.to_owned(),
        description: text(&response["description"]),
        content: content(response),
    };
    Operation {
        id: text(&operation["operationId"]),
        method: method.to_uppercase(),
        path: path.to_owned(),
        summary: text(&operation["summary"]),
        description: text(&operation["description"]),
        parameters: parameters.map(parameter).collect(),
        request: content(&operation["requestBody"]),
        answers: members(&operation["responses"]).map(answer).collect(),
    }
}

fn event(name: &str, operation: &Value) -> Event {
    let body = &operation["requestBody"]["content"]["application/json"];
    Event {
        name: name.to_owned(),
        description: text(&operation["description"]),
        example: pretty(&body["example"]),
        schema: pretty(&body["schema"]["properties"]["data"]),
    }
}

/// The first media type: there is one alone.
fn content(of: &Value) -> Option<Content> {
    let (_, media) = members(&of["content"]).next()?;
    // A body that may be absent is a reference among alternatives.
    let schema = &media["schema"];
    let alternatives = schema["oneOf"].as_array().into_iter().flatten();
    let reference = alternatives.chain([schema]).find_map(|schema| schema["$ref"].as_str());
    let example = Some(&media["example"]).filter(|example| !example.is_null());
    Some(Content {
        schema: reference.and_then(|path| path.rsplit('/').next()).map(str::to_owned),
        example: example.map(pretty),
    })
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value is representable")
}
