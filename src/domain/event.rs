//! Events, their kinds and their ids.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::change::Change;
use super::position::Position;

macro_rules! event_kinds {
    ($( $kind:ident = $name:literal ),+ $(,)?) => {
        /// The events a webhook can subscribe to, in the catalogue's order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind { $( $kind ),+ }

        impl EventKind {
            pub const ALL: &'static [EventKind] = &[ $( EventKind::$kind ),+ ];

            pub const fn as_str(self) -> &'static str {
                match self { $( EventKind::$kind => $name ),+ }
            }
        }
    };
}

event_kinds! {
    DeliveryCompleted = "delivery.completed",
    DeliveryFailed = "delivery.failed",
    TakedownCompleted = "takedown.completed",
    ReleaseReviewStatusChanged = "release.review.status_changed",
    ReleasePreflightReportReady = "release.preflight.report_ready",
    StreamRadarFlagCreated = "stream_radar.flag_created",
    StreamRadarFlagResolved = "stream_radar.flag_resolved",
    ReleaseDistributed = "release.distributed",
    PaymentStatementReady = "payment.statement_ready",
    TranscodeCompleted = "transcode.completed",
    TranscodeFailed = "transcode.failed",
    DistributionOutletStatusChanged = "distribution.outlet.status_changed",
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an event")]
pub struct UnknownEvent(String);

impl FromStr for EventKind {
    type Err = UnknownEvent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        EventKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownEvent(text.to_owned()))
    }
}

impl serde::Serialize for EventKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for EventKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A user of the platform. Opaque: platforms use numbers, UUIDs or names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub Arc<str>);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A paid add-on of an account. Some events are raised only for users who have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addon {
    PreflightQc,
    StreamRadar,
}

impl Addon {
    pub const fn as_str(self) -> &'static str {
        match self {
            Addon::PreflightQc => "preflight_qc",
            Addon::StreamRadar => "stream_radar",
        }
    }
}

/// An event that is about to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: Uuid,
    pub kind: EventKind,
    pub user: UserId,
    /// The label that the event is about. A payment statement has none.
    pub label: Option<i64>,
    pub occurred_at: Timestamp,
    pub position: Position,
    /// Whether a repair found it by comparison, after a gap.
    pub repaired: bool,
    /// The `data` object, serialised once: every attempt sends the same bytes.
    pub data: Arc<str>,
}

/// The start of data that was too large to be sent, and is stored without its long values.
const OMITTED: &str = r#"{"omitted_bytes":"#;
/// The longest string that such data keeps, in bytes: statuses and names, by which filters and
/// people find the event.
const SHORT: usize = 200;

/// Returns `data`, a JSON object, or what is stored of one that has more than `max` bytes and
/// therefore is never sent.
pub fn bounded_data(data: String, max: usize) -> Arc<str> {
    if data.len() <= max {
        return data.into();
    }

    let mut fields: serde_json::Map<String, Value> =
        serde_json::from_str(&data).unwrap_or_default();
    fields.retain(|_, value| match value {
        Value::String(text) => text.len() <= SHORT,
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
    });

    let comma = if fields.is_empty() { "" } else { "," };
    let rest = Value::Object(fields).to_string();
    format!("{OMITTED}{}{comma}{}", data.len(), &rest[1..]).into()
}

/// Returns the size of the whole data if it was too large to be stored.
pub fn omitted_bytes(data: &str) -> Option<usize> {
    let (bytes, _) = data.strip_prefix(OMITTED)?.split_once([',', '}'])?;
    bytes.parse().ok()
}

/// Computes the id of the event that a change raises. Reading the same WAL or the same outbox again
/// gives the same id: it is a UUIDv7 whose time is the commit's and whose other bits are a hash of
/// the change's position and the event's kind.
pub fn event_id(system_identifier: u64, change: &Change, kind: EventKind) -> Uuid {
    let cluster = Sha256::new().chain_update(system_identifier.to_be_bytes());
    let (transaction, ordinal) = match change.position {
        Position::Wal {
            timeline,
            commit,
            ordinal,
        } => (
            cluster
                .chain_update(timeline.to_be_bytes())
                .chain_update(commit.0.to_be_bytes()),
            ordinal,
        ),
        // Not the window's number: after a restart the same row may be read in another window.
        Position::Outbox {
            transaction,
            ordinal,
            ..
        } => (
            cluster
                .chain_update("outbox")
                .chain_update(transaction.to_be_bytes()),
            ordinal,
        ),
        // The events of a log have ids: no change has such a position.
        Position::Log { number, .. } => (cluster.chain_update("log"), number),
    };

    let digest = transaction
        .chain_update(ordinal.to_be_bytes())
        .chain_update(kind.as_str())
        .finalize();
    uuid_v7(change.committed_at, &digest)
}

/// Computes the id of the delivery of one event to one webhook. It is the same on every attempt and
/// after every restart. It is the event's id, with its hash combined by exclusive or with one of the
/// webhook, so that the event of a delivery is found without an index: see [`delivered_event`].
pub fn delivery_id(event: Uuid, webhook: Uuid) -> Uuid {
    let digest = Sha256::digest(webhook.as_bytes());
    let mut bytes = *event.as_bytes();

    for (byte, mask) in bytes[6..].iter_mut().zip(digest) {
        *byte ^= mask;
    }

    with_version_and_variant(bytes)
}

/// Computes the event of a delivery to a webhook: the inverse of [`delivery_id`].
pub fn delivered_event(delivery: Uuid, webhook: Uuid) -> Uuid {
    delivery_id(delivery, webhook)
}

fn uuid_v7(at: Timestamp, digest: &[u8]) -> Uuid {
    let millis = u64::try_from(at.as_millisecond()).unwrap_or(0);
    let mut bytes = [0; 16];

    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&digest[..10]);
    with_version_and_variant(bytes)
}

fn with_version_and_variant(mut bytes: [u8; 16]) -> Uuid {
    bytes[6] = (bytes[6] & 0x0F) | 0x70;
    bytes[8] = (bytes[8] & 0x3F) | 0x80;
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::change::Operation;
    use super::super::lsn::Lsn;
    use super::super::table::Table;
    use super::*;

    const SYSTEM: u64 = 7_000;

    fn change(position: Position) -> Change {
        Change {
            position,
            committed_at: "2026-03-01T09:05:00.123456Z".parse().unwrap(),
            muted: false,
            table: Table::DistroQueue,
            operation: Operation::Truncate,
        }
    }

    fn id(commit: u64, ordinal: u64, kind: EventKind) -> Uuid {
        id_on(SYSTEM, 1, commit, ordinal, kind)
    }

    fn id_on(system: u64, timeline: u32, commit: u64, ordinal: u64, kind: EventKind) -> Uuid {
        event_id(
            system,
            &change(Position::Wal {
                timeline,
                commit: Lsn(commit),
                ordinal,
            }),
            kind,
        )
    }

    #[test]
    fn a_row_of_the_outbox_has_the_same_id_in_every_window() {
        let id = |window, ordinal, transaction| {
            event_id(
                SYSTEM,
                &change(Position::Outbox {
                    window,
                    transaction,
                    ordinal,
                }),
                EventKind::DeliveryCompleted,
            )
        };

        assert_eq!(id(1, 5, 700), id(2, 5, 700));
        assert_ne!(id(1, 5, 700), id(1, 6, 700));
        assert_ne!(
            id(1, 5, 700),
            id(1, 5, 701),
            "the sequence of a new outbox starts over"
        );
        assert_ne!(id(1, 5, 700), self::id(1, 5, EventKind::DeliveryCompleted));
    }

    /// Computed by version 0.1.0. Stored events keep their ids across an upgrade, so these values
    /// must never change.
    #[test]
    fn ids_are_those_of_earlier_versions() {
        let of_wal = id_on(SYSTEM, 3, 0x16_B374_D848, 2, EventKind::ReleaseDistributed);
        let row = Position::Outbox {
            window: 9,
            transaction: 700,
            ordinal: 5,
        };

        let of_outbox = event_id(SYSTEM, &change(row), EventKind::PaymentStatementReady);
        assert_eq!(
            [of_wal.to_string(), of_outbox.to_string()],
            [
                "019ca8a4-d2db-7986-8a64-a3049900d9b5",
                "019ca8a4-d2db-7cf2-800a-714b273050a7"
            ]
        );
    }

    #[test]
    fn the_same_position_gives_the_same_id_and_any_difference_another() {
        let first = id(9, 1, EventKind::DeliveryCompleted);
        assert_eq!(first, id(9, 1, EventKind::DeliveryCompleted));

        for other in [
            id_on(SYSTEM, 2, 9, 1, EventKind::DeliveryCompleted),
            id_on(1, 1, 9, 1, EventKind::DeliveryCompleted),
            id(8, 1, EventKind::DeliveryCompleted),
            id(9, 2, EventKind::DeliveryCompleted),
            id(9, 1, EventKind::DistributionOutletStatusChanged),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn ids_are_version_7_and_carry_the_commit_time() {
        let event = id(9, 1, EventKind::DeliveryCompleted);
        let delivery = delivery_id(event, Uuid::from_u128(1));
        for id in [event, delivery] {
            assert_eq!(id.get_version_num(), 7);
            let (seconds, nanos) = id.get_timestamp().unwrap().to_unix();
            assert_eq!((seconds, nanos), (1_772_355_900, 123_000_000));
        }

        assert_ne!(delivery, delivery_id(event, Uuid::from_u128(2)));
        assert_eq!(delivered_event(delivery, Uuid::from_u128(1)), event);
    }

    #[test]
    fn data_that_is_too_large_keeps_its_short_values_and_its_size() {
        let data = |length: usize| {
            format!(
                r#"{{"release_id":7,"cat":"{}","status":"complete","files":[1]}}"#,
                "x".repeat(length)
            )
        };

        let whole = data(40);
        assert_eq!(
            (
                &*bounded_data(whole.clone(), whole.len()),
                omitted_bytes(&whole)
            ),
            (&*whole, None)
        );

        let stored = bounded_data(data(1_000), whole.len());
        assert_eq!(
            &*stored,
            r#"{"omitted_bytes":1057,"release_id":7,"status":"complete"}"#
        );
        assert_eq!(omitted_bytes(&stored), Some(1_057));
        assert_eq!(
            omitted_bytes(&bounded_data(r#"{"files":[1]}"#.to_owned(), 1)),
            Some(13)
        );
    }

    #[test]
    fn names_round_trip() {
        assert_eq!(EventKind::ALL.len(), 12);

        for kind in EventKind::ALL {
            assert_eq!(kind.as_str().parse::<EventKind>().unwrap(), *kind);
        }

        assert!("delivery.unknown".parse::<EventKind>().is_err());
    }
}
