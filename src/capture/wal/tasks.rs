//! The background tasks of a stream.

use super::super::acknowledgement::AcknowledgementLimit;
use super::super::heartbeat::Heartbeats;
use super::visibility::VisibilityGate;
use crate::repair::gaps::Reports;

/// The tasks. They end when this is dropped.
pub(super) struct BackgroundTasks {
    pub heartbeats: Heartbeats,
    pub gate: VisibilityGate,
    pub limit: AcknowledgementLimit,
    pub gaps: Reports,
}
