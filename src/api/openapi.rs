//! The OpenAPI document: collected from the handlers, with what all operations share added once.

use std::borrow::Cow;

use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, ResponseBuilder, ServerBuilder,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::ApiState;
use super::problem::{FieldError, ProblemBody};
use super::{event_types, logs, recover, redeliver, stats, test, webhooks};
use crate::domain::delivery::ErrorKind;
use crate::domain::event::EventKind;

const SCHEME: &str = "token";

macro_rules! names {
    ($type:ident, $name:literal, $names:expr) => {
        /// One of a fixed set of names.
        pub struct $type;

        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new().schema_type(Type::String).enum_values(Some($names)).into()
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    };
}

names!(EventName, "Event", EventKind::ALL.iter().map(|kind| kind.as_str()));
names!(OutcomeName, "Outcome", logs::OUTCOMES.iter().map(|outcome| outcome.as_str()));
names!(ErrorKindName, "ErrorKind", ErrorKind::ALL.iter().map(|kind| kind.as_str()));

/// Every operation of the API, with its documentation.
pub fn operations() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(event_types::list))
        .routes(routes!(webhooks::read, webhooks::update, webhooks::delete))
        .routes(routes!(webhooks::regenerate_secret))
        .routes(routes!(test::send))
        .routes(routes!(logs::list))
        .routes(routes!(logs::read))
        .routes(routes!(redeliver::redeliver))
        .routes(routes!(recover::recover))
        .routes(routes!(stats::read))
}

/// The document of the API under `base_path`.
pub fn document(base_path: &str) -> OpenApi {
    finished(operations().into_openapi(), base_path)
}

/// The document as it is served and printed.
pub fn document_text(base_path: &str) -> String {
    let mut text = document(base_path).to_pretty_json().expect("the document is representable");
    text.push('\n');
    text
}

fn finished(collected: OpenApi, base_path: &str) -> OpenApi {
    let description = "Manage webhooks: signed HTTP notifications of what happens in a user's account.";
    let info = InfoBuilder::new()
        .title("Walhook management API")
        .description(Some(description))
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API token, which stands for one user"))
        .build();
    let components = ComponentsBuilder::from(collected.components.unwrap_or_default())
        .security_scheme(SCHEME, SecurityScheme::Http(token))
        .schema(ProblemBody::name(), ProblemBody::schema())
        .schema(FieldError::name(), FieldError::schema())
        .build();
    let mut paths = collected.paths;
    for item in paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            add_problems(operation);
        }
    }
    OpenApiBuilder::new()
        .info(info)
        .servers(Some([ServerBuilder::new().url(if base_path.is_empty() { "/" } else { base_path }).build()]))
        .security(Some([SecurityRequirement::new(SCHEME, [""; 0])]))
        .paths(paths)
        .components(Some(components))
        .build()
}

/// Adds the errors that any operation, or any with a body, a path or an If-Match, can answer with.
fn add_problems(operation: &mut Operation) {
    let parameters = operation.parameters.as_deref().unwrap_or_default();
    let mentions = |name: &str| {
        parameters.iter().any(|parameter| matches!(parameter, RefOr::T(parameter) if parameter.name == name))
    };
    let has_body = operation.request_body.is_some();
    let problems = [
        ("400", has_body, "The body is not JSON"),
        ("401", true, "No valid token"),
        ("404", mentions("webhook"), "The user has no such webhook"),
        ("412", mentions("If-Match"), "The webhook is another version"),
        ("413", has_body, "The body is too large"),
        ("415", has_body, "The body is not declared as JSON"),
        ("422", has_body || mentions("limit"), "The request is not valid: `errors` lists every fault"),
        ("429", true, "Too many requests with this token; Retry-After says how many seconds to wait"),
        ("default", true, "Any other error"),
    ];
    for (status, applies, description) in problems {
        if applies {
            let schema = Ref::from_schema_name(ProblemBody::name());
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response =
                ResponseBuilder::new().description(description).content("application/problem+json", content).build();
            operation.responses.responses.insert(status.to_owned(), RefOr::T(response));
        }
    }
}
