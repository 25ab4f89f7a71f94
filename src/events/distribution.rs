//! The distribution of a release to an outlet: every status change of a distribution queue entry,
//! and its final statuses.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Transition, owner_of, require, variant};
use super::rule::{EventData, Fact, Facts, NoEvent, Owner};
use crate::domain::change::Change;
use crate::domain::event::EventKind;
use crate::domain::table::{Table, distro_queue};

const COMPLETE: &str = "complete";

// Common to all four events. A doc comment would become part of each event's schema.
#[derive(Serialize, JsonSchema)]
struct QueueEntry {
    /// The platform's queue entry for this release and outlet.
    distro_queue_id: i64,
    /// The release that is distributed.
    release_id: i64,
    /// The label that owns the release.
    label_id: i64,
    /// The release's catalogue reference.
    release_cat: Option<String>,
    /// The outlet that the release is distributed to.
    outlet_id: Option<i64>,
    /// The outlet's display name.
    outlet_name: Option<Arc<str>>,
}

impl QueueEntry {
    /// Reads the entry and looks up its owner.
    fn read(row: &Transition<'_>, facts: &dyn Facts) -> Fact<(Owner, Self)> {
        let release_id = row.parent(distro_queue::release_id, "distro_queue_without_release")?;
        let release = facts.release(release_id)?;
        let owner = owner_of(release.label_id, facts)?;
        let outlet_id = row.optional(distro_queue::outlet_id)?;

        let entry = QueueEntry {
            distro_queue_id: row.required(distro_queue::id)?,
            release_id,
            label_id: release.label_id,
            release_cat: release.cat.clone(),
            outlet_id,
            outlet_name: outlet_id
                .map(|outlet| facts.outlet_name(outlet))
                .transpose()?
                .flatten(),
        };

        Ok((owner, entry))
    }
}

/// An example of an event's data: the common fields, then the given ones.
macro_rules! example {
    ($fields:literal) => {
        concat!(
            r#"{"distro_queue_id":482913,"release_id":20417,"label_id":311,"release_cat":"NLR-0042","#,
            r#""outlet_id":12,"outlet_name":"Example Music","#,
            $fields,
            "}"
        )
    };
}

/// Reads an entry that became `complete`, of a takedown if `takedown` is true, otherwise of a
/// delivery.
fn completed(takedown: bool, change: &Change, facts: &dyn Facts) -> Fact<(Owner, QueueEntry)> {
    let row = Transition::to(change, distro_queue::status, COMPLETE)?;
    require(row.optional(distro_queue::takedown)?.unwrap_or(false) == takedown)?;
    QueueEntry::read(&row, facts)
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DeliveryCompleted {
    #[serde(flatten)]
    entry: QueueEntry,
    /// The final status of the delivery.
    #[schemars(extend("const" = COMPLETE))]
    status: &'static str,
}

impl EventData for DeliveryCompleted {
    const KIND: EventKind = EventKind::DeliveryCompleted;
    const DESCRIPTION: &'static str = "A release was delivered to an outlet. Sent once per outlet.";
    const TABLE: Table = Table::DistroQueue;
    const EXAMPLE: &'static str = example!(r#""status":"complete""#);

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let (owner, entry) = completed(false, change, facts)?;
        Ok((
            owner,
            DeliveryCompleted {
                entry,
                status: COMPLETE,
            },
        ))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DeliveryFailed {
    #[serde(flatten)]
    entry: QueueEntry,
    /// The final status of the delivery or takedown.
    status: FailedStatus,
    /// The reason given by the outlet or the distribution pipeline.
    message: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FailedStatus {
    Error,
    Fault,
    Rejected,
    BatchException,
}

impl EventData for DeliveryFailed {
    const KIND: EventKind = EventKind::DeliveryFailed;
    const DESCRIPTION: &'static str = "A release's delivery to an outlet, or its takedown there, failed permanently. Sent once per outlet.";
    const TABLE: Table = Table::DistroQueue;
    const EXAMPLE: &'static str =
        example!(r#""status":"rejected","message":"Artwork is smaller than 3000 x 3000 pixels""#);

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::of(change, distro_queue::status)?;
        let status = row.to.and_then(variant).ok_or(NoEvent::NotApplicable)?;
        let (owner, entry) = QueueEntry::read(&row, facts)?;

        Ok((
            owner,
            DeliveryFailed {
                entry,
                status,
                message: row.optional(distro_queue::message)?,
            },
        ))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct TakedownCompleted {
    #[serde(flatten)]
    entry: QueueEntry,
    /// The final status of the takedown.
    #[schemars(extend("const" = COMPLETE))]
    status: &'static str,
    /// Always true: distinguishes a takedown from a delivery.
    #[schemars(extend("const" = true))]
    takedown: bool,
}

impl EventData for TakedownCompleted {
    const KIND: EventKind = EventKind::TakedownCompleted;
    const DESCRIPTION: &'static str =
        "An outlet took down a release as requested. Sent once per outlet.";
    const TABLE: Table = Table::DistroQueue;
    const EXAMPLE: &'static str = example!(r#""status":"complete","takedown":true"#);

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let (owner, entry) = completed(true, change, facts)?;
        Ok((
            owner,
            TakedownCompleted {
                entry,
                status: COMPLETE,
                takedown: true,
            },
        ))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct OutletStatusChanged {
    #[serde(flatten)]
    entry: QueueEntry,
    /// The status before the change; null if the entry is new or the earlier status is not a
    /// recognised one.
    previous_status: Option<String>,
    /// The status after the change.
    status: String,
}

impl EventData for OutletStatusChanged {
    const KIND: EventKind = EventKind::DistributionOutletStatusChanged;
    const DESCRIPTION: &'static str = "The distribution status of a release at an outlet changed. Sent for every change, intermediate statuses included, so expect many.";
    const TABLE: Table = Table::DistroQueue;
    const EXAMPLE: &'static str = example!(r#""previous_status":"transcoding","status":"batched""#);

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::of(change, distro_queue::status)?;
        let status = row
            .to
            .ok_or_else(|| NoEvent::ignored("null_distribution_status", None))?
            .to_owned();
        let (owner, entry) = QueueEntry::read(&row, facts)?;
        let previous_status = row
            .from
            .filter(|status| facts.recognises_distribution_status(status))
            .map(str::to_owned);

        Ok((
            owner,
            OutletStatusChanged {
                entry,
                previous_status,
                status,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{FakeFacts, insert, moved, tuple, update, user, with};
    use super::*;
    use crate::domain::change::{Datum, Operation, Tuple};

    const ALL: [EventKind; 4] = [
        EventKind::DeliveryCompleted,
        EventKind::DeliveryFailed,
        EventKind::TakedownCompleted,
        EventKind::DistributionOutletStatusChanged,
    ];
    const TABLE: Table = Table::DistroQueue;

    fn entry(status: &str, takedown: &str) -> Tuple {
        let values = [
            ("id", "7"),
            ("release_id", "10"),
            ("outlet_id", "5"),
            ("status", status),
            ("takedown", takedown),
        ];
        tuple(TABLE, &values)
    }

    /// The events that one change raises.
    fn raised(change: &Change) -> Vec<EventKind> {
        let facts = FakeFacts::default();
        let raises = |kind: &EventKind| facts.derive(*kind, change).is_ok();
        ALL.into_iter().filter(raises).collect()
    }

    fn data(kind: EventKind, change: &Change) -> String {
        FakeFacts::default().raised(kind, change).data
    }

    #[test]
    fn a_completed_delivery_is_sent_to_the_labels_owner() {
        let change = moved(TABLE, &entry("complete", "f"), "status", Some("batched"));
        let derived = FakeFacts::default().raised(EventKind::DeliveryCompleted, &change);

        assert_eq!(
            (derived.owner, derived.once_for_release),
            (user("alice"), None)
        );
        let expected = r#"{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","status":"complete"}"#;
        assert_eq!(derived.data, expected);
    }

    #[test]
    fn a_completed_takedown_is_not_a_delivery() {
        let change = moved(TABLE, &entry("complete", "t"), "status", Some("batched"));
        assert_eq!(
            raised(&change),
            [
                EventKind::TakedownCompleted,
                EventKind::DistributionOutletStatusChanged
            ]
        );

        let expected = r#"{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","status":"complete","takedown":true}"#;
        assert_eq!(data(EventKind::TakedownCompleted, &change), expected);
    }

    #[test]
    fn failures_of_deliveries_and_takedowns_carry_the_message() {
        for status in ["error", "fault", "rejected", "batch_exception"] {
            for takedown in ["f", "t"] {
                let row = with(
                    TABLE,
                    &entry(status, takedown),
                    "message",
                    Some("no \"artwork\""),
                );

                let change = moved(TABLE, &row, "status", Some("batched"));
                assert_eq!(
                    raised(&change),
                    [
                        EventKind::DeliveryFailed,
                        EventKind::DistributionOutletStatusChanged
                    ]
                );

                let expected = format!(
                    r#"{{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","status":"{status}","message":"no \"artwork\""}}"#
                );
                assert_eq!(data(EventKind::DeliveryFailed, &change), expected);
            }
        }

        let without_message = moved(TABLE, &entry("error", "f"), "status", Some("batched"));
        assert!(
            data(EventKind::DeliveryFailed, &without_message)
                .ends_with(r#""status":"error","message":null}"#)
        );
    }

    #[test]
    fn every_change_into_a_final_status_raises_one_event() {
        use EventKind::{DeliveryCompleted, DeliveryFailed, DistributionOutletStatusChanged};

        for (from, to, expected) in [
            (
                "scheduled",
                "transcoding",
                vec![DistributionOutletStatusChanged],
            ),
            (
                "error",
                "fault",
                vec![DeliveryFailed, DistributionOutletStatusChanged],
            ),
            (
                "complete",
                "error",
                vec![DeliveryFailed, DistributionOutletStatusChanged],
            ),
            (
                "error",
                "complete",
                vec![DeliveryCompleted, DistributionOutletStatusChanged],
            ),
            ("complete", "complete", vec![]),
            ("error", "error", vec![]),
        ] {
            assert_eq!(
                raised(&moved(TABLE, &entry(to, "f"), "status", Some(from))),
                expected,
                "{from} to {to}"
            );
        }
    }

    #[test]
    fn an_inserted_entry_is_a_transition_without_previous_status() {
        for (status, expected) in [("scheduled", 1), ("complete", 2), ("fault", 2)] {
            let change = insert(TABLE, entry(status, "f"));
            assert_eq!(raised(&change).len(), expected, "{status}");
            let data = data(EventKind::DistributionOutletStatusChanged, &change);
            assert!(
                data.ends_with(&format!(r#""previous_status":null,"status":"{status}"}}"#)),
                "{data}"
            );
        }
    }

    #[test]
    fn the_previous_status_is_null_unless_recognised() {
        for (from, previous) in [
            (Some("batched"), "\"batched\""),
            (Some("complete"), "\"complete\""),
            (Some("limbo"), "null"),
            (Some("Batched"), "null"),
            (None, "null"),
        ] {
            let change = moved(TABLE, &entry("somewhere_new", "f"), "status", from);
            let expected = format!(
                r#"{{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","previous_status":{previous},"status":"somewhere_new"}}"#
            );
            assert_eq!(
                data(EventKind::DistributionOutletStatusChanged, &change),
                expected
            );
            assert_eq!(
                raised(&change),
                [EventKind::DistributionOutletStatusChanged]
            );
        }
    }

    #[test]
    fn nulls_in_rows_become_nulls_in_the_data() {
        let row = with(
            TABLE,
            &with(TABLE, &entry("complete", "f"), "outlet_id", None),
            "release_id",
            Some("11"),
        );

        let expected = r#"{"distro_queue_id":7,"release_id":11,"label_id":1,"release_cat":null,"outlet_id":null,"outlet_name":null,"status":"complete"}"#;
        assert_eq!(
            data(EventKind::DeliveryCompleted, &insert(TABLE, row)),
            expected
        );

        let without_name = insert(
            TABLE,
            with(TABLE, &entry("complete", "f"), "outlet_id", Some("6")),
        );
        assert!(
            data(EventKind::DeliveryCompleted, &without_name)
                .contains(r#""outlet_id":6,"outlet_name":null"#)
        );

        let row = with(TABLE, &entry("complete", "t"), "takedown", None);
        assert!(raised(&insert(TABLE, row)).contains(&EventKind::DeliveryCompleted));
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_label() {
        let of_release = |release: Option<&str>| {
            let change = insert(
                TABLE,
                with(TABLE, &entry("complete", "f"), "release_id", release),
            );
            FakeFacts::default().derive(EventKind::DeliveryCompleted, &change)
        };

        assert!(matches!(of_release(Some("20")), Ok(derived) if derived.owner == user("bob")));
        assert_eq!(
            of_release(Some("30")),
            Err(NoEvent::Unrouted("label_without_user"))
        );
        assert_eq!(
            of_release(Some("99")),
            Err(NoEvent::Unrouted("release_not_found"))
        );
        assert_eq!(
            of_release(None),
            Err(NoEvent::Unrouted("distro_queue_without_release"))
        );
    }

    #[test]
    fn malformed_rows_are_reported() {
        let facts = FakeFacts::default();
        let bad =
            |column, value| insert(TABLE, with(TABLE, &entry("complete", "f"), column, value));

        for (column, value) in [
            ("id", None),
            ("release_id", Some("ten")),
            ("outlet_id", Some("5.5")),
            ("takedown", Some("x")),
        ] {
            let end = facts.derive(EventKind::DeliveryCompleted, &bad(column, value));
            assert!(
                matches!(end, Err(NoEvent::Malformed(_))),
                "{column}: {end:?}"
            );
        }

        let without_status = facts.derive(
            EventKind::DistributionOutletStatusChanged,
            &bad("status", None),
        );
        assert_eq!(
            without_status,
            Err(NoEvent::ignored("null_distribution_status", None))
        );
    }

    #[test]
    fn other_changes_raise_nothing_and_look_nothing_up() {
        let facts = FakeFacts::default();
        let row = || entry("complete", "f");
        let mut unknown = row();

        unknown.set(distro_queue::status, Datum::Absent);

        for operation in [
            Operation::Delete { old: row() },
            Operation::Truncate,
            Operation::Update {
                old: None,
                new: row(),
            },
            Operation::Update {
                old: Some(unknown),
                new: row(),
            },
            Operation::Update {
                old: Some(with(TABLE, &row(), "message", Some("before"))),
                new: row(),
            },
        ] {
            let change = super::super::tests::fixtures::change(TABLE, operation);
            for kind in ALL {
                assert_eq!(
                    facts.derive(kind, &change),
                    Err(NoEvent::NotApplicable),
                    "{kind}: {change:?}"
                );
            }
        }

        for change in [
            insert(TABLE, row()),
            update(TABLE, Some(entry("batched", "f")), row()),
        ] {
            assert!(!raised(&change).is_empty());
        }

        assert_eq!(facts.lookups(), 0);
    }
}
