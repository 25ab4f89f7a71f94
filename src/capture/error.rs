//! What can go wrong with the primary, with its mend, and whether waiting may be the mend.

use std::time::Duration;

use pg_walstream::ReplicationError;
use tokio_postgres::error::SqlState;

use crate::domain::lsn::Lsn;
use crate::postgres::{self, ConnectError};
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("the primary: {0}")]
    Connect(#[from] ConnectError),
    #[error("the primary: {}", postgres::describe(.0))]
    Primary(#[from] tokio_postgres::Error),
    #[error("the primary's replication stream: {0}")]
    Replication(#[from] ReplicationError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the primary is a standby now: capture goes on when it is promoted, or set source.url to the primary")]
    Standby,
    #[error("the primary is shutting down: capture goes on when it is back")]
    PrimaryStops,
    #[error("slot {0} is in use by another process: capture begins here when that one ends")]
    SlotActive(String),
    #[error("the checkpoint of slot {0} moves on while the primary's new timeline is compared with it; trying again")]
    CheckpointMoves(String),
    /// Changes read before the switch must not be stored: capture starts again from the checkpoint.
    #[error("the primary went over from timeline {from} to {to}")]
    NewTimeline { from: u32, to: u32 },
    #[error("nothing has come from the primary for {0:?}")]
    Silent(Duration),
    #[error("a heartbeat has not come back through the log for {0:?}")]
    HeartbeatLost(Duration),
    #[error("the primary is on another timeline than the stream: capture begins again on the new one")]
    TimelineChanged,
    #[error("the primary's wal_level is {0}: set wal_level = logical in its configuration and restart it")]
    WalLevel(String),
    #[error("slot {slot} is not set up: run `walhook setup`")]
    NotSetUp { slot: String },
    #[error(
        "the replica identity of {table} does not cover {columns}, so its transitions cannot be told: run `walhook setup`"
    )]
    IdentityLacking { table: String, columns: String },
    #[error("publication {0} is missing on the primary: run `walhook setup`")]
    NoPublication(String),
    #[error(
        "table {table} is gone: bring it back, or name another in source.tables.{key}.table, then start again; what was \
         committed meanwhile is kept in the log"
    )]
    TableGone { table: String, key: &'static str },
    #[error(
        "table {table} is not in publication {publication}: run `walhook setup`; what was written to it before that is not \
         in the stream"
    )]
    NotPublished { table: String, publication: String },
    #[error(
        "slot {slot} is {found}: it is not Walhook's; set source.slot to another name, or drop it and run `walhook setup`"
    )]
    ForeignSlot { slot: String, found: String },
    #[error(
        "source.url points to another cluster: its system identifier is {found}, the checkpoint's is {known}; point it back, \
         or for a new start run `walhook teardown`, then `walhook setup`"
    )]
    ForeignCluster { known: u64, found: u64 },
    #[error("another process reads the outbox of slot {0}: capture begins here when that one ends")]
    LeaseHeld(String),
    #[error("another process has read the outbox of slot {0} in the meantime: reading starts again where it ended")]
    Superseded(String),
    #[error("another process captures now: stop `walhook run` first, then run this again")]
    Captured,
    #[error(
        "the store has changes up to a place in the triggers' outbox: set source.capture = \"trigger\", or run `walhook setup` \
         to switch to the log"
    )]
    OutboxIsRead,
    #[error("a switch to the log is prepared: let `walhook run` make it with source.capture = \"wal\"")]
    SwitchToLog,
    #[error(
        "a switch to triggers is prepared: let `walhook run` make it with source.capture = \"trigger\", or run `walhook teardown`"
    )]
    SwitchToTriggers,
    #[error("triggers do not fit the mapping: {0}; run `walhook setup`")]
    TriggersOutdated(String),
    #[error(
        "the tables could not be locked for a moment in {attempts} attempts{holder}: run this again when they are free"
    )]
    TablesBusy { attempts: u32, holder: String },
    #[error("{0}; what was missed can be found again with `walhook repair`")]
    Gap(Gap),
    #[error(
        "column {column} of {table} is gone: bring it back and name what it was called meanwhile in \
         source.tables.{key}.formerly.{reference}, or name another in source.tables.{key}.columns.{reference}; then start again"
    )]
    ColumnGone { column: String, table: String, key: &'static str, reference: &'static str },
    #[error("the replication stream holds something unexpected: {0}")]
    Protocol(String),
    #[error("{}", .0.join("\n"))]
    Preconditions(Vec<String>),
    #[error(
        "slot {0} exists and the store has no checkpoint for it: `walhook teardown` drops it, then run `walhook setup` again"
    )]
    SlotWithoutCheckpoint(String),
    #[error(
        "slot {slot} could not be created within {limit:?}: it waits for every older transaction to end{holder}; end it and run `walhook setup` again"
    )]
    SlotCreation { slot: String, limit: Duration, holder: String },
    #[error("slot {slot} is in use by process {pid} of the primary: stop `walhook run` first")]
    SlotInUse { slot: String, pid: i32 },
    #[error("nothing was lost that is known of: there is nothing to repair; `--force` compares all the same")]
    NothingToRepair,
    #[error("another repair of slot {0} is under way")]
    RepairUnderWay(String),
    #[error("{table} is locked{holder} and did not become free in time: run this again when that has ended")]
    TableBusy { table: String, holder: String },
    #[error(
        "{table} has rows that are the same in {columns}, so no unique index can be made: set source.replica_identity = \"full\""
    )]
    NotUnique { table: String, columns: String },
    #[error("{source}; slot {slot} stays behind: {cleanup}; run `walhook teardown`, then `walhook setup`")]
    LeftBehind { slot: String, source: Box<CaptureError>, cleanup: Box<CaptureError> },
}

/// A stretch of the log that is lost to us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    #[error("slot {slot} is missing and the store has a checkpoint at {at}: changes since then are lost to the stream")]
    SlotMissing { slot: String, at: Lsn },
    #[error("slot {slot} was invalidated (wal_status is lost): changes since {at} are lost to the stream")]
    SlotInvalidated { slot: String, at: Lsn },
    #[error(
        "the primary went over to timeline {timeline} at {switch}, before the checkpoint at {at}: what the store has from between never happened there"
    )]
    TimelineForked { timeline: u32, switch: Lsn, at: Lsn },
    #[error("the primary is on timeline {found}, which does not descend from the checkpoint's timeline {known}")]
    TimelineUnknown { known: u32, found: u32 },
    #[error(
        "slot {slot} stands at {found}, beyond {at}, the furthest that Walhook can have moved it to: others moved it or made it \
         anew, and changes between the two are lost to the stream"
    )]
    SlotAhead { slot: String, found: Lsn, at: Lsn },
    #[error("a repair of slot {slot} has not come to its end: run `walhook repair` again")]
    RepairUnfinished { slot: String },
    #[error(
        "the replica identity of {tables} was taken away: transitions from then on cannot be told; `walhook setup` sets it again"
    )]
    IdentityLost { tables: String },
    #[error(
        "publication {publication} no longer publishes {tables}: their changes are lost until `walhook setup` adds them"
    )]
    PublicationChanged { publication: String, tables: String },
    #[error("the primary's log ends at {end}, before the checkpoint at {at}: it was put back to an earlier state")]
    LogBehind { end: Lsn, at: Lsn },
    #[error("triggers failed {count} times, last at {last}: those changes were not captured")]
    TriggersFailed { count: i64, last: String },
    #[error("triggers are not what they should be, and changes may pass them by: {0}")]
    TriggersLacking(String),
    #[error("the outbox of the triggers cannot be read: {0}")]
    OutboxLost(String),
    #[error("the primary went over to timeline {timeline} and lacks what the store has read from the outbox")]
    OutboxForked { timeline: u32 },
    #[error(
        "the primary's transactions are numbered lower than those that were read: it was put back to an earlier state"
    )]
    OutboxBehind,
}

impl Gap {
    pub const TRIGGER_FAILED: &str = "trigger_failed";

    /// The name it is kept under: one open gap a slot and reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Gap::SlotMissing { .. } => "slot_missing",
            Gap::SlotInvalidated { .. } => "slot_invalidated",
            Gap::TimelineForked { .. } => "timeline_forked",
            Gap::TimelineUnknown { .. } => "timeline_unknown",
            Gap::LogBehind { .. } => "log_behind",
            Gap::SlotAhead { .. } => "slot_ahead",
            Gap::RepairUnfinished { .. } => "repair_unfinished",
            Gap::IdentityLost { .. } => "identity_lost",
            Gap::PublicationChanged { .. } => "publication_changed",
            Gap::TriggersFailed { .. } => Gap::TRIGGER_FAILED,
            Gap::TriggersLacking(_) => "trigger_missing",
            Gap::OutboxLost(_) => "outbox_lost",
            Gap::OutboxForked { .. } => "outbox_forked",
            Gap::OutboxBehind => "outbox_behind",
        }
    }

    /// What a schema that has drifted takes out of the stream. A table or column of another name takes nothing: the log has
    /// it, and waits.
    pub fn by_drift(drift: &CaptureError) -> Option<Gap> {
        match drift {
            CaptureError::IdentityLacking { table, .. } => Some(Gap::IdentityLost { tables: table.clone() }),
            CaptureError::NotPublished { table, publication } => {
                Some(Gap::PublicationChanged { publication: publication.clone(), tables: table.clone() })
            }
            CaptureError::NoPublication(publication) => {
                let tables = "any table".to_owned();
                Some(Gap::PublicationChanged { publication: publication.clone(), tables })
            }
            _ => None,
        }
    }
}

impl CaptureError {
    /// Whether the platform's schema has moved away from under a stream that was sound. It is mended without us or by a new
    /// start; until then nothing is passed over.
    pub fn is_drift(&self) -> bool {
        matches!(
            self,
            CaptureError::ColumnGone { .. }
                | CaptureError::TableGone { .. }
                | CaptureError::NotPublished { .. }
                | CaptureError::NoPublication(_)
                | CaptureError::IdentityLacking { .. }
        )
    }

    /// Whether the server takes no connections any more because it goes down.
    pub fn is_shutdown(&self) -> bool {
        let CaptureError::Connect(ConnectError::Connect(error)) = self else { return false };
        error.code() == Some(&SqlState::CANNOT_CONNECT_NOW)
    }

    /// Whether the same again may go well by itself.
    pub fn is_transient(&self) -> bool {
        match self {
            CaptureError::Connect(ConnectError::Url | ConnectError::Tls(_)) => false,
            CaptureError::Connect(ConnectError::Connect(error)) | CaptureError::Primary(error) => is_passing(error),
            CaptureError::Connect(ConnectError::Timeout(_)) => true,
            CaptureError::Replication(error) => !error.is_permanent(),
            CaptureError::Store(StoreError::Corrupt(_) | StoreError::Migration(_)) => false,
            CaptureError::Store(_)
            | CaptureError::Standby
            | CaptureError::PrimaryStops
            | CaptureError::SlotActive(_)
            | CaptureError::CheckpointMoves(_)
            | CaptureError::LeaseHeld(_)
            | CaptureError::Silent(_)
            | CaptureError::TimelineChanged
            | CaptureError::HeartbeatLost(_) => true,
            _ => false,
        }
    }
}

/// Faults of credentials, names and privileges stay; everything else a server says may pass.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else { return true };
    let lasting = [
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::SYNTAX_ERROR,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_COLUMN,
    ];
    !lasting.contains(code)
}
