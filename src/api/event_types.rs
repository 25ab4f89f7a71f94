//! Lists the events with the schemas of their data.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::schema::EventName;
use super::state::ApiState;
use crate::auth::Caller;
use crate::domain::event::EventKind;
use crate::events;

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
    /// Whether the platform raises the event: it may not have the data
    available: bool,
    /// The JSON Schema (2020-12) of `data`
    #[schema(value_type = Object)]
    schema: serde_json::Value,
    /// An instance of the schema
    #[schema(value_type = Object)]
    example: Box<RawValue>,
}

impl From<&events::EventType> for EventType {
    fn from(event_type: &events::EventType) -> Self {
        let rule = event_type.rule;
        EventType {
            event: rule.kind,
            description: rule.description,
            requires_addon: rule.requires_addon.map(|addon| addon.as_str()),
            available: event_type.is_available,
            schema: event_type.schema.clone(),
            example: RawValue::from_string(event_type.example.clone())
                .expect("a test ensures that every example is JSON"),
        }
    }
}

/// List the events
///
/// Every event with a description and the schema of its data. Expect new events and new keys.
#[utoipa::path(
    get, path = "/webhooks/event-types", tag = "events", operation_id = "listEventTypes",
    responses((status = 200, description = "Every event", body = EventTypes))
)]
pub async fn list(State(state): State<ApiState>, _: Caller) -> Json<EventTypes> {
    let event_types = state.manage().catalogue().iter();
    Json(EventTypes {
        data: event_types.map(EventType::from).collect(),
    })
}
