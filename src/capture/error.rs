//! What can go wrong with the primary, with its mend, and whether waiting may be the mend.

use std::time::Duration;

use pg_walstream::ReplicationError;
use tokio_postgres::error::SqlState;

use crate::domain::gap::Gap;
use crate::postgres::{self, ConnectError};
use crate::primary::error::PrimaryError;
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
    /// What an inspection of the primary or the state of its preparation rules out.
    #[error(transparent)]
    Setup(PrimaryError),
    #[error("the primary is shutting down: capture goes on when it is back")]
    PrimaryStops,
    #[error("slot {0} is in use by another process: capture begins here when that one ends")]
    SlotActive(String),
    /// Changes read before the switch must not be stored: capture starts again from the checkpoint.
    #[error("the primary went over from timeline {from} to {to}")]
    NewTimeline { from: u32, to: u32 },
    #[error("nothing has come from the primary for {0:?}")]
    Silent(Duration),
    #[error("a heartbeat has not come back through the log for {0:?}")]
    HeartbeatLost(Duration),
    #[error("the primary is on another timeline than the stream: capture begins again on the new one")]
    TimelineChanged,
    #[error("another process reads the outbox of slot {0}: capture begins here when that one ends")]
    LeaseHeld(String),
    #[error("another process has read the outbox of slot {0} in the meantime: reading starts again where it ended")]
    Superseded(String),
    #[error("{0}; what was missed can be found again with `walhook repair`")]
    Gap(Gap),
    #[error(
        "column {column} of {table} is gone: bring it back and name what it was called meanwhile in \
         source.tables.{key}.formerly.{reference}, or name another in source.tables.{key}.columns.{reference}; then start again"
    )]
    ColumnGone { column: String, table: String, key: &'static str, reference: &'static str },
    #[error("the replication stream holds something unexpected: {0}")]
    Protocol(String),
}

impl From<PrimaryError> for CaptureError {
    fn from(error: PrimaryError) -> CaptureError {
        match error {
            PrimaryError::Connect(error) => CaptureError::Connect(error),
            PrimaryError::Query(error) => CaptureError::Primary(error),
            PrimaryError::Replication(error) => CaptureError::Replication(error),
            PrimaryError::Store(error) => CaptureError::Store(error),
            PrimaryError::Gap(gap) => CaptureError::Gap(gap),
            other => CaptureError::Setup(other),
        }
    }
}

impl CaptureError {
    /// Whether the platform's schema has moved away from under a stream that was sound. It is mended without us or by a new
    /// start; until then nothing is passed over.
    pub fn is_drift(&self) -> bool {
        matches!(self, CaptureError::ColumnGone { .. } | CaptureError::Setup(PrimaryError::Drift(_)))
    }

    /// The gap that a change of the platform's schema causes.
    pub fn gap_by_drift(&self) -> Option<Gap> {
        match self {
            CaptureError::Setup(PrimaryError::Drift(finding)) => finding.gap(),
            _ => None,
        }
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
            | CaptureError::Setup(PrimaryError::Standby | PrimaryError::CheckpointMoves(_))
            | CaptureError::PrimaryStops
            | CaptureError::SlotActive(_)
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
