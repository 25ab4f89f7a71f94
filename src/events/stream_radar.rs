//! Stream Radar: flags on recordings whose streams show a suspicious pattern.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Transition, owner_of, require, variant};
use super::rule::{EventData, Fact, Facts, NoEvent, Owner};
use super::value::{FromText, Time};
use crate::domain::change::Change;
use crate::domain::event::{Addon, EventKind};
use crate::domain::table::{Table, stream_radar_flag};

const ACTIVE: &str = "active";
const RESOLVED: &str = "resolved";

// Common to both events, before and after `status`. A doc comment would become part of each event's
// schema.
#[derive(Serialize, JsonSchema)]
struct Recording {
    /// The flag. Its id never changes.
    flag_id: i64,
    /// The streaming platform where the pattern was detected, in lower case.
    dsp: String,
    /// The recording's ISRC.
    isrc: String,
    /// The release that contains the recording.
    release_id: i64,
    /// The track; null if the ISRC does not identify exactly one of the user's tracks.
    track_id: Option<i64>,
    /// How severe the finding is.
    severity: FlagSeverity,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FlagSeverity {
    Low,
    Medium,
    High,
}

impl FromText for FlagSeverity {
    const EXPECTED: &'static str = "one of low, medium and high";

    fn from_text(text: &str) -> Option<Self> {
        variant(text)
    }
}

#[derive(Serialize, JsonSchema)]
struct Detection {
    /// When the pattern was first detected for this track on this platform.
    first_detected_at: Option<Time>,
    /// When the pattern was last detected.
    last_detected_at: Option<Time>,
    /// The estimated number of affected streams.
    estimated_affected_streams: Option<i64>,
    /// When the flag was first shown to the user.
    published_at: Time,
}

/// Reads what both events contain and looks up the owner, who must have the add-on.
fn read(row: &Transition<'_>, facts: &dyn Facts) -> Fact<(Owner, Recording, Detection)> {
    let release_id = row.parent(
        stream_radar_flag::release_id,
        "stream_radar_flag_without_release",
    )?;
    let owner = owner_of(facts.release(release_id)?.label_id, facts)?;

    require(facts.has_addon(&owner.user, Addon::StreamRadar)?)?;
    let dsp: String = row.required(stream_radar_flag::dsp)?;
    let recording = Recording {
        flag_id: row.required(stream_radar_flag::id)?,
        dsp: dsp.to_lowercase(),
        isrc: row.required(stream_radar_flag::isrc)?,
        release_id,
        track_id: row.optional(stream_radar_flag::track_id)?,
        severity: row.required(stream_radar_flag::severity)?,
    };

    let detection = Detection {
        first_detected_at: row.optional(stream_radar_flag::first_detected_at)?,
        last_detected_at: row.optional(stream_radar_flag::last_detected_at)?,
        estimated_affected_streams: row.optional(stream_radar_flag::estimated_affected_streams)?,
        published_at: row.required(stream_radar_flag::published_at)?,
    };

    Ok((owner, recording, detection))
}

/// An example of an event's data: the common fields, with the given ones between and after them.
macro_rules! example {
    ($status:literal, $resolved_at:literal) => {
        concat!(
            r#"{"flag_id":9014,"dsp":"examplemusic","isrc":"GBXYZ2600042","release_id":20417,"track_id":88120,"#,
            r#""severity":"medium","#,
            $status,
            r#","first_detected_at":"2026-02-24T00:00:00.000000+00:00","#,
            r#""last_detected_at":"2026-02-28T00:00:00.000000+00:00","estimated_affected_streams":18250,"#,
            r#""published_at":"2026-03-01T09:05:00.123456+00:00","#,
            $resolved_at,
            "}"
        )
    };
}

#[derive(Serialize, JsonSchema)]
pub(super) struct FlagCreated {
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

impl EventData for FlagCreated {
    const KIND: EventKind = EventKind::StreamRadarFlagCreated;
    const DESCRIPTION: &'static str = "Stream Radar raised a flag, or reopened a resolved one after a new detection. Requires the Stream Radar add-on.";
    const REQUIRES_ADDON: Option<Addon> = Some(Addon::StreamRadar);
    const TABLE: Table = Table::StreamRadarFlag;
    const EXAMPLE: &'static str = example!(
        r#""status":"active","transition":"published""#,
        r#""resolved_at":null"#
    );

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::to(change, stream_radar_flag::status, ACTIVE)?;

        // After any status other than `resolved`, the flag is shown to the user for the first time.
        let transition = if row.from == Some(RESOLVED) {
            Opening::Reopened
        } else {
            Opening::Published
        };

        let (owner, recording, detection) = read(&row, facts)?;
        Ok((
            owner,
            FlagCreated {
                recording,
                status: ACTIVE,
                transition,
                detection,
                resolved_at: None,
            },
        ))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct FlagResolved {
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

impl EventData for FlagResolved {
    const KIND: EventKind = EventKind::StreamRadarFlagResolved;
    const DESCRIPTION: &'static str = "Stream Radar resolved a flag because it detected nothing more. Requires the Stream Radar add-on.";
    const REQUIRES_ADDON: Option<Addon> = Some(Addon::StreamRadar);
    const TABLE: Table = Table::StreamRadarFlag;
    const EXAMPLE: &'static str = example!(
        r#""status":"resolved""#,
        r#""resolved_at":"2026-03-08T06:00:00.000000+00:00""#
    );

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::to(change, stream_radar_flag::status, RESOLVED)?;
        require(!row.inserted)?;

        if row.from != Some(ACTIVE) {
            return Err(NoEvent::ignored("unknown_flag_status", row.from));
        }

        let (owner, recording, detection) = read(&row, facts)?;

        // If the platform stores no time, this transaction resolved the flag.
        let resolved_at = row
            .optional(stream_radar_flag::resolved_at)?
            .unwrap_or(change.committed_at.into());
        Ok((
            owner,
            FlagResolved {
                recording,
                status: RESOLVED,
                detection,
                resolved_at,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{FakeFacts, insert, moved, tuple, user, with};
    use super::*;
    use crate::domain::change::Tuple;

    const TABLE: Table = Table::StreamRadarFlag;
    const CREATED: EventKind = EventKind::StreamRadarFlagCreated;
    const RESOLVED_EVENT: EventKind = EventKind::StreamRadarFlagResolved;

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

    const HEAD: &str = r#"{"flag_id":50,"dsp":"examplemusic","isrc":"GBXYZ2600042","release_id":10,"track_id":100,"severity":"high""#;
    const TAIL: &str = r#""first_detected_at":"2026-02-24T00:00:00.000000+00:00","last_detected_at":"2026-02-28T00:00:00.000000+00:00","estimated_affected_streams":5000000000,"published_at":"2026-03-01T09:05:00.123456+00:00""#;

    #[test]
    fn publishing_and_reopening_a_flag_raise_an_event() {
        for (change, transition) in [
            (insert(TABLE, flag("active")), "published"),
            (moved(TABLE, &flag("active"), "status", None), "published"),
            (
                moved(TABLE, &flag("active"), "status", Some("pending")),
                "published",
            ),
            (
                moved(TABLE, &flag("active"), "status", Some("resolved")),
                "reopened",
            ),
        ] {
            let derived = FakeFacts::default().raised(CREATED, &change);
            assert_eq!(
                (derived.owner, derived.once_for_release),
                (user("alice"), None)
            );
            let expected = format!(
                r#"{HEAD},"status":"active","transition":"{transition}",{TAIL},"resolved_at":null}}"#
            );
            assert_eq!(derived.data, expected);
            assert_eq!(
                FakeFacts::default().derive(RESOLVED_EVENT, &change),
                Err(NoEvent::NotApplicable)
            );
        }
    }

    #[test]
    fn resolving_an_active_flag_raises_an_event() {
        let change = moved(TABLE, &flag("resolved"), "status", Some("active"));
        let derived = FakeFacts::default().raised(RESOLVED_EVENT, &change);

        assert_eq!(
            (derived.owner, derived.once_for_release),
            (user("alice"), None)
        );
        let expected = format!(
            r#"{HEAD},"status":"resolved",{TAIL},"resolved_at":"2026-03-08T06:00:00.500000+00:00"}}"#
        );

        assert_eq!(derived.data, expected);
        assert_eq!(
            FakeFacts::default().derive(CREATED, &change),
            Err(NoEvent::NotApplicable)
        );

        let elsewhere = moved(TABLE, &flag("resolved"), "status", Some("pending"));
        let end = FakeFacts::default().derive(RESOLVED_EVENT, &elsewhere);
        assert_eq!(
            end,
            Err(NoEvent::ignored("unknown_flag_status", Some("pending")))
        );
    }

    #[test]
    fn without_a_stored_time_a_flag_is_resolved_at_the_commit() {
        let row = with(TABLE, &flag("resolved"), "resolved_at", None);
        let data = FakeFacts::default()
            .raised(
                RESOLVED_EVENT,
                &moved(TABLE, &row, "status", Some("active")),
            )
            .data;

        assert!(
            data.ends_with(r#","resolved_at":"2026-03-01T09:05:00.250000+00:00"}"#),
            "{data}"
        );
    }

    #[test]
    fn other_changes_raise_nothing_and_look_nothing_up() {
        let facts = FakeFacts::default();

        for change in [
            insert(TABLE, flag("resolved")),
            insert(TABLE, flag("pending")),
            moved(TABLE, &flag("active"), "severity", Some("low")),
            moved(TABLE, &flag("resolved"), "severity", Some("low")),
        ] {
            for kind in [CREATED, RESOLVED_EVENT] {
                assert_eq!(
                    facts.derive(kind, &change),
                    Err(NoEvent::NotApplicable),
                    "{kind}: {change:?}"
                );
            }
        }

        assert_eq!(facts.lookups(), 0);
    }

    #[test]
    fn owners_without_the_addon_get_no_events() {
        let facts = FakeFacts::default();
        facts.without_addons.set(true);
        assert_eq!(
            facts.derive(CREATED, &insert(TABLE, flag("active"))),
            Err(NoEvent::NotApplicable)
        );

        let resolved = moved(TABLE, &flag("resolved"), "status", Some("active"));
        assert_eq!(
            facts.derive(RESOLVED_EVENT, &resolved),
            Err(NoEvent::NotApplicable)
        );
    }

    #[test]
    fn nulls_in_rows_become_nulls_in_the_data() {
        let mut row = flag("active");

        for column in [
            "track_id",
            "first_detected_at",
            "last_detected_at",
            "estimated_affected_streams",
        ] {
            row = with(TABLE, &row, column, None);
        }

        let data = FakeFacts::default()
            .raised(CREATED, &insert(TABLE, row))
            .data;
        assert!(data.contains(r#""track_id":null,"severity""#), "{data}");

        let times = r#""first_detected_at":null,"last_detected_at":null,"estimated_affected_streams":null,"published_at":""#;
        assert!(data.contains(times), "{data}");
    }

    #[test]
    fn the_owner_is_the_owner_of_the_releases_label() {
        let of_release = |release: Option<&str>| {
            FakeFacts::default().derive(
                CREATED,
                &insert(TABLE, with(TABLE, &flag("active"), "release_id", release)),
            )
        };

        assert!(matches!(of_release(Some("20")), Ok(derived) if derived.owner == user("bob")));
        assert_eq!(
            of_release(Some("30")),
            Err(NoEvent::Unrouted("label_without_user"))
        );
        assert_eq!(
            of_release(None),
            Err(NoEvent::Unrouted("stream_radar_flag_without_release"))
        );
    }

    #[test]
    fn malformed_rows_are_reported() {
        for (column, value) in [
            ("dsp", None),
            ("isrc", None),
            ("severity", None),
            ("severity", Some("dire")),
            ("track_id", Some("x")),
            ("published_at", None),
            ("first_detected_at", Some("-infinity")),
        ] {
            let end = FakeFacts::default().derive(
                CREATED,
                &insert(TABLE, with(TABLE, &flag("active"), column, value)),
            );
            assert!(
                matches!(end, Err(NoEvent::Malformed(_))),
                "{column}: {end:?}"
            );
        }
    }
}
