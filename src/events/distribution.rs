//! What becomes of a release at an outlet: every move of a distribution queue entry, and the ends it can come to.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Row, Transition, owner_of, word};
use super::value::{schema_of, to_json};
use super::{Derived, Fact, Facts, Rule, Verdict};
use crate::domain::change::Change;
use crate::domain::event::{EventKind, UserId};
use crate::domain::table::{Table, distro_queue};

const COMPLETE: &str = "complete";

// What all four events tell. A doc comment would become the description of each one's schema.
#[derive(Serialize, JsonSchema)]
struct Entry {
    /// The platform's queue entry for this release and outlet.
    distro_queue_id: i64,
    /// The release on its way.
    release_id: i64,
    /// The label that owns the release.
    label_id: i64,
    /// The release's catalogue reference.
    release_cat: Option<String>,
    /// The outlet it goes to.
    outlet_id: Option<i64>,
    /// The outlet's name for people.
    outlet_name: Option<Arc<str>>,
}

impl Entry {
    /// Reads the entry and finds whom to tell.
    fn read(row: &Row<'_>, facts: &dyn Facts) -> Fact<(UserId, Entry)> {
        let release_id = row.parent(distro_queue::release_id, "distro_queue_without_release")?;
        let release = facts.release(release_id)?;
        let owner = owner_of(release.label_id, facts)?;
        let outlet_id = row.optional_integer(distro_queue::outlet_id)?;
        let entry = Entry {
            distro_queue_id: row.integer(distro_queue::id)?,
            release_id,
            label_id: release.label_id,
            release_cat: release.cat.clone(),
            outlet_id,
            outlet_name: outlet_id.map(|outlet| facts.outlet_name(outlet)).transpose()?.flatten(),
        };
        Ok((owner, entry))
    }

    fn example() -> Self {
        Entry {
            distro_queue_id: 482_913,
            release_id: 20_417,
            label_id: 311,
            release_cat: Some("NLR-0042".into()),
            outlet_id: Some(12),
            outlet_name: Some("Example Music".into()),
        }
    }
}

pub(super) static DELIVERY_COMPLETED: Rule = Rule {
    kind: EventKind::DeliveryCompleted,
    description: "An outlet has taken a release: raised once for each outlet when delivery to it ends well.",
    requires_addon: None,
    table: Table::DistroQueue,
    derive: delivery_completed,
    schema: schema_of::<DeliveryCompleted>,
    example: || to_json(&DeliveryCompleted { entry: Entry::example(), status: COMPLETE }),
};

#[derive(Serialize, JsonSchema)]
struct DeliveryCompleted {
    #[serde(flatten)]
    entry: Entry,
    /// How the delivery ended.
    #[schemars(extend("const" = COMPLETE))]
    status: &'static str,
}

fn delivery_completed(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let Some(moved) = Transition::to(change, distro_queue::status, COMPLETE) else { return Ok(Verdict::Nothing) };
    if moved.boolean(distro_queue::takedown)? {
        return Ok(Verdict::Nothing);
    }
    let (owner, entry) = Entry::read(&moved, facts)?;
    Ok(Verdict::Raise(Derived::new(owner, &DeliveryCompleted { entry, status: COMPLETE })))
}

pub(super) static DELIVERY_FAILED: Rule = Rule {
    kind: EventKind::DeliveryFailed,
    description: "A release, or its takedown, did not get to an outlet: raised once for each outlet when delivery to it fails for good.",
    requires_addon: None,
    table: Table::DistroQueue,
    derive: delivery_failed,
    schema: schema_of::<DeliveryFailed>,
    example: || {
        to_json(&DeliveryFailed {
            entry: Entry::example(),
            status: Failure::Rejected,
            message: Some("Artwork is smaller than 3000 x 3000 pixels".into()),
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct DeliveryFailed {
    #[serde(flatten)]
    entry: Entry,
    /// How the delivery failed.
    status: Failure,
    /// Why, in the words of the outlet or of the distribution pipeline.
    message: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Failure {
    Error,
    Fault,
    Rejected,
    BatchException,
}

fn delivery_failed(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let Some(moved) = Transition::of(change, distro_queue::status) else { return Ok(Verdict::Nothing) };
    let Some(status) = moved.to.and_then(word::<Failure>) else { return Ok(Verdict::Nothing) };
    let (owner, entry) = Entry::read(&moved, facts)?;
    let message = moved.optional(distro_queue::message)?.map(str::to_owned);
    Ok(Verdict::Raise(Derived::new(owner, &DeliveryFailed { entry, status, message })))
}

pub(super) static TAKEDOWN_COMPLETED: Rule = Rule {
    kind: EventKind::TakedownCompleted,
    description: "An outlet has taken a release down as asked: raised once for each outlet.",
    requires_addon: None,
    table: Table::DistroQueue,
    derive: takedown_completed,
    schema: schema_of::<TakedownCompleted>,
    example: || to_json(&TakedownCompleted { entry: Entry::example(), status: COMPLETE, takedown: true }),
};

#[derive(Serialize, JsonSchema)]
struct TakedownCompleted {
    #[serde(flatten)]
    entry: Entry,
    /// How the takedown ended.
    #[schemars(extend("const" = COMPLETE))]
    status: &'static str,
    /// Tells a takedown from a delivery.
    #[schemars(extend("const" = true))]
    takedown: bool,
}

fn takedown_completed(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let Some(moved) = Transition::to(change, distro_queue::status, COMPLETE) else { return Ok(Verdict::Nothing) };
    if !moved.boolean(distro_queue::takedown)? {
        return Ok(Verdict::Nothing);
    }
    let (owner, entry) = Entry::read(&moved, facts)?;
    Ok(Verdict::Raise(Derived::new(owner, &TakedownCompleted { entry, status: COMPLETE, takedown: true })))
}

pub(super) static OUTLET_STATUS_CHANGED: Rule = Rule {
    kind: EventKind::DistributionOutletStatusChanged,
    description: "The distribution status of a release at an outlet moved. Raised for every move, those on the way included, so expect many.",
    requires_addon: None,
    table: Table::DistroQueue,
    derive: outlet_status_changed,
    schema: schema_of::<OutletStatusChanged>,
    example: || {
        to_json(&OutletStatusChanged {
            entry: Entry::example(),
            previous_status: Some("transcoding".into()),
            status: "batched".into(),
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct OutletStatusChanged {
    #[serde(flatten)]
    entry: Entry,
    /// Where the entry stood before; null for a new entry and where the earlier status is not a recognised one.
    previous_status: Option<String>,
    /// Where it stands now.
    status: String,
}

fn outlet_status_changed(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let Some(moved) = Transition::of(change, distro_queue::status) else { return Ok(Verdict::Nothing) };
    let Some(status) = moved.to else { return Ok(Verdict::Ignored("null_distribution_status")) };
    let (owner, entry) = Entry::read(&moved, facts)?;
    let previous = moved.from.filter(|status| facts.recognises_distribution_status(status));
    let data = OutletStatusChanged { entry, previous_status: previous.map(str::to_owned), status: status.to_owned() };
    Ok(Verdict::Raise(Derived::new(owner, &data)))
}

#[cfg(test)]
mod tests {
    use super::super::Halt;
    use super::super::testing::{FakeFacts, insert, moved, tuple, update, user, with};
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
        let values =
            [("id", "7"), ("release_id", "10"), ("outlet_id", "5"), ("status", status), ("takedown", takedown)];
        tuple(TABLE, &values)
    }

    /// The events that one change raises.
    fn raised(change: &Change) -> Vec<EventKind> {
        let facts = FakeFacts::default();
        let raises = |kind: &EventKind| matches!(facts.derive(*kind, change), Ok(Verdict::Raise(_)));
        ALL.into_iter().filter(raises).collect()
    }

    fn data(kind: EventKind, change: &Change) -> String {
        FakeFacts::default().raised(kind, change).data
    }

    #[test]
    fn a_delivery_that_completes_tells_the_labels_owner_where_it_went() {
        let change = moved(TABLE, &entry("complete", "f"), "status", Some("batched"));
        let derived = FakeFacts::default().raised(EventKind::DeliveryCompleted, &change);
        assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
        let expected = r#"{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","status":"complete"}"#;
        assert_eq!(derived.data, expected);
    }

    #[test]
    fn a_takedown_that_completes_is_no_delivery() {
        let change = moved(TABLE, &entry("complete", "t"), "status", Some("batched"));
        assert_eq!(raised(&change), [EventKind::TakedownCompleted, EventKind::DistributionOutletStatusChanged]);
        let expected = r#"{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","status":"complete","takedown":true}"#;
        assert_eq!(data(EventKind::TakedownCompleted, &change), expected);
    }

    #[test]
    fn failures_tell_why_and_a_failed_takedown_is_one_of_them() {
        for status in ["error", "fault", "rejected", "batch_exception"] {
            for takedown in ["f", "t"] {
                let row = with(TABLE, &entry(status, takedown), "message", Some("no \"artwork\""));
                let change = moved(TABLE, &row, "status", Some("batched"));
                assert_eq!(raised(&change), [EventKind::DeliveryFailed, EventKind::DistributionOutletStatusChanged]);
                let expected = format!(
                    r#"{{"distro_queue_id":7,"release_id":10,"label_id":1,"release_cat":"CAT-10","outlet_id":5,"outlet_name":"Example Music","status":"{status}","message":"no \"artwork\""}}"#
                );
                assert_eq!(data(EventKind::DeliveryFailed, &change), expected);
            }
        }
        let silent = moved(TABLE, &entry("error", "f"), "status", Some("batched"));
        assert!(data(EventKind::DeliveryFailed, &silent).ends_with(r#""status":"error","message":null}"#));
    }

    #[test]
    fn every_entry_into_an_end_raises_once() {
        use EventKind::{DeliveryCompleted, DeliveryFailed, DistributionOutletStatusChanged};
        for (from, to, expected) in [
            ("scheduled", "transcoding", vec![DistributionOutletStatusChanged]),
            ("error", "fault", vec![DeliveryFailed, DistributionOutletStatusChanged]),
            ("complete", "error", vec![DeliveryFailed, DistributionOutletStatusChanged]),
            ("error", "complete", vec![DeliveryCompleted, DistributionOutletStatusChanged]),
            ("complete", "complete", vec![]),
            ("error", "error", vec![]),
        ] {
            assert_eq!(raised(&moved(TABLE, &entry(to, "f"), "status", Some(from))), expected, "{from} to {to}");
        }
    }

    #[test]
    fn a_new_entry_is_a_transition_from_nothing() {
        for (status, expected) in [("scheduled", 1), ("complete", 2), ("fault", 2)] {
            let change = insert(TABLE, entry(status, "f"));
            assert_eq!(raised(&change).len(), expected, "{status}");
            let data = data(EventKind::DistributionOutletStatusChanged, &change);
            assert!(data.ends_with(&format!(r#""previous_status":null,"status":"{status}"}}"#)), "{data}");
        }
    }

    #[test]
    fn moves_name_the_earlier_status_where_it_is_recognised() {
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
            assert_eq!(data(EventKind::DistributionOutletStatusChanged, &change), expected);
            assert_eq!(raised(&change), [EventKind::DistributionOutletStatusChanged]);
        }
    }

    #[test]
    fn what_is_null_in_the_rows_is_null_in_the_data() {
        let row = with(TABLE, &with(TABLE, &entry("complete", "f"), "outlet_id", None), "release_id", Some("11"));
        let expected = r#"{"distro_queue_id":7,"release_id":11,"label_id":1,"release_cat":null,"outlet_id":null,"outlet_name":null,"status":"complete"}"#;
        assert_eq!(data(EventKind::DeliveryCompleted, &insert(TABLE, row)), expected);
        let nameless = insert(TABLE, with(TABLE, &entry("complete", "f"), "outlet_id", Some("6")));
        assert!(data(EventKind::DeliveryCompleted, &nameless).contains(r#""outlet_id":6,"outlet_name":null"#));
        let flagless = Datum::Null;
        let mut row = entry("complete", "t");
        row.set(distro_queue::takedown, flagless);
        assert!(raised(&insert(TABLE, row)).contains(&EventKind::DeliveryCompleted));
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_label() {
        let of_release = |release: Option<&str>| {
            let change = insert(TABLE, with(TABLE, &entry("complete", "f"), "release_id", release));
            FakeFacts::default().derive(EventKind::DeliveryCompleted, &change)
        };
        assert!(matches!(of_release(Some("20")), Ok(Verdict::Raise(derived)) if derived.owner == user("bob")));
        assert_eq!(of_release(Some("30")), Err(Halt::Unrouted("label_without_user")));
        assert_eq!(of_release(Some("99")), Err(Halt::Unrouted("release_not_found")));
        assert_eq!(of_release(None), Err(Halt::Unrouted("distro_queue_without_release")));
    }

    #[test]
    fn rows_that_are_not_what_they_should_be_are_reported() {
        let facts = FakeFacts::default();
        let bad = |column, value| insert(TABLE, with(TABLE, &entry("complete", "f"), column, value));
        for (column, value) in
            [("id", None), ("release_id", Some("ten")), ("outlet_id", Some("5.5")), ("takedown", Some("x"))]
        {
            let end = facts.derive(EventKind::DeliveryCompleted, &bad(column, value));
            assert!(matches!(end, Err(Halt::Malformed(_))), "{column}: {end:?}");
        }
        let nowhere = facts.derive(EventKind::DistributionOutletStatusChanged, &bad("status", None));
        assert_eq!(nowhere, Ok(Verdict::Ignored("null_distribution_status")));
    }

    #[test]
    fn what_is_no_transition_raises_nothing_and_asks_for_nothing() {
        let facts = FakeFacts::default();
        let row = || entry("complete", "f");
        let mut unknown = row();
        unknown.set(distro_queue::status, Datum::Absent);
        for operation in [
            Operation::Delete { old: row() },
            Operation::Truncate,
            Operation::Update { old: None, new: row() },
            Operation::Update { old: Some(unknown), new: row() },
            Operation::Update { old: Some(with(TABLE, &row(), "message", Some("before"))), new: row() },
        ] {
            let change = super::super::testing::change(TABLE, operation);
            for kind in ALL {
                assert_eq!(facts.derive(kind, &change), Ok(Verdict::Nothing), "{kind}: {change:?}");
            }
        }
        for change in [insert(TABLE, row()), update(TABLE, Some(entry("batched", "f")), row())] {
            assert!(!raised(&change).is_empty());
        }
        assert_eq!(facts.lookups(), 0);
    }
}
