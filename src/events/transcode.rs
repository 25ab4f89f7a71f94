//! The transcoding of a track's audio into the files that outlets take.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::{Transition, owner_of, word};
use super::value::{schema_of, to_json};
use super::{Derived, Fact, Facts, Rule, TranscodedFile, Verdict};
use crate::domain::change::Change;
use crate::domain::event::EventKind;
use crate::domain::table::{Table, transcoder_queue};

pub(super) static TRANSCODE_COMPLETED: Rule = Rule {
    kind: EventKind::TranscodeCompleted,
    description: "The audio of a track has been transcoded.",
    requires_addon: None,
    table: Table::TranscoderQueue,
    derive: |change, facts| transcode_ended(change, facts, |status| status == Status::Complete),
    schema: schema_of::<TranscodeEnded>,
    example: || to_json(&TranscodeEnded::example(Status::Complete)),
};

pub(super) static TRANSCODE_FAILED: Rule = Rule {
    kind: EventKind::TranscodeFailed,
    description: "The audio of a track could not be transcoded, or not all of it.",
    requires_addon: None,
    table: Table::TranscoderQueue,
    derive: |change, facts| transcode_ended(change, facts, |status| status != Status::Complete),
    schema: schema_of::<TranscodeEnded>,
    example: || to_json(&TranscodeEnded::example(Status::Incomplete)),
};

#[derive(Serialize, JsonSchema)]
struct TranscodeEnded {
    /// The release that the track is on.
    release_id: i64,
    /// The label that owns the release.
    label_id: i64,
    /// The track.
    track_id: i64,
    /// The platform's queue entry for this transcode.
    transcoder_queue_id: i64,
    /// How the transcode ended.
    status: Status,
    /// The same, as the key of a message.
    status_message: StatusMessage,
    /// What became of each file.
    files: Vec<File>,
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

#[derive(Serialize, JsonSchema)]
struct File {
    /// The kind of asset.
    asset_type_id: i64,
    /// How the file turned out.
    status: String,
}

impl From<&TranscodedFile> for File {
    fn from(file: &TranscodedFile) -> Self {
        File { asset_type_id: file.asset_type_id, status: file.status.clone() }
    }
}

impl TranscodeEnded {
    fn example(status: Status) -> Self {
        let second = if status == Status::Complete { "complete" } else { "error" };
        TranscodeEnded {
            release_id: 20_417,
            label_id: 311,
            track_id: 88_120,
            transcoder_queue_id: 650_233,
            status,
            status_message: status.into(),
            files: vec![
                File { asset_type_id: 1, status: "complete".into() },
                File { asset_type_id: 4, status: second.into() },
            ],
        }
    }
}

fn transcode_ended(change: &Change, facts: &dyn Facts, wanted: fn(Status) -> bool) -> Fact<Verdict> {
    let Some(moved) = Transition::of(change, transcoder_queue::status) else { return Ok(Verdict::Nothing) };
    let ended = moved.to.and_then(word::<Status>).filter(|status| wanted(*status));
    let Some(status) = ended else { return Ok(Verdict::Nothing) };
    let track_id = moved.parent(transcoder_queue::track_id, "transcoder_queue_without_track")?;
    let release_id = facts.track_release(track_id)?;
    let label_id = facts.release(release_id)?.label_id;
    let owner = owner_of(label_id, facts)?;
    let transcoder_queue_id = moved.integer(transcoder_queue::id)?;
    let data = TranscodeEnded {
        release_id,
        label_id,
        track_id,
        transcoder_queue_id,
        status,
        status_message: status.into(),
        files: facts.transcoded_files(transcoder_queue_id)?.iter().map(File::from).collect(),
    };
    Ok(Verdict::Raise(Derived::new(owner, &data)))
}

#[cfg(test)]
mod tests {
    use super::super::Halt;
    use super::super::testing::{FakeFacts, insert, moved, tuple, user, with};
    use super::*;
    use crate::domain::change::Tuple;

    const TABLE: Table = Table::TranscoderQueue;
    const BOTH: [EventKind; 2] = [EventKind::TranscodeCompleted, EventKind::TranscodeFailed];

    fn entry(status: &str) -> Tuple {
        tuple(TABLE, &[("id", "7"), ("track_id", "100"), ("status", status)])
    }

    fn raised(change: &Change) -> Vec<EventKind> {
        let raises = |kind: &EventKind| matches!(FakeFacts::default().derive(*kind, change), Ok(Verdict::Raise(_)));
        BOTH.into_iter().filter(raises).collect()
    }

    #[test]
    fn a_transcode_ends_well_or_not_with_its_files_by_id() {
        for (status, kind) in [
            ("complete", EventKind::TranscodeCompleted),
            ("error", EventKind::TranscodeFailed),
            ("incomplete", EventKind::TranscodeFailed),
        ] {
            let expected = format!(
                r#"{{"release_id":10,"label_id":1,"track_id":100,"transcoder_queue_id":7,"status":"{status}","status_message":"transcode_{status}","files":[{{"asset_type_id":4,"status":"complete"}},{{"asset_type_id":2,"status":"error"}}]}}"#
            );
            for change in [insert(TABLE, entry(status)), moved(TABLE, &entry(status), "status", Some("running"))] {
                let derived = FakeFacts::default().raised(kind, &change);
                assert_eq!((derived.owner, derived.once_for_release), (user("alice"), None));
                assert_eq!(derived.data, expected);
                assert_eq!(raised(&change), [kind]);
            }
        }
    }

    #[test]
    fn a_transcode_without_files_has_none() {
        let change = insert(TABLE, with(TABLE, &entry("error"), "id", Some("8")));
        assert!(FakeFacts::default().raised(EventKind::TranscodeFailed, &change).data.ends_with(r#","files":[]}"#));
    }

    #[test]
    fn every_entry_into_an_end_raises_and_nothing_else_does() {
        let facts = FakeFacts::default();
        assert_eq!(raised(&moved(TABLE, &entry("incomplete"), "status", Some("error"))), [EventKind::TranscodeFailed]);
        for change in [
            insert(TABLE, entry("running")),
            moved(TABLE, &entry("running"), "status", Some("error")),
            moved(TABLE, &entry("complete"), "track_id", Some("200")),
            insert(TABLE, with(TABLE, &entry("complete"), "status", None)),
        ] {
            for kind in BOTH {
                assert_eq!(facts.derive(kind, &change), Ok(Verdict::Nothing), "{kind}: {change:?}");
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
        assert!(matches!(of_track(Some("200")), Ok(Verdict::Raise(derived)) if derived.owner == user("bob")));
        assert_eq!(of_track(Some("300")), Err(Halt::Unrouted("label_without_user")));
        assert_eq!(of_track(Some("999")), Err(Halt::Unrouted("track_not_found")));
        assert_eq!(of_track(None), Err(Halt::Unrouted("transcoder_queue_without_track")));
    }
}
