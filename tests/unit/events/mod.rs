//! Tests of the catalogue as a whole: its order, schemas and examples.

pub mod fixtures;

use serde_json::Value;

use self::fixtures::{assert_valid, validator};
use super::{CATALOGUE, Rule, rule, rules_for};
use crate::domain::event::{Addon, EventKind};
use crate::domain::table::Table;

/// Returns the keys of an event's data, in order.
fn keys(kind: EventKind) -> Vec<&'static str> {
    const ENTRY: [&str; 6] = [
        "distro_queue_id",
        "release_id",
        "label_id",
        "release_cat",
        "outlet_id",
        "outlet_name",
    ];

    const RELEASE: [&str; 4] = ["release_id", "label_id", "release_cat", "release_title"];

    const RECORDING: [&str; 6] = [
        "flag_id",
        "dsp",
        "isrc",
        "release_id",
        "track_id",
        "severity",
    ];

    const DETECTION: [&str; 5] = [
        "first_detected_at",
        "last_detected_at",
        "estimated_affected_streams",
        "published_at",
        "resolved_at",
    ];

    let transcode = "release_id label_id track_id transcoder_queue_id status status_message files";

    match kind {
        EventKind::DeliveryCompleted => [&ENTRY[..], &["status"]].concat(),
        EventKind::DeliveryFailed => [&ENTRY[..], &["status", "message"]].concat(),
        EventKind::TakedownCompleted => [&ENTRY[..], &["status", "takedown"]].concat(),
        EventKind::ReleaseReviewStatusChanged => [
            &RELEASE[..],
            &["previous_status", "new_status", "review_issues"],
        ]
        .concat(),
        EventKind::ReleasePreflightReportReady => {
            [&RELEASE[..], &["generated_at", "profile", "counts"]].concat()
        }
        EventKind::StreamRadarFlagCreated => {
            [&RECORDING[..], &["status", "transition"], &DETECTION].concat()
        }
        EventKind::StreamRadarFlagResolved => [&RECORDING[..], &["status"], &DETECTION].concat(),
        EventKind::ReleaseDistributed => [&RELEASE[..], &["delivery_status"]].concat(),
        EventKind::PaymentStatementReady => {
            vec![
                "payment_request_id",
                "invoice_number",
                "period",
                "amount",
                "total_due_usd",
                "currency",
            ]
        }
        EventKind::TranscodeCompleted | EventKind::TranscodeFailed => {
            transcode.split(' ').collect()
        }
        EventKind::DistributionOutletStatusChanged => {
            [&ENTRY[..], &["previous_status", "status"]].concat()
        }
    }
}

fn names(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn the_catalogue_lists_every_event_in_order() {
    let kinds: Vec<EventKind> = CATALOGUE.iter().map(|rule| rule.kind).collect();
    assert_eq!(kinds, EventKind::ALL);

    for kind in EventKind::ALL {
        assert_eq!(rule(*kind).kind, *kind);
    }
}

#[test]
fn only_captured_tables_have_rules() {
    for table in Table::ALL {
        assert_eq!(
            rules_for(*table).next().is_some(),
            table.is_captured(),
            "{}",
            table.name()
        );
    }
}

#[test]
fn the_description_names_the_required_addon() {
    for rule in CATALOGUE {
        let expected = match rule.kind {
            EventKind::ReleasePreflightReportReady => Some(Addon::PreflightQc),
            EventKind::StreamRadarFlagCreated | EventKind::StreamRadarFlagResolved => {
                Some(Addon::StreamRadar)
            }
            _ => None,
        };

        assert_eq!(rule.requires_addon, expected, "{}", rule.kind);
        assert_eq!(
            rule.description.contains("add-on"),
            expected.is_some(),
            "{}",
            rule.kind
        );
    }
}

#[test]
fn examples_have_all_keys_in_order_and_match_their_schemas() {
    for rule in CATALOGUE {
        let example = (rule.example)();
        assert_valid(&validator(rule), &example);
        let example: Value = serde_json::from_str(&example).unwrap();
        assert_eq!(names(&example), keys(rule.kind), "{}", rule.kind);
    }
}

#[test]
fn schemas_are_self_contained_and_extensible_and_require_every_key_except_review_issues() {
    for rule in CATALOGUE {
        let schema = (rule.schema)();
        assert_eq!(
            schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{}",
            rule.kind
        );
        assert_eq!(schema["type"], "object", "{}", rule.kind);

        let text = schema.to_string();

        for word in [
            "$ref",
            "$defs",
            "additionalProperties",
            "unevaluatedProperties",
            "anyOf",
            "int64",
        ] {
            assert!(!text.contains(word), "{}: {word} in {text}", rule.kind);
        }

        let mut expected = keys(rule.kind);
        assert_eq!(names(&schema["properties"]), expected, "{}", rule.kind);
        expected.retain(|key| *key != "review_issues");
        assert_eq!(strings(&schema["required"]), expected, "{}", rule.kind);
    }
}

fn strings(array: &Value) -> Vec<&str> {
    array
        .as_array()
        .expect("an array")
        .iter()
        .map(|item| item.as_str().expect("a string"))
        .collect()
}

/// Returns whether the example still matches the schema with this value for `key`, or without the
/// key if the value is None.
fn accepts(rule: &Rule, key: &str, value: Option<Value>) -> bool {
    let mut example: Value = serde_json::from_str(&(rule.example)()).unwrap();
    let object = example.as_object_mut().unwrap();

    match value {
        Some(value) => object.insert(key.to_owned(), value),
        None => object.remove(key),
    };

    validator(rule).is_valid(&example)
}

#[test]
fn schemas_allow_null_only_where_the_data_may_have_it() {
    let nullable = [
        "release_cat",
        "release_title",
        "outlet_id",
        "outlet_name",
        "message",
        "track_id",
        "first_detected_at",
        "last_detected_at",
        "estimated_affected_streams",
        "period",
    ];

    for rule in CATALOGUE {
        for key in keys(rule.kind) {
            let expected = match (rule.kind, key) {
                (EventKind::TranscodeCompleted | EventKind::TranscodeFailed, "track_id") => false,
                (EventKind::StreamRadarFlagCreated, "resolved_at") => true,
                (EventKind::DistributionOutletStatusChanged, "previous_status") => true,
                _ => nullable.contains(&key),
            };

            assert_eq!(
                accepts(rule, key, Some(Value::Null)),
                expected,
                "{}: {key}",
                rule.kind
            );

            assert_eq!(
                accepts(rule, key, None),
                key == "review_issues",
                "{}: {key}",
                rule.kind
            );
        }

        assert!(
            accepts(rule, "a_future_key", Some(Value::from(1))),
            "{}",
            rule.kind
        );
    }
}

#[test]
fn schemas_restrict_the_values() {
    let cases = [
        (EventKind::DeliveryCompleted, "status", "complete", "error"),
        (
            EventKind::DeliveryFailed,
            "status",
            "batch_exception",
            "complete",
        ),
        (EventKind::TakedownCompleted, "status", "complete", "fault"),
        (
            EventKind::ReleaseReviewStatusChanged,
            "previous_status",
            "audit",
            "limbo",
        ),
        (
            EventKind::ReleaseReviewStatusChanged,
            "new_status",
            "draft",
            "limbo",
        ),
        (EventKind::StreamRadarFlagCreated, "severity", "low", "dire"),
        (
            EventKind::StreamRadarFlagCreated,
            "status",
            "active",
            "resolved",
        ),
        (
            EventKind::StreamRadarFlagCreated,
            "transition",
            "reopened",
            "closed",
        ),
        (
            EventKind::StreamRadarFlagCreated,
            "published_at",
            "2026-03-01T09:05:00.000000+00:00",
            "yesterday",
        ),
        (
            EventKind::StreamRadarFlagResolved,
            "status",
            "resolved",
            "active",
        ),
        (
            EventKind::ReleaseDistributed,
            "delivery_status",
            "distributed",
            "pending",
        ),
        (
            EventKind::PaymentStatementReady,
            "period",
            "2026-03-31",
            "March",
        ),
        (
            EventKind::TranscodeCompleted,
            "status",
            "complete",
            "running",
        ),
        (
            EventKind::TranscodeFailed,
            "status_message",
            "transcode_incomplete",
            "incomplete",
        ),
    ];
    for (kind, key, good, bad) in cases {
        assert!(
            accepts(rule(kind), key, Some(good.into())),
            "{kind}: {key} {good}"
        );
        assert!(
            !accepts(rule(kind), key, Some(bad.into())),
            "{kind}: {key} {bad}"
        );
    }

    assert!(!accepts(
        rule(EventKind::TakedownCompleted),
        "takedown",
        Some(false.into())
    ));
    assert!(!accepts(
        rule(EventKind::PaymentStatementReady),
        "amount",
        Some("120.50".into())
    ));
}
