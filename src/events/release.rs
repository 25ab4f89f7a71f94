//! Releases: changes of the review status, and the first distribution.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Transition, owner_of, require, variant};
use super::rule::{EventData, Fact, Facts, NoEvent, Owner};
use super::value::Issues;
use crate::domain::change::Change;
use crate::domain::event::EventKind;
use crate::domain::table::{Table, release};

const DISTRIBUTED: &str = "distributed";

// Common to both events. A doc comment would become part of each event's schema.
#[derive(Serialize, JsonSchema)]
struct ReleaseIdentity {
    /// The release.
    release_id: i64,
    /// The label that owns the release.
    label_id: i64,
    /// The release's catalogue reference.
    release_cat: Option<String>,
    /// The release's title.
    release_title: Option<String>,
}

impl ReleaseIdentity {
    /// Reads the release's identity and looks up its owner.
    fn read(row: &Transition<'_>, facts: &dyn Facts) -> Fact<(Owner, Self)> {
        let label_id = row.parent(release::label_id, "release_without_label")?;
        let owner = owner_of(label_id, facts)?;
        let identity = ReleaseIdentity {
            release_id: row.required(release::id)?,
            label_id,
            release_cat: row.optional(release::cat)?,
            release_title: row.optional(release::title)?,
        };

        Ok((owner, identity))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ReviewStatusChanged {
    #[serde(flatten)]
    identity: ReleaseIdentity,
    /// The review status before the change.
    previous_status: ReviewStatus,
    /// The review status after the change.
    new_status: ReviewStatus,
    /// What needs attention. Present only if the new status is `require_changes` or `rejected`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Issues")]
    review_issues: Option<Issues>,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ReviewStatus {
    Draft,
    ToReview,
    Approved,
    Rejected,
    RequireChanges,
    Audit,
}

impl EventData for ReviewStatusChanged {
    const KIND: EventKind = EventKind::ReleaseReviewStatusChanged;
    const DESCRIPTION: &'static str = "A release moved from one review status to another.";
    const TABLE: Table = Table::Release;
    const EXAMPLE: &'static str = concat!(
        r#"{"release_id":20417,"label_id":311,"release_cat":"NLR-0042","release_title":"Northern Lights","#,
        r#""previous_status":"to_review","new_status":"require_changes","#,
        r#""review_issues":[{"code":"artwork_blurred","message":"The cover is out of focus"}]}"#
    );

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::of(change, release::review_status)?;

        // A new release has no previous status.
        require(!row.inserted)?;
        let known = |status: Option<&str>| {
            let unknown = || NoEvent::ignored("unknown_review_status", status);
            status.and_then(variant).ok_or_else(unknown)
        };
        let new_status = known(row.to)?;
        let previous_status = known(row.from)?;
        let (owner, identity) = ReleaseIdentity::read(&row, facts)?;
        let review_issues = match new_status {
            ReviewStatus::RequireChanges | ReviewStatus::Rejected => {
                Some(row.optional(release::review_issues)?.unwrap_or_default())
            }
            _ => None,
        };

        Ok((
            owner,
            ReviewStatusChanged {
                identity,
                previous_status,
                new_status,
                review_issues,
            },
        ))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ReleaseDistributed {
    #[serde(flatten)]
    identity: ReleaseIdentity,
    /// The delivery status after the change.
    #[schemars(extend("const" = DISTRIBUTED))]
    delivery_status: &'static str,
}

impl EventData for ReleaseDistributed {
    const KIND: EventKind = EventKind::ReleaseDistributed;
    const DESCRIPTION: &'static str =
        "A release was distributed. Sent once per release, even if it is distributed again.";
    const TABLE: Table = Table::Release;
    const EXAMPLE: &'static str = concat!(
        r#"{"release_id":20417,"label_id":311,"release_cat":"NLR-0042","release_title":"Northern Lights","#,
        r#""delivery_status":"distributed"}"#
    );

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::to(change, release::delivery_status, DISTRIBUTED)?;
        let (owner, identity) = ReleaseIdentity::read(&row, facts)?;

        Ok((
            owner,
            ReleaseDistributed {
                identity,
                delivery_status: DISTRIBUTED,
            },
        ))
    }

    fn once_for_release(&self) -> Option<i64> {
        Some(self.identity.release_id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::LookupKey;
    use super::super::tests::fixtures::{FakeFacts, insert, moved, tuple, update, user, with};
    use super::*;
    use crate::domain::change::{Datum, Tuple};

    const TABLE: Table = Table::Release;
    const STATUSES: [&str; 6] = [
        "draft",
        "to_review",
        "approved",
        "rejected",
        "require_changes",
        "audit",
    ];
    const REVIEW: EventKind = EventKind::ReleaseReviewStatusChanged;
    const DISTRIBUTED_EVENT: EventKind = EventKind::ReleaseDistributed;

    fn release(review: &str, delivery: &str) -> Tuple {
        let values = [
            ("id", "10"),
            ("label_id", "1"),
            ("cat", "CAT-10"),
            ("title", "Title 10"),
        ];
        tuple(
            TABLE,
            &[
                values.as_slice(),
                &[("review_status", review), ("delivery_status", delivery)],
            ]
            .concat(),
        )
    }

    fn review(from: &str, to: &str) -> Change {
        moved(TABLE, &release(to, "none"), "review_status", Some(from))
    }

    #[test]
    fn every_change_between_the_six_review_statuses_raises_an_event() {
        for from in STATUSES {
            for to in STATUSES {
                let facts = FakeFacts::default();

                if from == to {
                    assert_eq!(
                        facts.derive(REVIEW, &review(from, to)),
                        Err(NoEvent::NotApplicable)
                    );
                    continue;
                }

                let derived = facts.raised(REVIEW, &review(from, to));
                assert_eq!(
                    (derived.owner, derived.once_for_release),
                    (user("alice"), None)
                );

                let issues = if ["require_changes", "rejected"].contains(&to) {
                    r#","review_issues":[]"#
                } else {
                    ""
                };

                let expected = format!(
                    r#"{{"release_id":10,"label_id":1,"release_cat":"CAT-10","release_title":"Title 10","previous_status":"{from}","new_status":"{to}"{issues}}}"#
                );
                assert_eq!(derived.data, expected);
            }
        }
    }

    #[test]
    fn issues_are_sent_byte_for_byte_with_two_statuses_only() {
        let issues = r#"[{"code": "artwork", "at": 1.50, "note": "caf\u00e9 \"x\""}]"#;

        for (to, present) in [
            ("require_changes", true),
            ("rejected", true),
            ("approved", false),
            ("audit", false),
        ] {
            let row = with(TABLE, &release(to, "none"), "review_issues", Some(issues));
            let change = moved(TABLE, &row, "review_status", Some("to_review"));
            let data = FakeFacts::default().raised(REVIEW, &change).data;
            assert_eq!(
                data.ends_with(&format!(r#","review_issues":{issues}}}"#)),
                present,
                "{to}: {data}"
            );
            assert_eq!(data.contains("review_issues"), present, "{to}: {data}");
        }

        for nothing in [Datum::Null, Datum::text("null")] {
            let mut row = release("rejected", "none");
            row.set(release::review_issues, nothing);

            let change = moved(TABLE, &row, "review_status", Some("to_review"));
            assert!(
                FakeFacts::default()
                    .raised(REVIEW, &change)
                    .data
                    .ends_with(r#","review_issues":[]}"#)
            );
        }

        let mut unsent = release("rejected", "none");
        unsent.set(release::review_issues, Datum::Absent);

        let end = FakeFacts::default().derive(
            REVIEW,
            &moved(TABLE, &unsent, "review_status", Some("to_review")),
        );
        assert_eq!(
            end,
            Err(NoEvent::Lookup(LookupKey::Row(TABLE, 10))),
            "a long value that was not sent is looked up, not taken as null"
        );

        let garbled = with(
            TABLE,
            &release("rejected", "none"),
            "review_issues",
            Some("[{"),
        );

        let end = FakeFacts::default().derive(
            REVIEW,
            &moved(TABLE, &garbled, "review_status", Some("draft")),
        );
        assert!(matches!(end, Err(NoEvent::Malformed(_))), "{end:?}");
    }

    #[test]
    fn undocumented_review_statuses_are_counted_and_raise_nothing() {
        let facts = FakeFacts::default();
        let null = || moved(TABLE, &release("draft", "none"), "review_status", None);
        for (change, value) in [
            (review("draft", "limbo"), "limbo"),
            (review("limbo", "draft"), "limbo"),
            (review("draft", "Approved"), "Approved"),
            (null(), "null"),
        ] {
            assert_eq!(
                facts.derive(REVIEW, &change),
                Err(NoEvent::ignored("unknown_review_status", Some(value)))
            );
        }

        assert_eq!(facts.lookups(), 0);
    }

    #[test]
    fn an_inserted_release_raises_no_review_event() {
        let facts = FakeFacts::default();

        for status in STATUSES {
            assert_eq!(
                facts.derive(REVIEW, &insert(TABLE, release(status, "none"))),
                Err(NoEvent::NotApplicable)
            );
        }
    }

    #[test]
    fn a_release_is_distributed_once() {
        let row = release("approved", "distributed");
        let expected = r#"{"release_id":10,"label_id":1,"release_cat":"CAT-10","release_title":"Title 10","delivery_status":"distributed"}"#;

        for change in [
            insert(TABLE, row.clone()),
            moved(TABLE, &row, "delivery_status", Some("pending")),
            moved(TABLE, &row, "delivery_status", None),
        ] {
            let derived = FakeFacts::default().raised(DISTRIBUTED_EVENT, &change);
            assert_eq!(
                (derived.owner, derived.once_for_release),
                (user("alice"), Some(10))
            );
            assert_eq!(derived.data, expected);
        }

        let facts = FakeFacts::default();

        for change in [
            moved(TABLE, &row, "title", Some("Before")),
            moved(
                TABLE,
                &release("approved", "pending"),
                "delivery_status",
                Some("distributed"),
            ),
            insert(TABLE, release("approved", "pending")),
        ] {
            assert_eq!(
                facts.derive(DISTRIBUTED_EVENT, &change),
                Err(NoEvent::NotApplicable),
                "{change:?}"
            );
        }
    }

    #[test]
    fn review_and_delivery_status_change_independently() {
        let old = release("to_review", "pending");
        let facts = FakeFacts::default();
        let both = update(TABLE, Some(old.clone()), release("approved", "distributed"));

        facts.raised(REVIEW, &both);
        facts.raised(DISTRIBUTED_EVENT, &both);

        let one = update(TABLE, Some(old), release("to_review", "distributed"));
        assert_eq!(facts.derive(REVIEW, &one), Err(NoEvent::NotApplicable));
        facts.raised(DISTRIBUTED_EVENT, &one);
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_new_label() {
        let of_label = |label: Option<&str>| {
            let old = release("draft", "none");
            let new = with(
                TABLE,
                &release("to_review", "distributed"),
                "label_id",
                label,
            );

            let change = update(TABLE, Some(old), new);
            [REVIEW, DISTRIBUTED_EVENT].map(|kind| FakeFacts::default().derive(kind, &change))
        };

        for end in of_label(Some("2")) {
            assert!(matches!(end, Ok(derived) if derived.owner == user("bob")));
        }

        for end in of_label(Some("3")) {
            assert_eq!(end, Err(NoEvent::Unrouted("label_without_user")));
        }

        for end in of_label(None) {
            assert_eq!(end, Err(NoEvent::Unrouted("release_without_label")));
        }
    }

    #[test]
    fn catalogue_reference_and_title_may_be_null() {
        let row = with(
            TABLE,
            &with(TABLE, &release("approved", "distributed"), "cat", None),
            "title",
            None,
        );

        let data = FakeFacts::default()
            .raised(DISTRIBUTED_EVENT, &insert(TABLE, row.clone()))
            .data;
        assert!(
            data.contains(r#""release_cat":null,"release_title":null"#),
            "{data}"
        );

        let change = moved(TABLE, &row, "review_status", Some("audit"));
        let data = FakeFacts::default().raised(REVIEW, &change).data;
        assert!(
            data.contains(r#""release_cat":null,"release_title":null"#),
            "{data}"
        );
    }
}
