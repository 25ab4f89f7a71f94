//! The catalogue of one installation: the events with the extra values that its mapping adds, and
//! whether its tables can raise them.

use serde_json::{Value, json};

use super::CATALOGUE;
use super::rule::Rule;
use crate::domain::event::EventKind;
use crate::domain::extra;
use crate::domain::table::Table;

/// Every event, in [`EventKind::ALL`]'s order.
pub struct Catalogue(Vec<EventType>);

/// An event as the documentation shows it.
pub struct EventType {
    pub rule: &'static Rule,
    /// Whether the platform has the tables that raise the event.
    pub is_available: bool,
    /// The JSON Schema (2020-12) of `data`.
    pub schema: Value,
    /// An instance of the schema, as JSON text.
    pub example: String,
}

impl Catalogue {
    /// `keys` returns the keys of the extra values of a table's rows, and `is_absent` whether the
    /// platform lacks a table.
    pub fn new(keys: impl Fn(Table) -> Vec<String>, is_absent: impl Fn(Table) -> bool) -> Self {
        let event_type = |rule: &&'static Rule| {
            let mut schema = (rule.schema)();
            let mut example = (rule.example)();
            let shown = rule.table.shown().iter();
            let extra: Vec<(String, Table)> = shown
                .flat_map(|table| keys(*table).into_iter().map(|key| (key, *table)))
                .collect();

            if !extra.is_empty() {
                describe(&extra, &mut schema, &mut example);
            }

            EventType {
                is_available: !needed(rule).any(&is_absent),
                rule,
                schema,
                example,
            }
        };

        Catalogue(CATALOGUE.iter().map(event_type).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &EventType> {
        self.0.iter()
    }

    pub fn get(&self, kind: EventKind) -> &EventType {
        &self.0[kind as usize]
    }
}

impl Default for Catalogue {
    /// The catalogue of the reference schema.
    fn default() -> Self {
        Catalogue::new(|_| Vec::new(), |_| false)
    }
}

/// Returns the tables without which the event is never raised.
fn needed(rule: &Rule) -> impl Iterator<Item = Table> {
    let addon = rule.requires_addon.map(|_| Table::UserAddon);
    let track = (rule.table == Table::TranscoderQueue).then_some(Table::Track);
    [Some(rule.table), addon, track].into_iter().flatten()
}

/// Adds extra values to the schema and to the example of an event's data.
fn describe(keys: &[(String, Table)], schema: &mut Value, example: &mut String) {
    const TYPES: [&str; 4] = ["string", "number", "boolean", "null"];

    let property = |(key, table): &(String, Table)| {
        let description = format!(
            "A value of the platform's own, from the row in `{}`.",
            table.name()
        );
        (
            key.clone(),
            json!({ "type": TYPES, "description": description }),
        )
    };

    schema["properties"]["extra"] = json!({
        "type": "object",
        "description": "Values that this platform adds.",
        "properties": Value::Object(keys.iter().map(property).collect()),
        "required": keys.iter().map(|(key, _)| key).collect::<Vec<_>>(),
    });

    if let Some(required) = schema["required"].as_array_mut() {
        required.push("extra".into());
    }

    let values = keys.iter().map(|(key, _)| (key.as_str(), "\"example\""));
    extra::add_to(example, values);
}
