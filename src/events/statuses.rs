//! The statuses that events can have, by the schemas of their data.

use serde_json::Value;

use super::rule;
use crate::domain::event::EventKind;

/// The statuses that events of a kind can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statuses {
    /// The kind has no status.
    None,
    OneOf(Vec<String>),
    /// Whatever the platform uses.
    Any,
}

/// Returns the statuses that events of this kind can have after the change that raises them.
pub fn statuses(kind: EventKind) -> Statuses {
    let Some(key) = kind.status_key() else {
        return Statuses::None;
    };

    let schema = (rule(kind).schema)();
    let property = &schema["properties"][key];

    let names = |values: &[Value]| {
        values
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };

    match (&property["const"], &property["enum"]) {
        (only @ Value::String(_), _) => Statuses::OneOf(names(std::slice::from_ref(only))),
        (_, Value::Array(values)) => Statuses::OneOf(names(values)),
        _ => Statuses::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::CATALOGUE;

    #[test]
    fn the_statuses_are_those_of_the_schemas() {
        let listed = |kind: EventKind| match statuses(kind) {
            Statuses::None => "none".to_owned(),
            Statuses::Any => "any".to_owned(),
            Statuses::OneOf(names) => names.join(" "),
        };

        let expected = [
            "complete",
            "error fault rejected batch_exception",
            "complete",
            "draft to_review approved rejected require_changes audit",
            "none",
            "active",
            "resolved",
            "distributed",
            "none",
            "complete error incomplete",
            "complete error incomplete",
            "any",
        ];

        assert_eq!(
            EventKind::ALL
                .iter()
                .map(|kind| listed(*kind))
                .collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn the_fields_that_filters_compare_are_in_the_data() {
        for rule in CATALOGUE {
            let schema = (rule.schema)();
            let has = |key: &str| schema["properties"][key].is_object();

            assert_eq!(rule.kind.has_outlet(), has("outlet_id"), "{}", rule.kind);
            assert!(rule.kind.status_key().is_none_or(has), "{}", rule.kind);

            // Events of Stream Radar belong to a label that their data does not name.
            assert!(rule.kind.has_label() || !has("label_id"), "{}", rule.kind);
        }
    }
}
