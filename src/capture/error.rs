//! The errors of capture and of the primary, each with its remedy, and whether a retry can succeed.

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
    /// The primary is not ready for capture.
    #[error(transparent)]
    Setup(PrimaryError),
    #[error("the primary is shutting down: capture continues when it is back")]
    PrimaryStops,
    #[error("slot {0} is in use by another process: capture starts here when that process ends")]
    SlotActive(String),
    #[error(
        "slot {0} is still held by an earlier connection of this process, whose end the primary has not noticed: ending it"
    )]
    SlotLingers(String),
    /// Changes that were read on the old timeline must not be stored: capture starts over from the checkpoint.
    #[error("the primary has moved from timeline {from} to {to}")]
    NewTimeline { from: u32, to: u32 },
    #[error("the primary has sent nothing for {0:?}")]
    Silent(Duration),
    #[error("a heartbeat has not come back through the WAL for {0:?}")]
    HeartbeatLost(Duration),
    #[error("the primary is on another timeline than the stream: capture starts again on the new one")]
    TimelineChanged,
    #[error("another process reads the outbox of slot {0}: capture starts here when that process ends")]
    LeaseHeld(String),
    #[error("another process has read the outbox of slot {0} meanwhile: reading continues from its checkpoint")]
    Superseded(String),
    #[error("{0}; `walhook repair` finds the events that were missed")]
    Gap(Gap),
    #[error(
        "column {column} of {table} is gone: restore it and add the name that it had meanwhile to \
         source.tables.{key}.formerly.{reference}, or set source.tables.{key}.columns.{reference} to another column; then restart"
    )]
    ColumnGone { column: String, table: String, key: &'static str, reference: &'static str },
    #[error("the replication stream contains something unexpected: {0}")]
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
    /// Returns whether the platform's schema no longer matches. Capture waits until the schema or the configuration is fixed, and skips
    /// nothing.
    pub fn is_drift(&self) -> bool {
        matches!(self, CaptureError::ColumnGone { .. } | CaptureError::Setup(PrimaryError::Drift(_)))
    }

    /// Returns the gap that a change of the platform's schema causes.
    pub fn gap_by_drift(&self) -> Option<Gap> {
        match self {
            CaptureError::Setup(PrimaryError::Drift(finding)) => finding.gap(),
            _ => None,
        }
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
            | CaptureError::Setup(PrimaryError::Standby | PrimaryError::CheckpointMoves(_))
            | CaptureError::PrimaryStops
            | CaptureError::SlotActive(_)
            | CaptureError::SlotLingers(_)
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
