//! The catalogue of events.

use std::sync::LazyLock;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use serde_json::Value;
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, page};
use super::failure::Failure;
use super::session::Visitor;
use crate::domain::event::{Addon, EventKind};
use crate::events::{CATALOGUE, Rule};

/// As many webhooks can be chosen from; a user has ten, unless told otherwise.
const MOST_CHOICES: usize = 100;

/// What belongs together, in the order it is shown in.
pub const FAMILIES: [&str; 5] =
    ["Delivery to outlets", "Releases and review", "Stream Radar", "Payments", "Transcoding"];

pub fn family(kind: EventKind) -> &'static str {
    match kind {
        EventKind::DeliveryCompleted
        | EventKind::DeliveryFailed
        | EventKind::TakedownCompleted
        | EventKind::DistributionOutletStatusChanged => FAMILIES[0],
        EventKind::ReleaseReviewStatusChanged
        | EventKind::ReleasePreflightReportReady
        | EventKind::ReleaseDistributed => FAMILIES[1],
        EventKind::StreamRadarFlagCreated | EventKind::StreamRadarFlagResolved => FAMILIES[2],
        EventKind::PaymentStatementReady => FAMILIES[3],
        EventKind::TranscodeCompleted | EventKind::TranscodeFailed => FAMILIES[4],
    }
}

pub fn addon_name(addon: Addon) -> &'static str {
    match addon {
        Addon::PreflightQc => "Preflight QC",
        Addon::StreamRadar => "Stream Radar",
    }
}

#[derive(Template)]
#[template(path = "ui/catalogue.html")]
struct Page {
    frame: Frame,
    families: Vec<(&'static str, Vec<&'static Event>)>,
    webhooks: Vec<(Uuid, String)>,
}

struct Event {
    name: &'static str,
    family: &'static str,
    description: &'static str,
    addon: Option<&'static str>,
    fields: Vec<Field>,
    schema: String,
    example: String,
}

/// A key of the event's data.
struct Field {
    name: String,
    kind: String,
    description: String,
    required: bool,
}

/// The same for everybody, and does not change while the process runs.
static EVENTS: LazyLock<Vec<Event>> = LazyLock::new(|| CATALOGUE.iter().map(|rule| event(rule)).collect());

fn event(rule: &Rule) -> Event {
    let schema = (rule.schema)();
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let field = |(name, property): (&String, &Value)| Field {
        name: name.clone(),
        kind: kind(property, &schema),
        description: property["description"].as_str().unwrap_or_default().to_owned(),
        required: required.contains(&name.as_str()),
    };
    let example: Value =
        serde_json::from_str(&(rule.example)()).expect("a catalogue's example is JSON, which a test holds");
    Event {
        name: rule.kind.as_str(),
        family: family(rule.kind),
        description: rule.description,
        addon: rule.requires_addon.map(addon_name),
        fields: properties.map(field).collect(),
        schema: format!("{schema:#}"),
        example: format!("{example:#}"),
    }
}

/// A property's type in a few words.
fn kind(property: &Value, schema: &Value) -> String {
    if let Some(reference) = property["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
        return target.map_or_else(|| "object".to_owned(), |target| kind(target, schema));
    }
    if let Some(only) = property.get("const") {
        return only.to_string();
    }
    if let Some(values) = property["enum"].as_array() {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        return values.join(" | ");
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(kinds) = property[key].as_array() {
            let kinds: Vec<String> = kinds.iter().map(|other| kind(other, schema)).collect();
            return kinds.join(" | ");
        }
    }
    match &property["type"] {
        Value::String(name) if name == "array" => format!("array of {}", kind(&property["items"], schema)),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | "),
        _ => "any".to_owned(),
    }
}

pub async fn show(State(state): State<UiState>, visitor: Visitor) -> Result<Response, Failure> {
    let webhooks = state.api.webhooks(&visitor.actor.user, Uuid::nil(), MOST_CHOICES).await?;
    let webhooks = webhooks.into_iter().map(|webhook| (webhook.id, webhook.settings.name)).collect();
    let of = |name: &'static str| (name, EVENTS.iter().filter(|event| event.family == name).collect());
    let families = FAMILIES.into_iter().map(of).collect();
    Ok(page(&Page { frame: Frame::of(&state, visitor, Section::Events), families, webhooks }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_every_event_is_described() {
        for event in EVENTS.iter() {
            assert!(!event.fields.is_empty(), "{}", event.name);
            for field in &event.fields {
                assert!(!field.description.is_empty() && field.kind != "any", "{} {}", event.name, field.name);
            }
        }
    }
}
