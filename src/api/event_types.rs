//! Lists the events with the schemas of their data.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::schema::EventName;
use crate::auth::Caller;
use crate::domain::event::EventKind;
use crate::events::CATALOGUE;

/// Every event
#[derive(Serialize, ToSchema)]
pub struct EventTypes {
    data: Vec<EventType>,
}

/// One event
#[derive(Serialize, ToSchema)]
pub struct EventType {
    #[schema(value_type = EventName)]
    event: EventKind,
    description: &'static str,
    /// The add-on that the account needs for the event to be raised; null for most
    #[schema(required = true)]
    requires_addon: Option<&'static str>,
    /// The JSON Schema (2020-12) of `data`
    #[schema(value_type = Object)]
    schema: serde_json::Value,
    /// An instance of the schema
    #[schema(value_type = Object)]
    example: Box<RawValue>,
}

/// The response. Serialized once, because it is constant and the same for all users.
static RESPONSE: LazyLock<Bytes> = LazyLock::new(|| {
    let event_type = |rule: &&'static crate::events::Rule| EventType {
        event: rule.kind,
        description: rule.description,
        requires_addon: rule.requires_addon.map(|addon| addon.as_str()),
        schema: (rule.schema)(),
        example: RawValue::from_string((rule.example)())
            .expect("a test ensures that every example is JSON"),
    };
    let response = EventTypes {
        data: CATALOGUE.iter().map(event_type).collect(),
    };
    serde_json::to_vec(&response)
        .expect("schemas and examples can be serialized")
        .into()
});

/// List the events
///
/// Every event with a description and the schema of its data. Expect new events and new keys.
#[utoipa::path(
    get, path = "/webhooks/event-types", tag = "events", operation_id = "listEventTypes",
    responses((status = 200, description = "Every event", body = EventTypes))
)]
pub async fn list(_: Caller) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        RESPONSE.clone(),
    )
        .into_response()
}
