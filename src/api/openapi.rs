//! The OpenAPI document: collected from the handlers, then completed with the parts that operations
//! share.

use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, ServerBuilder,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::schema::StatusClassName;
use super::state::ApiState;
use super::{enrich, event_types, feed, jobs, keys, logs, recover, stats, test, webhooks};
use crate::http::problem::{FieldError, ProblemBody};

const TOKEN: &str = "token";
const PLATFORM: &str = "platform";

/// Every operation of the API with its documentation.
pub fn operations() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(event_types::list))
        .routes(routes!(webhooks::read, webhooks::update, webhooks::delete))
        .routes(routes!(keys::regenerate_secret))
        .routes(routes!(test::send))
        .routes(routes!(logs::list))
        .routes(routes!(logs::read))
        .routes(routes!(logs::redeliver))
        .routes(routes!(recover::recover))
        .routes(routes!(jobs::replay))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::read, jobs::cancel))
        .routes(routes!(stats::read))
        .routes(routes!(feed::list))
        .routes(routes!(feed::read))
}

/// The document of the API under `base_path`.
pub fn document_json(base_path: &str) -> Value {
    let collected = finished(operations().into_openapi(), base_path);
    let mut document = serde_json::to_value(collected).expect("the document is representable");
    enrich::enrich(&mut document);
    document
}

/// The document as it is served and as `walhook openapi` prints it.
pub fn document_text(base_path: &str) -> String {
    let mut text = serde_json::to_string_pretty(&document_json(base_path))
        .expect("the document is representable");
    text.push('\n');
    text
}

fn finished(collected: OpenApi, base_path: &str) -> OpenApi {
    let description = "Manage webhooks: signed HTTP notifications of what happens in a user's account. Read the same events as a feed.";
    let info = InfoBuilder::new()
        .title("Walhook management API")
        .description(Some(description))
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(
            LicenseBuilder::new()
                .name("Apache-2.0")
                .identifier(Some("Apache-2.0"))
                .build(),
        ))
        .build();

    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API token, which stands for one user"))
        .build();
    let platform = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("JWT")
        .description(Some(
            "A token of the platform, if the service is configured to accept them",
        ))
        .build();

    let components = ComponentsBuilder::from(collected.components.unwrap_or_default())
        .security_scheme(TOKEN, SecurityScheme::Http(token))
        .security_scheme(PLATFORM, SecurityScheme::Http(platform))
        .schema(ProblemBody::name(), ProblemBody::schema())
        .schema(FieldError::name(), FieldError::schema())
        .schema(StatusClassName::name(), StatusClassName::schema())
        .build();

    OpenApiBuilder::new()
        .info(info)
        .servers(Some([ServerBuilder::new()
            .url(if base_path.is_empty() { "/" } else { base_path })
            .build()]))
        .security(Some([
            SecurityRequirement::new(TOKEN, [""; 0]),
            SecurityRequirement::new(PLATFORM, [""; 0]),
        ]))
        .paths(collected.paths)
        .components(Some(components))
        .build()
}
