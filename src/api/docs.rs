//! The OpenAPI document as an HTML page, rendered once.
//!
//! Not Scalar, Redoc or Swagger UI, which render in the browser: this page runs no script, so the
//! content security policy forbids scripts.

use askama::Template;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::openapi::document_json;
use crate::events::Catalogue;
use crate::http::Document as CachedDocument;
use crate::http::problem::{KINDS, Kind};

const STYLE: &str = include_str!("../../templates/docs.css");

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage<'a> {
    info: Info,
    base: &'a str,
    style: &'static str,
    tokens: Map<String, Value>,
    operations: Vec<ApiOperation>,
    events: Map<String, Value>,
    schemas: Map<String, Value>,
    problems: &'static [Kind],
}

/// The parts of an OpenAPI document that the page shows.
#[derive(Deserialize)]
struct ApiDocument {
    info: Info,
    /// By path, then by method.
    paths: Map<String, Value>,
    webhooks: Map<String, Value>,
    components: Components,
}

#[derive(Deserialize)]
struct Info {
    title: String,
    version: String,
    description: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Components {
    schemas: Map<String, Value>,
    security_schemes: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ApiOperation {
    #[serde(skip)]
    path: String,
    #[serde(skip)]
    method: String,
    operation_id: String,
    summary: String,
    description: String,
    parameters: Vec<Parameter>,
    request_body: ApiBody,
    responses: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Parameter {
    name: String,
    #[serde(rename = "in")]
    location: String,
    required: bool,
    description: String,
}

/// A request's or a response's body.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiBody {
    description: String,
    /// By media type, of which there is at most one.
    content: Map<String, Value>,
}

/// The rendered page with its content security policy.
#[derive(Clone)]
pub struct Docs {
    html: CachedDocument,
    policy: HeaderValue,
}

impl Docs {
    /// `ancestors` are the sources of `frame-ancestors`.
    pub fn new(base_path: &str, ancestors: &str, catalogue: &Catalogue) -> Docs {
        let html = page(document_json(base_path, catalogue), base_path)
            .render()
            .expect("writing to memory cannot fail");
        let style = STANDARD.encode(Sha256::digest(STYLE));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}"
        );
        let html = CachedDocument::new("text/html; charset=utf-8", html);

        Docs {
            html,
            policy: HeaderValue::try_from(policy).expect("base64 and ASCII"),
        }
    }

    pub fn response(&self, request: &HeaderMap) -> Response {
        let mut response = self.html.response(request);
        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        response
    }
}

fn page(document: Value, base: &str) -> DocsPage<'_> {
    let ApiDocument {
        info,
        paths,
        webhooks,
        components,
    } = parse(document);

    let methods = paths.into_iter().flat_map(|(path, item)| {
        let methods: Map<String, Value> = parse(item);
        methods
            .into_iter()
            .map(move |(method, operation)| (path.clone(), method.to_uppercase(), operation))
    });

    let operations = methods.map(|(path, method, operation)| ApiOperation {
        path,
        method,
        ..parse(operation)
    });

    DocsPage {
        info,
        base,
        style: STYLE,
        tokens: components.security_schemes,
        operations: operations.collect(),
        events: webhooks
            .into_iter()
            .map(|(name, mut item)| (name, item["post"].take()))
            .collect(),
        schemas: components.schemas,
        problems: KINDS,
    }
}

fn parse<T: for<'a> Deserialize<'a>>(part: Value) -> T {
    serde_json::from_value(part).expect("the document that this build generates follows OpenAPI")
}

impl ApiOperation {
    fn responses(&self) -> impl Iterator<Item = (&String, ApiBody)> {
        self.responses
            .iter()
            .map(|(status, response)| (status, parse(response.clone())))
    }
}

impl ApiBody {
    fn media(&self) -> &Value {
        self.content.values().next().unwrap_or(&Value::Null)
    }

    /// The name of the schema, if it has one.
    fn schema(&self) -> Option<&str> {
        self.media()["schema"]["$ref"].as_str()?.rsplit('/').next()
    }

    fn example(&self) -> Option<String> {
        self.media().get("example").map(pretty)
    }
}

/// Returns text as HTML. What is between backticks becomes code.
fn text(text: &str) -> String {
    let escaped = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let parts = escaped.split('`').enumerate();

    parts
        .map(|(index, part)| {
            if index % 2 == 1 {
                format!("<code>{part}</code>")
            } else {
                part.to_owned()
            }
        })
        .collect()
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value is representable")
}
