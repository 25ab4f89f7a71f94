//! The errors of capture and of the primary, each with its remedy, and whether a retry can succeed.

use std::time::Duration;

use crate::domain::cell::CellFault;
use crate::domain::gap::Gap;
use crate::postgres::ConnectError;
use crate::primary::error::PrimaryError;
use crate::store::StoreError;
use crate::store::migrate::Incompatibility;
use crate::telemetry::count_disk_fault;

#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// An error that is not specific to capture: of a connection or the store, a gap, or a primary
    /// that is not ready.
    #[error(transparent)]
    Primary(PrimaryError),
    #[error("the primary is shutting down: capture continues when it is back")]
    PrimaryStops,
    #[error("slot {0} is in use by another process: capture starts here when that process ends")]
    SlotActive(String),
    #[error(
        "slot {0} is still held by an earlier connection of this process, whose end the primary has not noticed: ending it"
    )]
    SlotLingers(String),
    /// Changes that were read on the old timeline must not be stored: capture starts over from the
    /// checkpoint.
    #[error("the primary has moved from timeline {from} to {to}")]
    NewTimeline { from: u32, to: u32 },
    #[error("the store's checkpoint of slot {0} is older than what this process has stored")]
    StoreBehind(String),
    #[error("the primary has sent nothing for {0:?}")]
    Silent(Duration),
    #[error("a heartbeat has not come back through the WAL for {0:?}")]
    HeartbeatLost(Duration),
    #[error(
        "the primary is on another timeline than the stream: capture starts again on the new one"
    )]
    TimelineChanged,
    #[error(
        "the publication has changed, and may have been restored: capture starts again and reports what was not published"
    )]
    PublicationInterrupted,
    #[error(
        "another process reads the outbox or the log of slot {0}: capture starts here when that process ends"
    )]
    LeaseHeld(String),
    #[error(
        "another process has read the outbox or the log of slot {0} meanwhile: reading continues from its checkpoint"
    )]
    Superseded(String),
    #[error(
        "column {column} of {table} is gone: restore it and add the name that it had meanwhile to \
         source.tables.{key}.formerly.{reference}, or set source.tables.{key}.columns.{reference} to another column; then restart"
    )]
    ColumnGone {
        column: String,
        table: String,
        key: &'static str,
        reference: &'static str,
    },
    #[error(
        "column {column} of {table} is not in the WAL: restore it; or, if it was only added now, leave it out of \
         source.tables.{key}.only until older changes are read; then restart"
    )]
    ConditionGone {
        column: String,
        table: String,
        key: &'static str,
    },
    #[error("source.log_url: {0}")]
    Log(StoreError),
    #[error("source.log_url: {0}")]
    LogUnreadable(Incompatibility),
    #[error("the log store has closed the connection: reading continues when it is back")]
    LogStops,
    #[error(
        "source.log_url and store.url lead to the same database: the store that reads a log needs its own"
    )]
    LogIsStore,
    #[error(
        "the log has no event that the store has too, so events between the two would be missed: let the process that writes the \
         log run beside this store's until both have stored an event, then run `walhook setup` again"
    )]
    LogNotCommon,
    #[error(
        "source.log_url leads to a standby, which may lack the last events: give it all hosts of the log store and \
         target_session_attrs=read-write"
    )]
    LogStandby,
    /// Not read: receivers reject signatures whose time is some minutes off.
    #[error(
        "the clock of the log store differs by {0} s from this machine's: synchronize both with a time server; the log is read when \
         they agree"
    )]
    LogClock(i64),
    /// Not read: a server that was replaced lacks what its successor has stored.
    #[error(
        "source.log_url leads to a server on timeline {found}, and the log was read on the later timeline {known}: a failover has \
         replaced the server. Stop it, make it a standby or remove it from source.log_url; reading continues on its successor"
    )]
    LogReplaced { found: u32, known: u32 },
    /// Events that were read already may not be part of the log any more: enqueue starts over too.
    #[error(
        "the log store has failed over: reading starts again from the last event that both stores have"
    )]
    LogMoved,
    #[error(
        "the log has an event {0}, which this version does not know: update this process, and it is read"
    )]
    LogNewer(String),
    /// The process must not read, or not with the shards that it knows.
    #[error("{0}")]
    Cell(CellFault),
    #[error(
        "another process reads the log for cell {0}, and it is not of this store, or has just died: two stores cannot be the same cell. Stop the processes of the other one"
    )]
    CellHeld(String),
    #[error("the replication stream contains something unexpected: {0}")]
    Protocol(String),
}

impl<E: Into<PrimaryError>> From<E> for CaptureError {
    fn from(error: E) -> CaptureError {
        CaptureError::Primary(error.into())
    }
}

impl From<CellFault> for CaptureError {
    fn from(fault: CellFault) -> CaptureError {
        CaptureError::Cell(fault)
    }
}

impl CaptureError {
    /// Counts the error if the primary's disk is the cause.
    pub fn count_disk_fault(&self) {
        if let CaptureError::Primary(error) = self
            && let Some(fault) = error.disk_fault()
        {
            count_disk_fault("primary", fault.as_str());
        }
    }

    /// Returns whether another process captures, as for all replicas but one.
    pub fn is_standing_by(&self) -> bool {
        matches!(
            self,
            CaptureError::SlotActive(_) | CaptureError::LeaseHeld(_)
        )
    }

    /// Returns whether the platform's schema no longer matches. Capture waits until the schema or
    /// the configuration is fixed, and skips nothing.
    pub fn is_drift(&self) -> bool {
        matches!(
            self,
            CaptureError::ColumnGone { .. }
                | CaptureError::ConditionGone { .. }
                | CaptureError::Primary(PrimaryError::Drift(_))
        )
    }

    /// Returns the gap because of which capture cannot continue.
    pub fn gap(&self) -> Option<&Gap> {
        match self {
            CaptureError::Primary(PrimaryError::Gap(gap)) => Some(gap),
            _ => None,
        }
    }

    /// Returns the gap that a change of the platform's schema causes.
    pub fn gap_by_drift(&self) -> Option<Gap> {
        match self {
            CaptureError::Primary(PrimaryError::Drift(finding)) => finding.gap(),
            _ => None,
        }
    }

    /// Returns whether the stream needs WAL that the server no longer has, although the slot
    /// retains it.
    pub fn is_missing_wal(&self) -> bool {
        matches!(self, CaptureError::Primary(error) if error.is_missing_wal())
    }

    /// Returns whether the publication did not exist when the WAL to be read was written. One that
    /// is created again does not help.
    pub fn is_missing_publication(&self) -> bool {
        matches!(self, CaptureError::Primary(error) if error.is_missing_publication())
    }

    /// Returns whether the primary's commits would wait for this stream.
    pub fn is_own_standby(&self) -> bool {
        matches!(self, CaptureError::Primary(PrimaryError::OwnStandby(_)))
    }

    /// Returns whether the server was replaced by a failover and still runs.
    pub fn is_replaced(&self) -> bool {
        matches!(self, CaptureError::Primary(PrimaryError::Replaced(_)))
    }

    /// Returns the reason for readiness, which anybody may read: the whole message only if an
    /// operator has to act.
    pub fn readiness(&self) -> String {
        match self.is_drift()
            || self.is_own_standby()
            || self.is_replaced()
            || matches!(
                self,
                CaptureError::LogStandby
                    | CaptureError::LogReplaced { .. }
                    | CaptureError::LogClock(_)
                    | CaptureError::LogNewer(_)
                    | CaptureError::CellHeld(_)
            ) {
            true => self.to_string(),
            false => "changes cannot be read now".to_owned(),
        }
    }

    /// Returns whether the stream must end, although it has not reported an error itself.
    pub fn ends_stream(&self) -> bool {
        matches!(
            self,
            CaptureError::PrimaryStops | CaptureError::TimelineChanged
        ) || self.is_own_standby()
    }

    /// Returns whether a retry can succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            CaptureError::Primary(error) => error.is_transient(),
            // Passwords are rotated, and privileges may be granted later.
            CaptureError::Log(error) => !matches!(
                error,
                StoreError::Corrupt(_)
                    | StoreError::Migration(_)
                    | StoreError::Connect(ConnectError::Url | ConnectError::Tls(_))
            ),
            CaptureError::PrimaryStops
            | CaptureError::SlotActive(_)
            | CaptureError::SlotLingers(_)
            | CaptureError::LeaseHeld(_)
            | CaptureError::Silent(_)
            | CaptureError::TimelineChanged
            | CaptureError::PublicationInterrupted
            | CaptureError::LogStandby
            | CaptureError::LogReplaced { .. }
            | CaptureError::LogClock(_)
            | CaptureError::LogStops
            | CaptureError::LogNewer(_)
            | CaptureError::CellHeld(_)
            | CaptureError::HeartbeatLost(_) => true,
            _ => false,
        }
    }
}
