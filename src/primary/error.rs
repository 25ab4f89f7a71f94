//! The errors of work on the primary, each with its remedy.

use std::time::Duration;

use pg_walstream::ReplicationError;
use tokio_postgres::error::SqlState;

use super::finding::Finding;
use crate::domain::gap::Gap;
use crate::failpoint::Injected;
use crate::postgres::{self, ConnectError, DiskFault};
use crate::store::StoreError;

pub type Result<T, E = PrimaryError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum PrimaryError {
    #[error("the primary: {0}")]
    Connect(#[from] ConnectError),
    #[error("the primary: {}", postgres::describe(.0))]
    Query(#[from] tokio_postgres::Error),
    #[error("the primary's replication stream: {0}")]
    Replication(#[from] ReplicationError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Gap(Gap),
    /// Findings because of which `walhook setup` refuses, one per line.
    #[error("{}", .0.iter().map(Finding::message).collect::<Vec<_>>().join("\n"))]
    Preconditions(Vec<Finding>),
    /// The platform's schema has changed under a running stream.
    #[error("{}{}", .0.message(), if .0.loses_changes() { "" } else { "; changes committed meanwhile are kept in the WAL" })]
    Drift(Box<Finding>),
    #[error(
        "the primary is a standby now: capture continues when it is promoted, or set source.url to the primary"
    )]
    Standby,
    /// The server is on an earlier timeline than the checkpoint.
    #[error("{}", .0.message())]
    Replaced(Box<Finding>),
    #[error("slot {slot} is not set up: run `walhook setup`")]
    NotSetUp { slot: String },
    #[error(
        "source.url points to another cluster: its system identifier is {found}, the checkpoint's is {known}; point it back, \
         or to start from scratch run `walhook teardown`, then `walhook setup`"
    )]
    ForeignCluster { known: u64, found: u64 },
    /// Commits would wait for the store, and capture for the commits to become visible.
    #[error(
        "synchronous_standby_names of the primary includes Walhook's own connection, application_name {0}: commits would wait for \
         Walhook, and Walhook for them. Name the standbys instead of `*`, then `select pg_reload_conf()`; capture continues then"
    )]
    OwnStandby(String),
    #[error(
        "the checkpoint of slot {0} keeps moving while the primary's new timeline is compared with it; retrying"
    )]
    CheckpointMoves(String),
    #[error("another process captures now: stop `walhook run` first, then run this again")]
    Captured,
    #[error(
        "the checkpoint is a position in the triggers' outbox: set source.capture = \"trigger\", or run `walhook setup` to \
         switch to the WAL"
    )]
    OutboxIsRead,
    #[error(
        "the store reads the log of another store: set source.capture = \"log\", or to capture from a primary, use a store of its own"
    )]
    LogIsRead,
    #[error(
        "a switch to the WAL is prepared: start `walhook run` with source.capture = \"wal\" to complete it"
    )]
    SwitchToWal,
    #[error(
        "a switch to triggers is prepared: start `walhook run` with source.capture = \"trigger\" to complete it, or run \
         `walhook teardown`"
    )]
    SwitchToTriggers,
    #[error("the primary's answer was not understood: {0}")]
    Protocol(String),
    #[error(
        "slot {0} exists and the store has no checkpoint for it: `walhook teardown` drops it, then run `walhook setup` again"
    )]
    SlotWithoutCheckpoint(String),
    #[error(
        "slot {slot} could not be created within {limit:?}: it waits for every older transaction to end{holder}; end it and \
         run `walhook setup` again"
    )]
    SlotCreation {
        slot: String,
        limit: Duration,
        holder: String,
    },
    #[error(
        "{0}; it is unknown whether the slot's checkpoint was stored: run `walhook setup` again"
    )]
    SetupUnknown(StoreError),
    #[error("slot {slot} is in use by process {pid} of the primary: stop `walhook run` first")]
    SlotInUse { slot: String, pid: i32 },
    #[error(
        "{source}; slot {slot} could not be dropped: {cleanup}; run `walhook teardown`, then `walhook setup`"
    )]
    LeftBehind {
        slot: String,
        source: Box<PrimaryError>,
        cleanup: Box<PrimaryError>,
    },
    #[error(
        "the tables could not be locked in {attempts} attempts{holder}: run this again when no transaction holds them"
    )]
    TablesBusy { attempts: u32, holder: String },
    #[error("another process has changed the triggers in the meantime: run this again")]
    TriggersChanged,
    #[error(
        "{table} is locked{holder} and was not released in time: run this again when that transaction has ended"
    )]
    TableBusy { table: String, holder: String },
    #[error(
        "{table} has several rows with the same {columns}, so a unique index is impossible: set source.replica_identity = \"full\""
    )]
    NotUnique { table: String, columns: String },
    #[error("no gap is known, so there is nothing to repair; `--force` compares anyway")]
    NothingToRepair,
    #[error("another repair of slot {0} is running")]
    RepairRunning(String),
}

impl PrimaryError {
    /// Returns whether a retry can succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            PrimaryError::Connect(error) => error.is_transient(),
            PrimaryError::Query(error) => postgres::is_transient(error),
            PrimaryError::Replication(error) => !error.is_permanent(),
            PrimaryError::Store(error) => {
                !matches!(error, StoreError::Corrupt(_) | StoreError::Migration(_))
            }
            PrimaryError::Standby
            | PrimaryError::Replaced(_)
            | PrimaryError::CheckpointMoves(_)
            | PrimaryError::OwnStandby(_) => true,
            _ => false,
        }
    }

    /// Returns the failure of the primary's disk that caused this error, if one did.
    pub fn disk_fault(&self) -> Option<DiskFault> {
        match self {
            PrimaryError::Connect(ConnectError::Connect(error)) | PrimaryError::Query(error) => {
                DiskFault::of(error)
            }
            PrimaryError::Replication(error) => {
                sql_state(error).as_ref().and_then(DiskFault::of_code)
            }
            _ => None,
        }
    }

    /// Returns whether the server found no publication in the catalog as of the WAL that it
    /// decodes.
    pub fn is_missing_publication(&self) -> bool {
        match self {
            PrimaryError::Replication(error) => {
                sql_state(error) == Some(SqlState::UNDEFINED_OBJECT)
                    && error.to_string().contains("publication \"")
            }
            _ => false,
        }
    }

    /// Returns whether a stream needs WAL that the server no longer has, although the slot retains
    /// it.
    pub fn is_missing_wal(&self) -> bool {
        matches!(self, PrimaryError::Replication(error) if sql_state(error) == Some(SqlState::UNDEFINED_FILE))
    }
}

/// Returns the server's code, which pg_walstream has only in the text: `… [53100] …`.
fn sql_state(error: &ReplicationError) -> Option<SqlState> {
    const LENGTH: usize = 5;
    let text = error.to_string();
    let mut codes = text
        .split('[')
        .skip(1)
        .filter_map(|rest| rest.split_once(']'))
        .map(|(code, _)| code);
    codes
        .find(|code| code.len() == LENGTH && code.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        .map(SqlState::from_code)
}

/// Fails with the findings, if there are any.
pub(crate) fn refuse(findings: Vec<Finding>) -> Result<()> {
    if findings.is_empty() {
        Ok(())
    } else {
        Err(PrimaryError::Preconditions(findings))
    }
}

impl From<Injected> for PrimaryError {
    fn from(error: Injected) -> PrimaryError {
        PrimaryError::Store(error.into())
    }
}
