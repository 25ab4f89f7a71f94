//! Flags on recordings whose streams show a suspicious pattern.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Row, Transition, owner_of};
use super::value::{Time, schema_of, to_json};
use super::{Derived, Fact, Facts, Rule, Verdict};
use crate::domain::change::Change;
use crate::domain::event::{Addon, EventKind, UserId};
use crate::domain::table::{Table, stream_radar_flag};

const ACTIVE: &str = "active";
const RESOLVED: &str = "resolved";

// The two halves that both events share. A doc comment would become the description of each one's schema.
#[derive(Serialize, JsonSchema)]
struct Recording {
    /// The flag, by an id that stays the same for its life.
    flag_id: i64,
    /// The platform where the pattern was seen, in lower case.
    dsp: String,
    /// The recording's ISRC.
    isrc: String,
    /// The release that the recording is on.
    release_id: i64,
    /// The track, where the ISRC stands for exactly one of the user's tracks.
    track_id: Option<i64>,
    /// How grave it is.
    severity: Severity,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Low,
    Medium,
    High,
}

#[derive(Serialize, JsonSchema)]
struct Detection {
    /// When the pattern was first seen for this track on this platform.
    first_detected_at: Option<Time>,
    /// When it was last seen.
    last_detected_at: Option<Time>,
    /// About how many streams are concerned.
    estimated_affected_streams: Option<i64>,
    /// When the flag was first shown to the user.
    published_at: Time,
}

impl Recording {
    fn read(row: &Row<'_>, release_id: i64) -> Fact<Self> {
        Ok(Recording {
            flag_id: row.integer(stream_radar_flag::id)?,
            dsp: row.required(stream_radar_flag::dsp)?.to_lowercase(),
            isrc: row.required(stream_radar_flag::isrc)?.to_owned(),
            release_id,
            track_id: row.optional_integer(stream_radar_flag::track_id)?,
            severity: row.word(stream_radar_flag::severity)?,
        })
    }

    fn example() -> Self {
        Recording {
            flag_id: 9_014,
            dsp: "examplemusic".into(),
            isrc: "GBXYZ2600042".into(),
            release_id: 20_417,
            track_id: Some(88_120),
            severity: Severity::Medium,
        }
    }
}

impl Detection {
    fn read(row: &Row<'_>) -> Fact<Self> {
        Ok(Detection {
            first_detected_at: row.optional_time(stream_radar_flag::first_detected_at)?,
            last_detected_at: row.optional_time(stream_radar_flag::last_detected_at)?,
            estimated_affected_streams: row.optional_integer(stream_radar_flag::estimated_affected_streams)?,
            published_at: row.time(stream_radar_flag::published_at)?,
        })
    }

    fn example() -> Self {
        Detection {
            first_detected_at: Time::parse("2026-02-24T00:00:00Z"),
            last_detected_at: Time::parse("2026-02-28T00:00:00Z"),
            estimated_affected_streams: Some(18_250),
            published_at: Time::parse("2026-03-01T09:05:00.123456Z").expect("a constant time"),
        }
    }
}

/// Finds whom to tell about the flag's release; nobody whose account lacks the add-on.
fn subscriber(row: &Row<'_>, facts: &dyn Facts) -> Fact<Option<(UserId, i64)>> {
    let release_id = row.parent(stream_radar_flag::release_id, "stream_radar_flag_without_release")?;
    let owner = owner_of(facts.release(release_id)?.label_id, facts)?;
    let entitled = facts.has_addon(&owner, Addon::StreamRadar)?;
    Ok(entitled.then_some((owner, release_id)))
}

pub(super) static FLAG_CREATED: Rule = Rule {
    kind: EventKind::StreamRadarFlagCreated,
    description: "Stream Radar raised a flag, or opened a resolved one again after a new detection. Needs the Stream Radar add-on.",
    requires_addon: Some(Addon::StreamRadar),
    table: Table::StreamRadarFlag,
    derive: flag_created,
    schema: schema_of::<FlagCreated>,
    example: || {
        to_json(&FlagCreated {
            recording: Recording::example(),
            status: ACTIVE,
            transition: Opening::Published,
            detection: Detection::example(),
            resolved_at: None,
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct FlagCreated {
    #[serde(flatten)]
    recording: Recording,
    /// The flag's status.
    #[schemars(extend("const" = ACTIVE))]
    status: &'static str,
    /// Whether the flag is new or was resolved before.
    transition: Opening,
    #[serde(flatten)]
    detection: Detection,
    /// Null while the flag is active.
    resolved_at: Option<Time>,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Opening {
    Published,
    Reopened,
}

fn flag_created(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let moved = Transition::to(change, stream_radar_flag::status, ACTIVE);
    let Some(moved) = moved else { return Ok(Verdict::Nothing) };
    let Some((owner, release_id)) = subscriber(&moved, facts)? else { return Ok(Verdict::Nothing) };
    let data = FlagCreated {
        recording: Recording::read(&moved, release_id)?,
        status: ACTIVE,
        // Whatever a platform has before `active`, the user sees the flag for the first time now.
        transition: if moved.from == Some(RESOLVED) { Opening::Reopened } else { Opening::Published },
        detection: Detection::read(&moved)?,
        resolved_at: None,
    };
    Ok(Verdict::Raise(Derived::new(owner, &data)))
}

pub(super) static FLAG_RESOLVED: Rule = Rule {
    kind: EventKind::StreamRadarFlagResolved,
    description: "Stream Radar resolved a flag because nothing more was detected. Needs the Stream Radar add-on.",
    requires_addon: Some(Addon::StreamRadar),
    table: Table::StreamRadarFlag,
    derive: flag_resolved,
    schema: schema_of::<FlagResolved>,
    example: || {
        to_json(&FlagResolved {
            recording: Recording::example(),
            status: RESOLVED,
            detection: Detection::example(),
            resolved_at: Time::parse("2026-03-08T06:00:00Z").expect("a constant time"),
        })
    },
};

#[derive(Serialize, JsonSchema)]
struct FlagResolved {
    #[serde(flatten)]
    recording: Recording,
    /// The flag's status.
    #[schemars(extend("const" = RESOLVED))]
    status: &'static str,
    #[serde(flatten)]
    detection: Detection,
    /// When the flag was resolved.
    resolved_at: Time,
}

fn flag_resolved(change: &Change, facts: &dyn Facts) -> Fact<Verdict> {
    let moved = Transition::to(change, stream_radar_flag::status, RESOLVED).filter(|moved| !moved.inserted);
    let Some(moved) = moved else { return Ok(Verdict::Nothing) };
    if moved.from != Some(ACTIVE) {
        return Ok(Verdict::Ignored("unknown_flag_status"));
    }
    let Some((owner, release_id)) = subscriber(&moved, facts)? else { return Ok(Verdict::Nothing) };
    // A platform that does not note the time resolves the flag by this very transaction.
    let resolved_at = moved.optional_time(stream_radar_flag::resolved_at)?.unwrap_or(change.committed_at.into());
    let data = FlagResolved {
        recording: Recording::read(&moved, release_id)?,
        status: RESOLVED,
        detection: Detection::read(&moved)?,
        resolved_at,
    };
    Ok(Verdict::Raise(Derived::new(owner, &data)))
}

#[cfg(test)]
mod tests {
    use super::super::Halt;
    use super::super::testing::{FakeFacts, insert, moved, tuple, user, with};
    use super::*;
    use crate::domain::change::Tuple;

    const TABLE: Table = Table::StreamRadarFlag;
    const CREATED: EventKind = EventKind::StreamRadarFlagCreated;
    const CLEARED: EventKind = EventKind::StreamRadarFlagResolved;

    fn flag(status: &str) -> Tuple {
        let values = [
            ("id", "50"),
            ("dsp", "ExampleMusic"),
            ("isrc", "GBXYZ2600042"),
            ("release_id", "10"),
            ("track_id", "100"),
            ("severity", "high"),
            ("status", status),
            ("first_detected_at", "2026-02-24 00:00:00+00"),
            ("last_detected_at", "2026-02-28 05:30:00+05:30"),
            ("estimated_affected_streams", "5000000000"),
            ("published_at", "2026-03-01 09:05:00.123456+00"),
            ("resolved_at", "2026-03-08 06:00:00.5+00"),
        ];
        tuple(TABLE, &values)
    }

    const HEAD: &str =
        r#"{"flag_id":50,"dsp":"examplemusic","isrc":"GBXYZ2600042","release_id":10,"track_id":100,"severity":"high""#;
    const TAIL: &str = r#""first_detected_at":"2026-02-24T00:00:00.000000+00:00","last_detected_at":"2026-02-28T00:00:00.000000+00:00","estimated_affected_streams":5000000000,"published_at":"2026-03-01T09:05:00.123456+00:00""#;

    #[test]
    fn a_flag_is_created_when_it_is_published_and_when_it_reopens() {
        for (change, transition) in [
            (insert(TABLE, flag("active")), "published"),
            (moved(TABLE, &flag("active"), "status", None), "published"),
            (moved(TABLE, &flag("active"), "status", Some("pending")), "published"),
            (moved(TABLE, &flag("active"), "status", Some("resolved")), "reopened"),
        ] {
            let derived = FakeFacts::default().raised(CREATED, &change);
            assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
            let expected =
                format!(r#"{HEAD},"status":"active","transition":"{transition}",{TAIL},"resolved_at":null}}"#);
            assert_eq!(derived.data, expected);
            assert_eq!(FakeFacts::default().derive(CLEARED, &change), Ok(Verdict::Nothing));
        }
    }

    #[test]
    fn a_flag_resolves_when_it_was_active() {
        let change = moved(TABLE, &flag("resolved"), "status", Some("active"));
        let derived = FakeFacts::default().raised(CLEARED, &change);
        assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
        let expected =
            format!(r#"{HEAD},"status":"resolved",{TAIL},"resolved_at":"2026-03-08T06:00:00.500000+00:00"}}"#);
        assert_eq!(derived.data, expected);
        assert_eq!(FakeFacts::default().derive(CREATED, &change), Ok(Verdict::Nothing));

        let elsewhere = moved(TABLE, &flag("resolved"), "status", Some("pending"));
        let end = FakeFacts::default().derive(CLEARED, &elsewhere);
        assert_eq!(end, Ok(Verdict::Ignored("unknown_flag_status")));
    }

    #[test]
    fn a_platform_that_notes_no_time_resolves_by_its_commit() {
        let row = with(TABLE, &flag("resolved"), "resolved_at", None);
        let data = FakeFacts::default().raised(CLEARED, &moved(TABLE, &row, "status", Some("active"))).data;
        assert!(data.ends_with(r#","resolved_at":"2026-03-01T09:05:00.250000+00:00"}"#), "{data}");
    }

    #[test]
    fn what_is_no_transition_raises_nothing_and_asks_for_nothing() {
        let facts = FakeFacts::default();
        for change in [
            insert(TABLE, flag("resolved")),
            insert(TABLE, flag("pending")),
            moved(TABLE, &flag("active"), "severity", Some("low")),
            moved(TABLE, &flag("resolved"), "severity", Some("low")),
        ] {
            for kind in [CREATED, CLEARED] {
                assert_eq!(facts.derive(kind, &change), Ok(Verdict::Nothing), "{kind}: {change:?}");
            }
        }
        assert_eq!(facts.lookups(), 0);
    }

    #[test]
    fn nobody_without_the_addon_is_told() {
        let facts = FakeFacts::default();
        facts.without_addons.set(true);
        assert_eq!(facts.derive(CREATED, &insert(TABLE, flag("active"))), Ok(Verdict::Nothing));
        let resolved = moved(TABLE, &flag("resolved"), "status", Some("active"));
        assert_eq!(facts.derive(CLEARED, &resolved), Ok(Verdict::Nothing));
    }

    #[test]
    fn what_may_be_null_is() {
        let mut row = flag("active");
        for column in ["track_id", "first_detected_at", "last_detected_at", "estimated_affected_streams"] {
            row = with(TABLE, &row, column, None);
        }
        let data = FakeFacts::default().raised(CREATED, &insert(TABLE, row)).data;
        assert!(data.contains(r#""track_id":null,"severity""#), "{data}");
        let times =
            r#""first_detected_at":null,"last_detected_at":null,"estimated_affected_streams":null,"published_at":""#;
        assert!(data.contains(times), "{data}");
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_label() {
        let of_release = |release: Option<&str>| {
            FakeFacts::default().derive(CREATED, &insert(TABLE, with(TABLE, &flag("active"), "release_id", release)))
        };
        assert!(matches!(of_release(Some("20")), Ok(Verdict::Raise(derived)) if derived.owner == user("bob")));
        assert_eq!(of_release(Some("30")), Err(Halt::Unrouted("label_without_user")));
        assert_eq!(of_release(None), Err(Halt::Unrouted("stream_radar_flag_without_release")));
    }

    #[test]
    fn rows_that_are_not_what_they_should_be_are_reported() {
        for (column, value) in [
            ("dsp", None),
            ("isrc", None),
            ("severity", None),
            ("severity", Some("dire")),
            ("track_id", Some("x")),
            ("published_at", None),
            ("first_detected_at", Some("-infinity")),
        ] {
            let end = FakeFacts::default().derive(CREATED, &insert(TABLE, with(TABLE, &flag("active"), column, value)));
            assert!(matches!(end, Err(Halt::Malformed(_))), "{column}: {end:?}");
        }
    }
}
