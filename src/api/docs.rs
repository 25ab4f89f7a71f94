//! The OpenAPI document as HTML pages, rendered once: the contents, and a page for each operation,
//! event and schema, so that each is small.
//!
//! Not Scalar, Redoc or Swagger UI, which render in the browser: these pages run no script, so the
//! content security policy forbids scripts.

use std::collections::BTreeMap;

use askama::Template;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::openapi::document_json;
use crate::events::Catalogue;
use crate::http::problem::{KINDS, Kind, Problem};
use crate::http::{Brand, Document as CachedDocument, style_source};

/// The title of the contents.
const TITLE: &str = "API reference";
const STYLE: &str = concat!(
    include_str!("../../assets/palette.css"),
    include_str!("../../templates/docs.css")
);

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage<'a> {
    info: &'a Info,
    brand: &'a Brand,
    base: &'a str,
    style: &'a str,
    title: &'a str,
    content: Content<'a>,
}

/// What a page shows.
enum Content<'a> {
    Contents(&'a Reference),
    Operation(&'a ApiOperation),
    Event(&'a str, &'a Value),
    Problems(&'static [Kind]),
    Schema(&'a Value),
}

/// What the pages show together.
struct Reference {
    info: Info,
    tokens: Map<String, Value>,
    operations: Vec<ApiOperation>,
    events: Map<String, Value>,
    schemas: Map<String, Value>,
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
    /// By status.
    responses: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Parameter {
    name: String,
    #[serde(rename = "in")]
    location: String,
    required: bool,
    description: String,
    schema: Value,
}

/// A request's or a response's body.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiBody {
    description: String,
    /// By media type, of which there is at most one.
    content: Map<String, Value>,
}

/// The rendered pages by their names, with their content security policy. The name of the contents
/// is empty.
pub struct Docs {
    pages: BTreeMap<String, CachedDocument>,
    policy: HeaderValue,
}

impl Docs {
    /// `ancestors` are the sources of `frame-ancestors`.
    pub fn new(base_path: &str, brand: &Brand, ancestors: &str, catalogue: &Catalogue) -> Docs {
        let reference = Reference::new(document_json(base_path, catalogue));
        let style = [STYLE, &brand.style].concat();
        let source = style_source(&style);
        let policy = format!(
            "default-src 'none'; style-src {source}; base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}"
        );
        let pages = reference.pages().into_iter().map(|(name, title, content)| {
            let page = DocsPage {
                info: &reference.info,
                brand,
                base: base_path,
                style: &style,
                title,
                content,
            };
            let html = page.render().expect("writing to memory cannot fail");
            (name, CachedDocument::new("text/html; charset=utf-8", html))
        });

        Docs {
            pages: pages.collect(),
            policy: HeaderValue::try_from(policy).expect("base64 and ASCII"),
        }
    }

    /// Responds with the page of that name.
    pub fn response(&self, name: &str, request: &HeaderMap) -> Result<Response, Problem> {
        let page = self.pages.get(name);
        let page = page.ok_or_else(|| Problem::not_found("nothing is at this path"))?;
        let mut response = page.response(request);

        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        Ok(response)
    }
}

impl Reference {
    fn new(document: Value) -> Reference {
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

        Reference {
            info,
            tokens: components.security_schemes,
            operations: operations.collect(),
            events: webhooks
                .into_iter()
                .map(|(name, mut item)| (name, item["post"].take()))
                .collect(),
            schemas: components.schemas,
        }
    }

    /// Returns name, title and content of each page.
    fn pages(&self) -> Vec<(String, &str, Content<'_>)> {
        let mut pages = vec![
            (String::new(), TITLE, Content::Contents(self)),
            ("problems".to_owned(), "Problems", Content::Problems(KINDS)),
        ];

        pages.extend(self.operations.iter().map(|operation| {
            let name = operation.operation_id.clone();
            (name, &*operation.summary, Content::Operation(operation))
        }));
        pages.extend(self.events.iter().map(|(name, event)| {
            let content = Content::Event(name, event);
            (format!("event-{name}"), &**name, content)
        }));
        pages.extend(self.schemas.iter().map(|(name, schema)| {
            let content = Content::Schema(schema);
            (format!("schema-{name}"), &**name, content)
        }));
        pages
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

impl Parameter {
    /// The type of its values.
    fn kind(&self) -> Option<&str> {
        let kind = self.schema.get("format").or(self.schema.get("type"));
        kind.and_then(Value::as_str)
    }

    /// Its values, if they are a fixed set.
    fn values(&self) -> Option<&Vec<Value>> {
        self.schema["enum"].as_array()
    }
}

impl ApiBody {
    fn media(&self) -> &Value {
        self.content.values().next().unwrap_or(&Value::Null)
    }

    /// The name of the schema, if it has one.
    fn schema(&self) -> Option<&str> {
        schema_name(&self.media()["schema"])
    }

    fn example(&self) -> Option<String> {
        self.media().get("example").map(pretty)
    }
}

/// Returns the name of a schema that is referred to.
fn schema_name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
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

/// Returns a schema as text. The line breaks in its descriptions are those of the sources.
fn pretty_schema(schema: &Value) -> String {
    pretty(schema).replace("\\n", " ")
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value is representable")
}
