//! Preflight QC: the automatic quality checks of a release that is held back before its review.

use schemars::JsonSchema;
use serde::Serialize;

use super::row::{Transition, owner_of, require};
use super::rule::{EventData, Facts, NoEvent, Owner};
use super::value::Time;
use crate::domain::change::Change;
use crate::domain::event::{Addon, EventKind};
use crate::domain::table::{Table, preflight_report};

#[derive(Serialize, JsonSchema)]
pub(super) struct ReportReady {
    /// The release that was checked.
    release_id: i64,
    /// The label that owns the release.
    label_id: i64,
    /// The release's catalogue reference.
    release_cat: Option<String>,
    /// The release's title.
    release_title: Option<String>,
    /// When the checks finished. The report itself has the same time.
    generated_at: Time,
    /// The quality profile that the release was checked against.
    profile: Profile,
    /// The numbers of findings.
    counts: FindingCounts,
}

#[derive(Serialize, JsonSchema)]
struct Profile {
    name: String,
    version: i64,
}

#[derive(Serialize, JsonSchema)]
struct FindingCounts {
    /// Findings that keep the release from review.
    blocking: i64,
    /// Findings for information.
    informational: i64,
    /// Findings that need an answer. They are included in the other two counts.
    requires_feedback: i64,
}

impl EventData for ReportReady {
    const KIND: EventKind = EventKind::ReleasePreflightReportReady;
    const DESCRIPTION: &'static str = "The Preflight QC report of a release on pre-review hold is ready. Requires the Preflight QC add-on.";
    const REQUIRES_ADDON: Option<Addon> = Some(Addon::PreflightQc);
    const TABLE: Table = Table::PreflightReport;
    const EXAMPLE: &'static str = concat!(
        r#"{"release_id":20417,"label_id":311,"release_cat":"NLR-0042","release_title":"Northern Lights","#,
        r#""generated_at":"2026-03-01T09:05:00.123456+00:00","profile":{"name":"default","version":3},"#,
        r#""counts":{"blocking":1,"informational":4,"requires_feedback":2}}"#
    );

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::of(change, preflight_report::generated_at)?;
        require(row.to.is_some())?;

        let release_id = row.parent(
            preflight_report::release_id,
            "preflight_report_without_release",
        )?;
        let release = facts.release(release_id)?;

        require(release.pre_review_hold)?;
        let owner = owner_of(release.label_id, facts)?;

        require(facts.has_addon(&owner.user, Addon::PreflightQc)?)?;

        let data = ReportReady {
            release_id,
            label_id: release.label_id,
            release_cat: release.cat.clone(),
            release_title: release.title.clone(),
            generated_at: row.required(preflight_report::generated_at)?,
            profile: Profile {
                name: row.required(preflight_report::profile_name)?,
                version: row.required(preflight_report::profile_version)?,
            },
            counts: FindingCounts {
                blocking: row.required(preflight_report::blocking)?,
                informational: row.required(preflight_report::informational)?,
                requires_feedback: row.required(preflight_report::requires_feedback)?,
            },
        };

        Ok((owner, data))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{FakeFacts, insert, moved, tuple, user, with};
    use super::*;
    use crate::domain::change::Tuple;

    const TABLE: Table = Table::PreflightReport;
    const KIND: EventKind = EventKind::ReleasePreflightReportReady;

    fn report() -> Tuple {
        let values = [
            ("id", "70"),
            ("release_id", "10"),
            ("generated_at", "2026-03-01 09:05:00.123+00"),
            ("profile_name", "strict"),
            ("profile_version", "3"),
            ("blocking", "1"),
            ("informational", "4"),
            ("requires_feedback", "2"),
        ];
        tuple(TABLE, &values)
    }

    #[test]
    fn a_report_is_ready_when_it_is_generated_or_regenerated() {
        let expected = r#"{"release_id":10,"label_id":1,"release_cat":"CAT-10","release_title":"Title 10","generated_at":"2026-03-01T09:05:00.123000+00:00","profile":{"name":"strict","version":3},"counts":{"blocking":1,"informational":4,"requires_feedback":2}}"#;

        for change in [
            insert(TABLE, report()),
            moved(TABLE, &report(), "generated_at", None),
            moved(
                TABLE,
                &report(),
                "generated_at",
                Some("2026-02-28 09:05:00+00"),
            ),
        ] {
            let derived = FakeFacts::default().raised(KIND, &change);
            assert_eq!(
                (derived.owner, derived.once_for_release),
                (user("alice"), None)
            );
            assert_eq!(derived.data, expected);
        }
    }

    #[test]
    fn other_changes_raise_nothing_and_look_nothing_up() {
        let facts = FakeFacts::default();
        let pending = with(TABLE, &report(), "generated_at", None);
        for change in [
            insert(TABLE, pending.clone()),
            moved(
                TABLE,
                &pending,
                "generated_at",
                Some("2026-02-28 09:05:00+00"),
            ),
            moved(TABLE, &report(), "blocking", Some("9")),
        ] {
            assert_eq!(
                facts.derive(KIND, &change),
                Err(NoEvent::NotApplicable),
                "{change:?}"
            );
        }

        assert_eq!(facts.lookups(), 0);
    }

    #[test]
    fn the_release_must_be_on_hold_and_its_owner_have_the_addon() {
        let off_hold = insert(TABLE, with(TABLE, &report(), "release_id", Some("11")));
        assert_eq!(
            FakeFacts::default().derive(KIND, &off_hold),
            Err(NoEvent::NotApplicable)
        );

        let facts = FakeFacts::default();
        facts.without_addons.set(true);
        assert_eq!(
            facts.derive(KIND, &insert(TABLE, report())),
            Err(NoEvent::NotApplicable)
        );
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_label() {
        let of_release = |release: Option<&str>| {
            FakeFacts::default().derive(
                KIND,
                &insert(TABLE, with(TABLE, &report(), "release_id", release)),
            )
        };

        assert!(matches!(of_release(Some("20")), Ok(derived) if derived.owner == user("bob")));
        assert_eq!(
            of_release(Some("30")),
            Err(NoEvent::Unrouted("label_without_user"))
        );
        assert_eq!(
            of_release(None),
            Err(NoEvent::Unrouted("preflight_report_without_release"))
        );
    }

    #[test]
    fn malformed_rows_are_reported() {
        for (column, value) in [
            ("generated_at", Some("infinity")),
            ("profile_name", None),
            ("profile_version", Some("3.1")),
            ("blocking", None),
            ("informational", Some("many")),
            ("requires_feedback", None),
        ] {
            let end = FakeFacts::default()
                .derive(KIND, &insert(TABLE, with(TABLE, &report(), column, value)));
            assert!(
                matches!(end, Err(NoEvent::Malformed(_))),
                "{column}: {end:?}"
            );
        }
    }
}
