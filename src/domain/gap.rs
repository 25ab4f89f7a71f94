//! Gaps: changes that the stream can no longer deliver, and events that a log no longer has.

use uuid::Uuid;

use super::lsn::Lsn;

/// The reason why changes are lost to the stream. `walhook repair` finds the transitions among
/// them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    #[error(
        "slot {slot} is missing and the store has a checkpoint at {at}: changes since then are lost to the stream"
    )]
    SlotMissing { slot: String, at: Lsn },
    #[error(
        "slot {slot} was invalidated (wal_status is lost): changes since {at} are lost to the stream"
    )]
    SlotInvalidated { slot: String, at: Lsn },
    #[error(
        "WAL that slot {slot} needs is missing on the primary: it was reset (pg_resetwal) or removed; changes since {at} are lost \
         to the stream"
    )]
    WalMissing { slot: String, at: Lsn },
    #[error(
        "the store is at {at}, before what Walhook had stored, and slot {slot} is beyond it: the store was restored, or failed over without \
         its last commits; events since {at} are lost to the stream"
    )]
    StoreBehind { slot: String, at: Lsn },
    #[error(
        "the primary switched to timeline {timeline} at {switch}, before the checkpoint at {at}: the changes between the two are \
         in the store and never happened on the new timeline"
    )]
    TimelineForked { timeline: u32, switch: Lsn, at: Lsn },
    #[error(
        "the primary is on timeline {found}, which does not descend from the checkpoint's timeline {known}"
    )]
    TimelineUnknown { known: u32, found: u32 },
    #[error(
        "slot {slot} is at {found}, beyond {at}, the furthest position that Walhook can have acknowledged: it was advanced or \
         recreated by something else, and the changes between the two are lost to the stream"
    )]
    SlotAhead { slot: String, found: Lsn, at: Lsn },
    #[error("a repair of slot {slot} did not finish: run `walhook repair` again")]
    RepairUnfinished { slot: String },
    #[error(
        "the replica identity of {tables} was removed: transitions since then cannot be detected; `walhook setup` sets it again"
    )]
    IdentityLost { tables: String },
    #[error(
        "publication {publication} no longer publishes {tables}: what it does not publish is lost until `walhook setup` corrects it"
    )]
    PublicationChanged { publication: String, tables: String },
    #[error(
        "publication {publication} has not published {tables} all the time: what was committed meanwhile may be lost"
    )]
    PublicationInterrupted { publication: String, tables: String },
    #[error(
        "the primary's WAL ends at {end}, before the checkpoint at {at}: the primary was restored to an earlier state"
    )]
    WalBehind { end: Lsn, at: Lsn },
    #[error("triggers failed {count} times, last at {last}: those changes were not captured")]
    TriggersFailed { count: i64, last: String },
    #[error("triggers are missing or changed, so changes may not have been captured: {0}")]
    TriggersLacking(String),
    #[error("the triggers' outbox cannot be read: {0}")]
    OutboxLost(String),
    #[error(
        "the primary switched to timeline {timeline} and lacks changes that were read from the outbox"
    )]
    OutboxForked { timeline: u32 },
    #[error(
        "the primary's transaction ids are lower than those already read: the primary was restored to an earlier state"
    )]
    OutboxBehind,
    #[error(
        "the log no longer has {missed} events after event {after}: they were dropped after its retention.days, or erased, before \
         they were read; reading continues with those that it has"
    )]
    LogExpired { missed: u64, after: u64 },
    #[error(
        "source.log_url leads to the log of another installation: its store id is {found}, and {known} was read before"
    )]
    LogForeign { known: Uuid, found: Uuid },
}

impl Gap {
    pub const WAL_MISSING: &str = "wal_missing";
    pub const STORE_BEHIND: &str = "store_behind";
    pub const TRIGGER_FAILED: &str = "trigger_failed";

    /// Returns what an operator has to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Gap::LogForeign { .. } => {
                "point it back, then run `walhook repair`; or run `walhook repair --force` to read this log from now on"
            }
            Gap::LogExpired { .. } => "`walhook repair` closes the gap",
            _ => "`walhook repair` finds the events that were missed",
        }
    }

    /// Returns the name under which the gap is stored. A slot has at most one open gap per reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Gap::SlotMissing { .. } => "slot_missing",
            Gap::SlotInvalidated { .. } => "slot_invalidated",
            Gap::WalMissing { .. } => Gap::WAL_MISSING,
            Gap::StoreBehind { .. } => Gap::STORE_BEHIND,
            Gap::TimelineForked { .. } => "timeline_forked",
            Gap::TimelineUnknown { .. } => "timeline_unknown",
            Gap::WalBehind { .. } => "log_behind",
            Gap::SlotAhead { .. } => "slot_ahead",
            Gap::RepairUnfinished { .. } => "repair_unfinished",
            Gap::IdentityLost { .. } => "identity_lost",
            Gap::PublicationChanged { .. } | Gap::PublicationInterrupted { .. } => {
                "publication_changed"
            }
            Gap::TriggersFailed { .. } => Gap::TRIGGER_FAILED,
            Gap::TriggersLacking(_) => "trigger_missing",
            Gap::OutboxLost(_) => "outbox_lost",
            Gap::OutboxForked { .. } => "outbox_forked",
            Gap::OutboxBehind => "outbox_behind",
            Gap::LogExpired { .. } => "log_expired",
            Gap::LogForeign { .. } => "log_foreign",
        }
    }
}
