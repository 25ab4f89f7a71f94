//! A release under review, and a release that has reached its outlets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Row, Transition, owner_of, word};
use super::value::{Issues, schema_of, to_json};
use super::{Derived, Fact, Facts, Rule, Verdict};
use crate::domain::change::Change;
use crate::domain::event::{EventKind, UserId};
use crate::domain::table::{Table, release};

const DISTRIBUTED: &str = "distributed";

// What both events tell. A doc comment would become the description of each one's schema.
#[derive(Serialize, JsonSchema)]
struct Identity {
    /// The release.
    release_id: i64,
    /// The label that owns it.
    label_id: i64,
    /// Its catalogue reference.
    release_cat: Option<String>,
    /// Its title.
    release_title: Option<String>,
}

impl Identity {
    /// Reads the release and finds whom to tell.
    fn read(row: &Row<'_>, facts: &dyn Facts) -> Fact<(UserId, Identity)> {
        let label_id = row.parent(release::label_id, "release_without_label")?;
        let owner = owner_of(label_id, facts)?;
        let identity = Identity {
            release_id: row.integer(release::id)?,
            label_id,
            release_cat: row.optional(release::cat)?.map(str::to_owned),
            release_title: row.optional(release::title)?.map(str::to_owned),
        };
        Ok((owner, identity))
    }

    fn example() -> Self {
        Identity {
            release_id: 20_417,
            label_id: 311,
            release_cat: Some("NLR-0042".into()),
            release_title: Some("Northern Lights".into()),
        }
    }
}

pub(super) static REVIEW_STATUS_CHANGED: Rule = Rule {
    kind: EventKind::ReleaseReviewStatusChanged,
    description: "A release moved from one review status to another.",
    requires_addon: None,
    table: Table::Release,
    derive: review_status_changed,
    schema: schema_of::<ReviewStatusChanged>,
    example: || {
        to_json(&ReviewStatusChanged {
            identity: Identity::example(),
            previous_status: ReviewStatus::ToReview,
            new_status: ReviewStatus::RequireChanges,
            review_issues: Issues::parse(Some(r#"[{"code":"artwork_blurred","message":"The cover is out of focus"}]"#)),
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct ReviewStatusChanged {
    #[serde(flatten)]
    identity: Identity,
    /// Where the review stood before.
    previous_status: ReviewStatus,
    /// Where it stands now.
    new_status: ReviewStatus,
    /// What needs attention. The key is there when changes are required and when the release is rejected, and only then.
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

impl ReviewStatus {
    const fn has_issues(self) -> bool {
        matches!(self, ReviewStatus::RequireChanges | ReviewStatus::Rejected)
    }
}

fn review_status_changed(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let moved = Transition::of(change, release::review_status).filter(|moved| !moved.inserted);
    let Some(moved) = moved else { return Ok(Verdict::Nothing) };
    let statuses = moved.from.and_then(word::<ReviewStatus>).zip(moved.to.and_then(word::<ReviewStatus>));
    let Some((previous_status, new_status)) = statuses else { return Ok(Verdict::Ignored("unknown_review_status")) };
    let (owner, identity) = Identity::read(&moved, facts)?;
    let review_issues = new_status.has_issues().then(|| {
        let issues = Issues::parse(moved.optional(release::review_issues)?);
        issues.ok_or_else(|| moved.malformed(release::review_issues, "no JSON"))
    });
    let data = ReviewStatusChanged { identity, previous_status, new_status, review_issues: review_issues.transpose()? };
    Ok(Verdict::Raise(Derived::new(owner, &data)))
}

pub(super) static RELEASE_DISTRIBUTED: Rule = Rule {
    kind: EventKind::ReleaseDistributed,
    description: "A release has become distributed: raised once for each release, however often it is saved afterwards.",
    requires_addon: None,
    table: Table::Release,
    derive: release_distributed,
    schema: schema_of::<ReleaseDistributed>,
    example: || to_json(&ReleaseDistributed { identity: Identity::example(), delivery_status: DISTRIBUTED }),
};

#[derive(Serialize, JsonSchema)]
struct ReleaseDistributed {
    #[serde(flatten)]
    identity: Identity,
    /// The delivery state that the release moved into.
    #[schemars(extend("const" = DISTRIBUTED))]
    delivery_status: &'static str,
}

fn release_distributed(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let moved = Transition::to(change, release::delivery_status, DISTRIBUTED);
    let Some(moved) = moved else { return Ok(Verdict::Nothing) };
    let (owner, identity) = Identity::read(&moved, facts)?;
    let release = identity.release_id;
    let derived = Derived::new(owner, &ReleaseDistributed { identity, delivery_status: DISTRIBUTED });
    Ok(Verdict::Raise(Derived { once_for_release: Some(release), ..derived }))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeFacts, insert, moved, tuple, update, user, with};
    use super::super::{Halt, LookupKey};
    use super::*;
    use crate::domain::change::{Datum, Tuple};

    const TABLE: Table = Table::Release;
    const STATUSES: [&str; 6] = ["draft", "to_review", "approved", "rejected", "require_changes", "audit"];
    const REVIEW: EventKind = EventKind::ReleaseReviewStatusChanged;
    const DISTRIBUTED_EVENT: EventKind = EventKind::ReleaseDistributed;

    fn release(review: &str, delivery: &str) -> Tuple {
        let values = [("id", "10"), ("label_id", "1"), ("cat", "CAT-10"), ("title", "Title 10")];
        tuple(TABLE, &[values.as_slice(), &[("review_status", review), ("delivery_status", delivery)]].concat())
    }

    fn review(from: &str, to: &str) -> Change {
        moved(TABLE, &release(to, "none"), "review_status", Some(from))
    }

    #[test]
    fn every_move_between_the_six_review_statuses_raises() {
        for from in STATUSES {
            for to in STATUSES {
                let facts = FakeFacts::default();
                if from == to {
                    assert_eq!(facts.derive(REVIEW, &review(from, to)), Ok(Verdict::Nothing));
                    continue;
                }
                let derived = facts.raised(REVIEW, &review(from, to));
                assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
                let issues = if ["require_changes", "rejected"].contains(&to) { r#","review_issues":[]"# } else { "" };
                let expected = format!(
                    r#"{{"release_id":10,"label_id":1,"release_cat":"CAT-10","release_title":"Title 10","previous_status":"{from}","new_status":"{to}"{issues}}}"#
                );
                assert_eq!(derived.data, expected);
            }
        }
    }

    #[test]
    fn issues_go_out_byte_for_byte_on_their_two_transitions_only() {
        let issues = r#"[{"code": "artwork", "at": 1.50, "note": "caf\u00e9 \"x\""}]"#;
        for (to, present) in [("require_changes", true), ("rejected", true), ("approved", false), ("audit", false)] {
            let row = with(TABLE, &release(to, "none"), "review_issues", Some(issues));
            let change = moved(TABLE, &row, "review_status", Some("to_review"));
            let data = FakeFacts::default().raised(REVIEW, &change).data;
            assert_eq!(data.ends_with(&format!(r#","review_issues":{issues}}}"#)), present, "{to}: {data}");
            assert_eq!(data.contains("review_issues"), present, "{to}: {data}");
        }
        for nothing in [Datum::Null, Datum::text("null")] {
            let mut row = release("rejected", "none");
            row.set(release::review_issues, nothing);
            let change = moved(TABLE, &row, "review_status", Some("to_review"));
            assert!(FakeFacts::default().raised(REVIEW, &change).data.ends_with(r#","review_issues":[]}"#));
        }
        let mut unsent = release("rejected", "none");
        unsent.set(release::review_issues, Datum::Absent);
        let end = FakeFacts::default().derive(REVIEW, &moved(TABLE, &unsent, "review_status", Some("to_review")));
        assert_eq!(end, Err(Halt::Lookup(LookupKey::Row(TABLE, 10))), "long issues are read, not taken for none");
        let garbled = with(TABLE, &release("rejected", "none"), "review_issues", Some("[{"));
        let end = FakeFacts::default().derive(REVIEW, &moved(TABLE, &garbled, "review_status", Some("draft")));
        assert!(matches!(end, Err(Halt::Malformed(_))), "{end:?}");
    }

    #[test]
    fn review_statuses_that_nobody_defined_are_counted_and_raise_nothing() {
        let facts = FakeFacts::default();
        let null = || moved(TABLE, &release("draft", "none"), "review_status", None);
        for change in [review("draft", "limbo"), review("limbo", "draft"), review("draft", "Approved"), null()] {
            assert_eq!(facts.derive(REVIEW, &change), Ok(Verdict::Ignored("unknown_review_status")));
        }
        assert_eq!(facts.lookups(), 0);
    }

    #[test]
    fn a_new_release_has_not_moved_in_review() {
        let facts = FakeFacts::default();
        for status in STATUSES {
            assert_eq!(facts.derive(REVIEW, &insert(TABLE, release(status, "none"))), Ok(Verdict::Nothing));
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
            assert_eq!((derived.owner, derived.once_for_release), (user("alice"), Some(10)));
            assert_eq!(derived.data, expected);
        }
        let facts = FakeFacts::default();
        for change in [
            moved(TABLE, &row, "title", Some("Before")),
            moved(TABLE, &release("approved", "pending"), "delivery_status", Some("distributed")),
            insert(TABLE, release("approved", "pending")),
        ] {
            assert_eq!(facts.derive(DISTRIBUTED_EVENT, &change), Ok(Verdict::Nothing), "{change:?}");
        }
    }

    #[test]
    fn the_two_statuses_move_independently() {
        let old = release("to_review", "pending");
        let facts = FakeFacts::default();
        let both = update(TABLE, Some(old.clone()), release("approved", "distributed"));
        facts.raised(REVIEW, &both);
        facts.raised(DISTRIBUTED_EVENT, &both);
        let one = update(TABLE, Some(old), release("to_review", "distributed"));
        assert_eq!(facts.derive(REVIEW, &one), Ok(Verdict::Nothing));
        facts.raised(DISTRIBUTED_EVENT, &one);
    }

    #[test]
    fn the_owner_is_the_owner_of_the_label_that_the_release_now_has() {
        let of_label = |label: Option<&str>| {
            let old = release("draft", "none");
            let new = with(TABLE, &release("to_review", "distributed"), "label_id", label);
            let change = update(TABLE, Some(old), new);
            [REVIEW, DISTRIBUTED_EVENT].map(|kind| FakeFacts::default().derive(kind, &change))
        };
        for end in of_label(Some("2")) {
            assert!(matches!(end, Ok(Verdict::Raise(derived)) if derived.owner == user("bob")));
        }
        for end in of_label(Some("3")) {
            assert_eq!(end, Err(Halt::Unrouted("label_without_user")));
        }
        for end in of_label(None) {
            assert_eq!(end, Err(Halt::Unrouted("release_without_label")));
        }
    }

    #[test]
    fn catalogue_reference_and_title_may_be_null() {
        let row = with(TABLE, &with(TABLE, &release("approved", "distributed"), "cat", None), "title", None);
        let data = FakeFacts::default().raised(DISTRIBUTED_EVENT, &insert(TABLE, row.clone())).data;
        assert!(data.contains(r#""release_cat":null,"release_title":null"#), "{data}");
        let change = moved(TABLE, &row, "review_status", Some("audit"));
        let data = FakeFacts::default().raised(REVIEW, &change).data;
        assert!(data.contains(r#""release_cat":null,"release_title":null"#), "{data}");
    }
}
