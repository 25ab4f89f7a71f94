//! The tasks that run beside a stream.

use super::super::acknowledgement::AcknowledgementLimit;
use super::super::heartbeat::Heartbeats;
use super::visibility::VisibilityGate;
use crate::repair::gaps::Reports;

/// Ended when the stream ends.
pub(super) struct BackgroundTasks {
    pub heartbeats: Heartbeats,
    pub gate: VisibilityGate,
    pub limit: AcknowledgementLimit,
    pub gaps: Reports,
}
