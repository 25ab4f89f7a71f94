//! The page of all events that webhooks can subscribe to.

use askama::Template;
use axum::response::Response;
use serde_json::Value;

use super::error::PageError;
use super::format::pretty;
use super::page::{Frame, Section, page};
use super::visit::Visit;
use crate::domain::event::EventKind;
use crate::events::{Catalogue, EventType, Rule};
use crate::manage::Webhook;

/// Groups of events, in the order in which they are shown.
const FAMILIES: [&str; 5] = [
    "Delivery to outlets",
    "Releases and review",
    "Stream Radar",
    "Payments",
    "Transcoding",
];

/// Returns the group of an event.
fn family(kind: EventKind) -> &'static str {
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

#[derive(Template)]
#[template(path = "ui/catalogue.html")]
struct CataloguePage {
    frame: Frame,
    families: [(&'static str, Vec<CatalogueEntry>); 5],
    webhooks: Vec<Webhook>,
}

struct CatalogueEntry {
    rule: &'static Rule,
    is_available: bool,
    fields: Vec<Field>,
    example: String,
}

/// A key of an event's data.
struct Field {
    name: String,
    kind: String,
    description: String,
    required: bool,
}

/// A group of events.
pub type Family<'a> = (&'static str, Vec<&'a EventType>);

/// Returns the events by their groups.
pub fn by_family(catalogue: &Catalogue) -> [Family<'_>; 5] {
    FAMILIES.map(|name| {
        let is_member = |event_type: &&EventType| family(event_type.rule.kind) == name;
        (name, catalogue.iter().filter(is_member).collect())
    })
}

/// Selections of events that the form offers, besides all, none and each group: the value of the
/// button, and its label.
pub const PRESETS: [(&str, &str); 2] = [("progress", "Release progress"), ("failures", "Failures")];

/// Returns whether a preset has the event.
fn is_preset(preset: &str, kind: EventKind) -> bool {
    let is_failure = matches!(kind, EventKind::DeliveryFailed | EventKind::TranscodeFailed);
    match preset {
        "progress" => matches!(
            kind,
            EventKind::ReleaseReviewStatusChanged
                | EventKind::ReleaseDistributed
                | EventKind::DeliveryCompleted
                | EventKind::DeliveryFailed
                | EventKind::TakedownCompleted
        ),
        _ => is_failure,
    }
}

/// Returns the events that are chosen after a button of the form was pressed. A group's button
/// chooses all of its events, or none if all are chosen.
pub fn choose(
    catalogue: &Catalogue,
    button: &str,
    is_chosen: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let group = FAMILIES.iter().find(|name| **name == button);
    let is_in_group = |kind| group.is_some_and(|group| family(kind) == *group);
    let is_whole = EventKind::ALL
        .iter()
        .filter(|kind| is_in_group(**kind))
        .all(|kind| is_chosen(kind.as_str()));

    let is_meant = |event_type: &&EventType| {
        let kind = event_type.rule.kind;
        match button {
            "all" => event_type.is_available,
            "none" => false,
            _ if is_in_group(kind) => !is_whole,
            _ if group.is_some() => is_chosen(kind.as_str()),
            preset => is_preset(preset, kind),
        }
    };

    let chosen = catalogue.iter().filter(is_meant);
    chosen
        .map(|event_type| event_type.rule.kind.as_str())
        .collect()
}

fn entry(event_type: &EventType) -> CatalogueEntry {
    let schema = &event_type.schema;
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();

    let properties = schema["properties"].as_object().into_iter().flatten();
    let field = |(name, property): (&String, &Value)| Field {
        name: name.clone(),
        kind: kind(property, schema),
        description: property["description"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        required: required.contains(&name.as_str()),
    };

    CatalogueEntry {
        rule: event_type.rule,
        is_available: event_type.is_available,
        fields: properties.map(field).collect(),
        example: pretty(&event_type.example),
    }
}

/// Describes the type of a property in a few words.
fn kind(property: &Value, schema: &Value) -> String {
    if let Some(reference) = property["$ref"].as_str() {
        let target = reference
            .strip_prefix('#')
            .and_then(|pointer| schema.pointer(pointer));
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
        Value::String(name) if name == "array" => {
            format!("array of {}", kind(&property["items"], schema))
        }
        Value::String(name) => name.clone(),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" | "),
        _ => "any".to_owned(),
    }
}

pub async fn show(visit: Visit) -> Result<Response, PageError> {
    let families = by_family(visit.manage().catalogue());
    let entries = |(name, event_types): Family<'_>| {
        let entries = event_types.into_iter().map(entry).collect();
        (name, entries)
    };

    Ok(page(&CataloguePage {
        frame: visit.frame(Section::Events),
        families: families.map(entries),
        webhooks: visit.webhooks().await?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_chosen_as_a_whole_and_then_not_at_all() {
        let catalogue = Catalogue::default();
        let press = |button: &str, chosen: &[&str]| {
            choose(&catalogue, button, |name| chosen.contains(&name))
        };

        let whole = [
            "payment.statement_ready",
            "transcode.completed",
            "transcode.failed",
        ];
        assert_eq!(press("Transcoding", &whole[..2]), whole);
        assert_eq!(press("Transcoding", &whole), whole[..1]);
        assert_eq!(
            press("failures", &whole),
            ["delivery.failed", "transcode.failed"]
        );
        assert_eq!(press("all", &[]).len(), EventKind::ALL.len());
        assert_eq!(press("none", &whole), [""; 0]);
    }

    #[test]
    fn every_key_of_every_event_is_described() {
        for event in Catalogue::default().iter().map(entry) {
            assert!(!event.fields.is_empty(), "{:?}", event.rule.kind);

            for field in &event.fields {
                assert!(
                    !field.description.is_empty() && field.kind != "any",
                    "{:?} {}",
                    event.rule.kind,
                    field.name
                );
            }
        }
    }
}
