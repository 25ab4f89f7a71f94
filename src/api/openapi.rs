//! The OpenAPI document: collected from the handlers, then completed with the parts that operations
//! share.

use serde_json::{Value, json};
use utoipa::openapi::{ComponentsBuilder, OpenApi};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::schema::{ActionName, LogFormatName};
use super::state::ApiState;
use super::{
    account_logs, audit, deliveries, enrich, event_types, feed, filter_values, jobs, keys, logs,
    recover, sign_in_links, stats, test, tokens, webhooks,
};
use crate::domain::members::FieldError;
use crate::domain::settings::{Purpose, Settings};
use crate::events::Catalogue;
use crate::http::problem::ProblemBody;

/// What does not depend on the operations.
const FRAME: &str = include_str!("openapi.json");

/// Every operation of the API with its documentation.
pub fn operations() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(event_types::list))
        .routes(routes!(filter_values::list))
        .routes(routes!(webhooks::read, webhooks::update, webhooks::delete))
        .routes(routes!(webhooks::read_by_name, webhooks::put))
        .routes(routes!(keys::regenerate_secret))
        .routes(routes!(test::send))
        .routes(routes!(test::send_unsaved))
        .routes(routes!(account_logs::list))
        .routes(routes!(logs::list))
        .routes(routes!(logs::read))
        .routes(routes!(logs::redeliver))
        .routes(routes!(deliveries::read))
        .routes(routes!(recover::recover))
        .routes(routes!(jobs::replay))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::read, jobs::cancel))
        .routes(routes!(stats::read))
        .routes(routes!(feed::list))
        .routes(routes!(feed::read))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::read, tokens::revoke))
        .routes(routes!(sign_in_links::create))
        .routes(routes!(audit::list))
}

/// The document of the API under `base_path`.
pub fn document_json(base_path: &str, catalogue: &Catalogue) -> Value {
    let OpenApi {
        paths, components, ..
    } = operations().into_openapi();
    let components = ComponentsBuilder::from(components.unwrap_or_default())
        .schema(ProblemBody::name(), ProblemBody::schema())
        .schema(FieldError::name(), FieldError::schema())
        .schema(ActionName::name(), ActionName::schema())
        .schema(LogFormatName::name(), LogFormatName::schema())
        .build();

    let mut document: Value = serde_json::from_str(FRAME).expect("the file is JSON");
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["paths"] = json!(paths);
    document["components"]["schemas"] = json!(components.schemas);

    for (name, purpose) in [
        ("CreateWebhook", Purpose::Create),
        ("ReplaceWebhook", Purpose::Replace),
        ("UpdateWebhook", Purpose::Edit),
        ("Webhook", Purpose::Show),
    ] {
        Settings::describe(&mut document["components"]["schemas"][name], purpose);
    }

    for name in ["url", "headers"] {
        let setting =
            document["components"]["schemas"]["CreateWebhook"]["properties"][name].clone();
        document["components"]["schemas"]["TestReceiver"]["properties"][name] = setting;
    }

    // utoipa repeats the schema there, which lacks the settings.
    document["components"]["schemas"]["Page_Webhook"]["properties"]["data"]["items"] =
        json!({ "$ref": "#/components/schemas/Webhook" });

    if !base_path.is_empty() {
        document["servers"][0]["url"] = base_path.into();
    }

    enrich::enrich(&mut document, catalogue);
    document
}

/// The document as it is served and as `walhook openapi` prints it.
pub fn document_text(base_path: &str, catalogue: &Catalogue) -> String {
    let mut text = serde_json::to_string_pretty(&document_json(base_path, catalogue))
        .expect("the document is representable");
    text.push('\n');
    text
}
