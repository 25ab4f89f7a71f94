//! How many deliveries a job would create, and how far it has come: what recoveries and replays
//! have in common with the table of jobs.

use uuid::Uuid;

use super::statement::{ColumnValue, from_row};

/// How many deliveries a job would create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSize {
    pub count: u64,
    /// False for a lower bound.
    pub is_exact: bool,
}

/// What a job reads. A recovery has the phases `AttemptLog` and `MissedEvents`. A replay has all but
/// `MissedEvents`, in their order: the first two find the events that the webhook has had. A
/// delivery that ended before the first one, or ends between them, is in the log when the second
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    PendingDeliveries,
    AttemptLog,
    MissedEvents,
    /// In the order of the events' numbers.
    Events,
}

impl Phase {
    const ALL: [Phase; 4] = [
        Phase::PendingDeliveries,
        Phase::AttemptLog,
        Phase::MissedEvents,
        Phase::Events,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Phase::PendingDeliveries => "pending",
            Phase::AttemptLog => "log",
            Phase::MissedEvents => "missed",
            Phase::Events => "events",
        }
    }
}

impl ColumnValue for Phase {
    type Stored = String;

    fn from_stored(stored: String) -> std::result::Result<Phase, String> {
        let mut phases = Phase::ALL.into_iter();
        phases
            .find(|phase| phase.as_str() == stored)
            .ok_or_else(|| format!("unknown phase {stored}"))
    }
}

/// How far a job has come.
#[derive(Clone, Copy, Debug)]
pub struct JobProgress {
    pub phase: Phase,
    /// The last id of the phase that was read.
    pub position: Uuid,
    /// The number of the last event that was read.
    pub sequence: i64,
}

from_row!(JobProgress {
    phase,
    position,
    sequence
});

impl JobProgress {
    /// Returns the start of a phase.
    pub fn start_of(phase: Phase) -> JobProgress {
        JobProgress {
            phase,
            position: Uuid::nil(),
            sequence: 0,
        }
    }
}
