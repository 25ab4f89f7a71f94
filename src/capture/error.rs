//! The errors of capture and of the primary, each with its remedy, and whether a retry can succeed.

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
    #[error("the primary is a standby now: capture continues when it is promoted; or set source.url to the primary")]
    Standby,
    #[error("the primary is shutting down: capture continues when it is back")]
    PrimaryStops,
    #[error("slot {0} is in use by another process: capture starts here when that process ends")]
    SlotActive(String),
    #[error("the checkpoint of slot {0} advances while it is compared with the primary's new timeline; trying again")]
    CheckpointMoves(String),
    /// Changes that were read on the old timeline must not be stored: capture starts again from the checkpoint.
    #[error("the primary has moved from timeline {from} to {to}")]
    NewTimeline { from: u32, to: u32 },
    #[error("the primary has sent nothing for {0:?}")]
    Silent(Duration),
    #[error("a heartbeat has not come back through the WAL for {0:?}")]
    HeartbeatLost(Duration),
    #[error("the primary is on another timeline than the stream: capture starts again on the new one")]
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
        "table {table} is gone: restore it, or name another in source.tables.{key}.table, then start again; what was \
         committed in between is kept in the WAL"
    )]
    TableGone { table: String, key: &'static str },
    #[error(
        "table {table} is not in publication {publication}: run `walhook setup`; changes committed before that are not \
         in the stream"
    )]
    NotPublished { table: String, publication: String },
    #[error(
        "slot {slot} is {found}: it is not Walhook's; set source.slot to another name, or drop it and run `walhook setup`"
    )]
    ForeignSlot { slot: String, found: String },
    #[error(
        "source.url points to another cluster: its system identifier is {found}, the checkpoint's is {known}; correct it, \
         or to start from scratch run `walhook teardown`, then `walhook setup`"
    )]
    ForeignCluster { known: u64, found: u64 },
    #[error("another process reads the outbox of slot {0}: capture starts here when that process ends")]
    LeaseHeld(String),
    #[error("another process has read the outbox of slot {0} in between: reading continues from its checkpoint")]
    Superseded(String),
    #[error("another process captures now: stop `walhook run` first, then run this again")]
    Captured,
    #[error(
        "the checkpoint is a position in the outbox: set source.capture = \"trigger\", or run `walhook setup` \
         to switch to the WAL"
    )]
    OutboxIsRead,
    #[error("a switch to the WAL is prepared: start `walhook run` with source.capture = \"wal\" to complete it")]
    SwitchToLog,
    #[error(
        "a switch to triggers is prepared: start `walhook run` with source.capture = \"trigger\" to complete it, or run `walhook teardown`"
    )]
    SwitchToTriggers,
    #[error("triggers do not match the mapping: {0}; run `walhook setup`")]
    TriggersOutdated(String),
    #[error(
        "the tables could not be locked for a moment in {attempts} attempts{holder}: run this again when they are free"
    )]
    TablesBusy { attempts: u32, holder: String },
    #[error("{0}; `walhook repair` finds the events that were missed")]
    Gap(Gap),
    #[error(
        "column {column} of {table} is gone: restore it and add the name that it had in between to \
         source.tables.{key}.formerly.{reference}, or name another in source.tables.{key}.columns.{reference}; then start again"
    )]
    ColumnGone { column: String, table: String, key: &'static str, reference: &'static str },
    #[error("the replication stream contains something unexpected: {0}")]
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
    #[error("no gap is open: there is nothing to repair; `--force` compares all rows anyway")]
    NothingToRepair,
    #[error("another repair of slot {0} is running")]
    RepairUnderWay(String),
    #[error("{table} is locked{holder} and was not released in time: run this again when that has ended")]
    TableBusy { table: String, holder: String },
    #[error(
        "{table} has rows that are the same in {columns}, so no unique index can be created: set source.replica_identity = \"full\""
    )]
    NotUnique { table: String, columns: String },
    #[error("{source}; slot {slot} could not be dropped: {cleanup}; run `walhook teardown`, then `walhook setup`")]
    LeftBehind { slot: String, source: Box<CaptureError>, cleanup: Box<CaptureError> },
}

/// Changes that can no longer be captured. The message is stored with the gap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    #[error("slot {slot} is missing and the store has a checkpoint at {at}: changes since then are lost to the stream")]
    SlotMissing { slot: String, at: Lsn },
    #[error("slot {slot} was invalidated (wal_status is lost): changes since {at} are lost to the stream")]
    SlotInvalidated { slot: String, at: Lsn },
    #[error(
        "the primary moved to timeline {timeline} at {switch}, before the checkpoint at {at}: changes in between that are stored do not exist there"
    )]
    TimelineForked { timeline: u32, switch: Lsn, at: Lsn },
    #[error("the primary is on timeline {found}, which does not descend from the checkpoint's timeline {known}")]
    TimelineUnknown { known: u32, found: u32 },
    #[error(
        "slot {slot} is at {found}, beyond {at}, the last position that Walhook can have acknowledged: somebody else moved or \
         recreated it, and changes in between are lost to the stream"
    )]
    SlotAhead { slot: String, found: Lsn, at: Lsn },
    #[error("a repair of slot {slot} was interrupted: run `walhook repair` again")]
    RepairUnfinished { slot: String },
    #[error(
        "the replica identity of {tables} was removed: transitions since then cannot be detected; `walhook setup` sets it again"
    )]
    IdentityLost { tables: String },
    #[error(
        "publication {publication} no longer publishes {tables}: their changes are lost until `walhook setup` adds them"
    )]
    PublicationChanged { publication: String, tables: String },
    #[error("the primary's WAL ends at {end}, before the checkpoint at {at}: it was restored to an earlier state")]
    LogBehind { end: Lsn, at: Lsn },
    #[error("triggers failed {count} times, last at {last}: those changes were not captured")]
    TriggersFailed { count: i64, last: String },
    #[error("triggers are missing or changed, and changes may not be captured: {0}")]
    TriggersLacking(String),
    #[error("the outbox of the triggers cannot be read: {0}")]
    OutboxLost(String),
    #[error("the primary moved to timeline {timeline} and lacks rows that were read from the outbox")]
    OutboxForked { timeline: u32 },
    #[error("the primary's transaction ids are lower than those that were read: it was restored to an earlier state")]
    OutboxBehind,
}

impl Gap {
    pub const TRIGGER_FAILED: &str = "trigger_failed";

    /// The name under which the gap is stored. Each slot has at most one open gap per reason.
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

    /// Returns the gap that a changed schema causes. A renamed table or column causes none: its changes wait in the WAL.
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
    /// Returns whether the platform's schema no longer matches. Capture waits until the schema or the configuration is fixed, and skips
    /// nothing.
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

    /// Returns whether the server rejects connections because it shuts down.
    pub fn is_shutdown(&self) -> bool {
        let CaptureError::Connect(ConnectError::Connect(error)) = self else { return false };
        error.code() == Some(&SqlState::CANNOT_CONNECT_NOW)
    }

    /// Returns whether a retry can succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            CaptureError::Connect(ConnectError::Url | ConnectError::Tls(_)) => false,
            CaptureError::Connect(ConnectError::Connect(error)) | CaptureError::Primary(error) => is_transient(error),
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

/// Errors of credentials, names and privileges are permanent. All others of the server may be transient.
fn is_transient(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else { return true };
    let permanent = [
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::SYNTAX_ERROR,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_COLUMN,
    ];
    !permanent.contains(code)
}
