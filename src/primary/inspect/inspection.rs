//! The result of an inspection, and what setup and the running process make of it.

use crate::config::Source;
use crate::primary::catalog::{FAILOVER_VERSION, MappedTable, Publication, Server, Slot};
use crate::primary::error::PrimaryError;
use crate::primary::finding::{Condition, Finding, Severity};
use crate::primary::triggers::catalog::{Comparison, TriggerState};

/// Which conditions to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// All, for the configured way of capture.
    All,
    /// Those of capture from the WAL that a change of the platform's schema can break under a running process.
    Wal,
    /// The same for capture by triggers.
    Triggers,
}

/// What was read from the primary's catalog and what is wrong with it. Parts that were not asked for are none or empty.
pub(crate) struct Inspection {
    pub server: Option<Server>,
    pub tables: Vec<MappedTable>,
    pub slot: Option<Slot>,
    pub publication: Option<Publication>,
    pub triggers: Option<Triggers>,
    pub findings: Vec<Finding>,
}

/// What there is of capture by triggers.
pub(crate) struct Triggers {
    pub state: TriggerState,
    pub comparison: Comparison,
    /// How often triggers have failed, and the last reason.
    pub failures: Option<(i64, Option<String>)>,
}

impl Inspection {
    /// Whether the slot or the outbox exists: until then, setup has rows to read.
    pub(super) fn is_set_up(&self) -> bool {
        self.triggers.as_ref().map_or(self.slot.is_some(), |triggers| triggers.state.installed)
    }

    /// Whether a new slot is synchronized to standbys.
    pub fn can_fail_over(&self, source: &Source) -> bool {
        source.failover && self.server.as_ref().is_some_and(|server| server.version >= FAILOVER_VERSION)
    }

    /// Fails with everything that setup cannot fix by itself.
    pub fn accept(&self) -> Result<(), PrimaryError> {
        let blocking: Vec<Finding> = self.findings.iter().filter(|finding| finding.blocks_setup).cloned().collect();
        if blocking.is_empty() { Ok(()) } else { Err(PrimaryError::Preconditions(blocking)) }
    }

    /// Fails with the first change of the schema because of which the WAL lacks what events need.
    pub fn accept_for_streaming(&self) -> Result<(), PrimaryError> {
        // A table that was replaced lacks both its place in the publication and its replica identity: report the former, because its
        // changes are missing altogether.
        let by_loss = |finding: &&Finding| finding.condition != Condition::Publication;
        match self.findings.iter().filter(|finding| finding.stops_streaming()).min_by_key(by_loss) {
            Some(finding) => Err(PrimaryError::Drift(Box::new(finding.clone()))),
            None => Ok(()),
        }
    }

    /// The failures because of which triggers may not have captured changes, as one sentence each.
    pub fn trigger_faults(&self) -> Vec<String> {
        let failed = self.findings.iter().filter(|finding| finding.severity == Severity::Fail);
        let of_triggers = failed.filter(|finding| match finding.condition {
            Condition::Table(table) => table.is_captured(),
            Condition::Columns(_)
            | Condition::Triggers(_)
            | Condition::TriggerFunction(_)
            | Condition::OutboxTrigger => true,
            _ => false,
        });
        of_triggers.map(|finding| format!("{}: {}", finding.subject, finding.state)).collect()
    }

    /// Lines for setup's output about what it leaves as it is.
    pub fn notes(&self) -> Vec<String> {
        let missing = self.findings.iter().filter(|finding| {
            finding.severity == Severity::Warn
                && matches!(finding.condition, Condition::Table(_) | Condition::Triggers(_))
        });
        missing.map(|finding| format!("note: {}", finding.message())).collect()
    }
}
