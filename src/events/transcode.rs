//! The transcoding of a track's audio into the files that outlets accept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Transition, owner_of, require, variant};
use super::rule::{EventData, Facts, NoEvent, Owner, TranscodedFile};
use crate::domain::change::Change;
use crate::domain::event::EventKind;
use crate::domain::table::{Table, transcoder_queue};

/// The data of both events: of `transcode.completed` if `COMPLETED`, otherwise of
/// `transcode.failed`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TranscodeEnded", description = "")]
pub(super) struct TranscodeEnded<const COMPLETED: bool> {
    /// The release that contains the track.
    release_id: i64,
    /// The label that owns the release.
    label_id: i64,
    /// The track.
    track_id: i64,
    /// The platform's queue entry for this transcode.
    transcoder_queue_id: i64,
    /// The final status of the transcode.
    status: Status,
    /// The status as a message key.
    status_message: StatusMessage,
    /// The result for each file.
    files: Vec<TranscodedFile>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    Complete,
    Error,
    Incomplete,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
enum StatusMessage {
    #[serde(rename = "transcode_complete")]
    Complete,
    #[serde(rename = "transcode_error")]
    Error,
    #[serde(rename = "transcode_incomplete")]
    Incomplete,
}

impl From<Status> for StatusMessage {
    fn from(status: Status) -> Self {
        match status {
            Status::Complete => StatusMessage::Complete,
            Status::Error => StatusMessage::Error,
            Status::Incomplete => StatusMessage::Incomplete,
        }
    }
}

/// An example of an event's data with this status of the transcode and of its second file.
macro_rules! example {
    ($status:literal, $file:literal) => {
        concat!(
            r#"{"release_id":20417,"label_id":311,"track_id":88120,"transcoder_queue_id":650233,"status":""#,
            $status,
            r#"","status_message":"transcode_"#,
            $status,
            r#"","files":[{"asset_type_id":1,"status":"complete"},{"asset_type_id":4,"status":""#,
            $file,
            r#""}]}"#
        )
    };
}

impl<const COMPLETED: bool> EventData for TranscodeEnded<COMPLETED> {
    const KIND: EventKind = if COMPLETED {
        EventKind::TranscodeCompleted
    } else {
        EventKind::TranscodeFailed
    };
    const DESCRIPTION: &'static str = if COMPLETED {
        "The audio of a track was transcoded."
    } else {
        "The audio of a track could not be transcoded completely."
    };
    const TABLE: Table = Table::TranscoderQueue;
    const EXAMPLE: &'static str = if COMPLETED {
        example!("complete", "complete")
    } else {
        example!("incomplete", "error")
    };

    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent> {
        let row = Transition::of(change, transcoder_queue::status)?;
        let status: Status = row.to.and_then(variant).ok_or(NoEvent::NotApplicable)?;

        require((status == Status::Complete) == COMPLETED)?;
        let track_id = row.parent(transcoder_queue::track_id, "transcoder_queue_without_track")?;
        let release_id = facts.track_release(track_id)?;
        let label_id = facts.release(release_id)?.label_id;
        let owner = owner_of(label_id, facts)?;
        let transcoder_queue_id = row.required(transcoder_queue::id)?;

        let data = TranscodeEnded {
            release_id,
            label_id,
            track_id,
            transcoder_queue_id,
            status,
            status_message: status.into(),
            files: facts.transcoded_files(transcoder_queue_id)?.to_vec(),
        };

        Ok((owner, data))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{FakeFacts, insert, moved, tuple, user, with};
    use super::*;
    use crate::domain::change::Tuple;

    const TABLE: Table = Table::TranscoderQueue;
    const BOTH: [EventKind; 2] = [EventKind::TranscodeCompleted, EventKind::TranscodeFailed];

    fn entry(status: &str) -> Tuple {
        tuple(
            TABLE,
            &[("id", "7"), ("track_id", "100"), ("status", status)],
        )
    }

    fn raised(change: &Change) -> Vec<EventKind> {
        let raises = |kind: &EventKind| FakeFacts::default().derive(*kind, change).is_ok();
        BOTH.into_iter().filter(raises).collect()
    }

    #[test]
    fn every_final_status_raises_one_event_with_the_files() {
        for (status, kind) in [
            ("complete", EventKind::TranscodeCompleted),
            ("error", EventKind::TranscodeFailed),
            ("incomplete", EventKind::TranscodeFailed),
        ] {
            let expected = format!(
                r#"{{"release_id":10,"label_id":1,"track_id":100,"transcoder_queue_id":7,"status":"{status}","status_message":"transcode_{status}","files":[{{"asset_type_id":4,"status":"complete"}},{{"asset_type_id":2,"status":"error"}}]}}"#
            );
            for change in [
                insert(TABLE, entry(status)),
                moved(TABLE, &entry(status), "status", Some("running")),
            ] {
                let derived = FakeFacts::default().raised(kind, &change);
                assert_eq!(
                    (derived.owner, derived.once_for_release),
                    (user("alice"), None)
                );
                assert_eq!(derived.data, expected);
                assert_eq!(raised(&change), [kind]);
            }
        }
    }

    #[test]
    fn a_transcode_may_have_no_files() {
        let change = insert(TABLE, with(TABLE, &entry("error"), "id", Some("8")));
        assert!(
            FakeFacts::default()
                .raised(EventKind::TranscodeFailed, &change)
                .data
                .ends_with(r#","files":[]}"#)
        );
    }

    #[test]
    fn only_a_change_into_a_final_status_raises_an_event() {
        let facts = FakeFacts::default();
        assert_eq!(
            raised(&moved(TABLE, &entry("incomplete"), "status", Some("error"))),
            [EventKind::TranscodeFailed]
        );

        for change in [
            insert(TABLE, entry("running")),
            moved(TABLE, &entry("running"), "status", Some("error")),
            moved(TABLE, &entry("complete"), "track_id", Some("200")),
            insert(TABLE, with(TABLE, &entry("complete"), "status", None)),
        ] {
            for kind in BOTH {
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
    fn the_owner_is_the_owner_of_the_tracks_label() {
        let of_track = |track: Option<&str>| {
            let change = insert(TABLE, with(TABLE, &entry("complete"), "track_id", track));
            FakeFacts::default().derive(EventKind::TranscodeCompleted, &change)
        };

        assert!(matches!(of_track(Some("200")), Ok(derived) if derived.owner == user("bob")));
        assert_eq!(
            of_track(Some("300")),
            Err(NoEvent::Unrouted("label_without_user"))
        );
        assert_eq!(
            of_track(Some("999")),
            Err(NoEvent::Unrouted("track_not_found"))
        );
        assert_eq!(
            of_track(None),
            Err(NoEvent::Unrouted("transcoder_queue_without_track"))
        );
    }
}
