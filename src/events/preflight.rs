//! The automatic quality checks of a release that is held back before its review.

use schemars::JsonSchema;
use serde::Serialize;

use super::row::{Transition, owner_of};
use super::value::{Time, schema_of, to_json};
use super::{Derived, Fact, Facts, Rule, Verdict};
use crate::domain::change::Change;
use crate::domain::event::{Addon, EventKind};
use crate::domain::table::{Table, preflight_report};

pub(super) static REPORT_READY: Rule = Rule {
    kind: EventKind::ReleasePreflightReportReady,
    description: "The Preflight QC report of a release on the pre-review hold can be fetched. Needs the Preflight QC add-on.",
    requires_addon: Some(Addon::PreflightQc),
    table: Table::PreflightReport,
    derive: report_ready,
    schema: schema_of::<ReportReady>,
    example: || {
        to_json(&ReportReady {
            release_id: 20_417,
            label_id: 311,
            release_cat: Some("NLR-0042".into()),
            release_title: Some("Northern Lights".into()),
            generated_at: Time::parse("2026-03-01T09:05:00.123456Z").expect("a constant time"),
            profile: Profile { name: "default".into(), version: 3 },
            counts: Counts { blocking: 1, informational: 4, requires_feedback: 2 },
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct ReportReady {
    /// The release that was checked.
    release_id: i64,
    /// The label that owns it.
    label_id: i64,
    /// Its catalogue reference.
    release_cat: Option<String>,
    /// Its title.
    release_title: Option<String>,
    /// When the checks were through; the quality report itself has the same time.
    generated_at: Time,
    /// The quality profile behind the counts.
    profile: Profile,
    /// How many findings there are.
    counts: Counts,
}

#[derive(Serialize, JsonSchema)]
struct Profile {
    name: String,
    version: i64,
}

#[derive(Serialize, JsonSchema)]
struct Counts {
    /// Findings that keep the release from review.
    blocking: i64,
    /// Findings for information.
    informational: i64,
    /// Findings to answer. They are among the other two counts as well.
    requires_feedback: i64,
}

fn report_ready(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let generated = Transition::of(change, preflight_report::generated_at).filter(|moved| moved.to.is_some());
    let Some(row) = generated else { return Ok(Verdict::Nothing) };
    let release_id = row.parent(preflight_report::release_id, "preflight_report_without_release")?;
    let release = facts.release(release_id)?;
    if !release.pre_review_hold {
        return Ok(Verdict::Nothing);
    }
    let owner = owner_of(release.label_id, facts)?;
    if !facts.has_addon(&owner, Addon::PreflightQc)? {
        return Ok(Verdict::Nothing);
    }
    let data = ReportReady {
        release_id,
        label_id: release.label_id,
        release_cat: release.cat.clone(),
        release_title: release.title.clone(),
        generated_at: row.time(preflight_report::generated_at)?,
        profile: Profile {
            name: row.required(preflight_report::profile_name)?.to_owned(),
            version: row.integer(preflight_report::profile_version)?,
        },
        counts: Counts {
            blocking: row.integer(preflight_report::blocking)?,
            informational: row.integer(preflight_report::informational)?,
            requires_feedback: row.integer(preflight_report::requires_feedback)?,
        },
    };
    Ok(Verdict::Raise(Derived::new(owner, &data)))
}

#[cfg(test)]
mod tests {
    use super::super::Halt;
    use super::super::testing::{FakeFacts, insert, moved, tuple, user, with};
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
    fn a_report_is_ready_when_it_has_been_generated_or_generated_anew() {
        let expected = r#"{"release_id":10,"label_id":1,"release_cat":"CAT-10","release_title":"Title 10","generated_at":"2026-03-01T09:05:00.123000+00:00","profile":{"name":"strict","version":3},"counts":{"blocking":1,"informational":4,"requires_feedback":2}}"#;
        for change in [
            insert(TABLE, report()),
            moved(TABLE, &report(), "generated_at", None),
            moved(TABLE, &report(), "generated_at", Some("2026-02-28 09:05:00+00")),
        ] {
            let derived = FakeFacts::default().raised(KIND, &change);
            assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
            assert_eq!(derived.data, expected);
        }
    }

    #[test]
    fn a_report_that_is_not_generated_or_stays_as_it_is_raises_nothing_and_asks_for_nothing() {
        let facts = FakeFacts::default();
        let pending = with(TABLE, &report(), "generated_at", None);
        for change in [
            insert(TABLE, pending.clone()),
            moved(TABLE, &pending, "generated_at", Some("2026-02-28 09:05:00+00")),
            moved(TABLE, &report(), "blocking", Some("9")),
        ] {
            assert_eq!(facts.derive(KIND, &change), Ok(Verdict::Nothing), "{change:?}");
        }
        assert_eq!(facts.lookups(), 0);
    }

    #[test]
    fn only_a_release_on_hold_of_an_owner_with_the_addon_raises() {
        let off_hold = insert(TABLE, with(TABLE, &report(), "release_id", Some("11")));
        assert_eq!(FakeFacts::default().derive(KIND, &off_hold), Ok(Verdict::Nothing));
        let facts = FakeFacts::default();
        facts.without_addons.set(true);
        assert_eq!(facts.derive(KIND, &insert(TABLE, report())), Ok(Verdict::Nothing));
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_label() {
        let of_release = |release: Option<&str>| {
            FakeFacts::default().derive(KIND, &insert(TABLE, with(TABLE, &report(), "release_id", release)))
        };
        assert!(matches!(of_release(Some("20")), Ok(Verdict::Raise(derived)) if derived.owner == user("bob")));
        assert_eq!(of_release(Some("30")), Err(Halt::Unrouted("label_without_user")));
        assert_eq!(of_release(None), Err(Halt::Unrouted("preflight_report_without_release")));
    }

    #[test]
    fn rows_that_are_not_what_they_should_be_are_reported() {
        for (column, value) in [
            ("generated_at", Some("infinity")),
            ("profile_name", None),
            ("profile_version", Some("3.1")),
            ("blocking", None),
            ("informational", Some("many")),
            ("requires_feedback", None),
        ] {
            let end = FakeFacts::default().derive(KIND, &insert(TABLE, with(TABLE, &report(), column, value)));
            assert!(matches!(end, Err(Halt::Malformed(_))), "{column}: {end:?}");
        }
    }
}
