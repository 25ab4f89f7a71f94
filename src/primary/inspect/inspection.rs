//! The result of an inspection, and what it means for setup and for the running process.

use crate::config::Source;
use crate::postgres::quote_identifier;
use crate::primary::catalog::{FAILOVER_VERSION, MappedTable, Publication, Server, Slot};
use crate::primary::error::{PrimaryError, Result, refuse};
use crate::primary::finding::{Condition, Finding, Severity};
use crate::primary::lineage;
use crate::primary::triggers::catalog::{Comparison, TriggerState};
use crate::store::checkpoint::StoredCheckpoint;

/// Which conditions to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// All, for the configured mode of capture.
    All,
    /// Those of capture from the WAL that a change of the platform's schema can break under a
    /// running process.
    Wal,
    /// Those of capture by triggers that such a change can break.
    Triggers,
}

/// The parts of the primary's catalog that were read, and the findings about them. Parts that were
/// not read are none or empty.
pub(crate) struct Inspection {
    pub server: Option<Server>,
    pub tables: Vec<MappedTable>,
    pub slot: Option<Slot>,
    pub publication: Option<Publication>,
    pub triggers: Option<Triggers>,
    pub findings: Vec<Finding>,
}

/// The state of capture by triggers on the primary.
pub(crate) struct Triggers {
    pub state: TriggerState,
    pub comparison: Comparison,
    /// The tables that lack triggers and have rows.
    pub unguarded: Vec<u32>,
    /// The triggers that were disabled, enabled or dropped since setup.
    pub altered: Vec<String>,
    /// How often triggers have failed, and the last reason.
    pub failures: Option<(i64, Option<String>)>,
}

impl Inspection {
    /// Returns whether the slot or the outbox exists. If not, setup still has to read the existing
    /// rows.
    pub(super) fn is_set_up(&self) -> bool {
        self.triggers
            .as_ref()
            .map_or(self.slot.is_some(), |triggers| {
                triggers.state.is_installed()
            })
    }

    /// Returns the quoted name of Walhook's role. Empty if the server was not read: only findings
    /// for a DBA name the role.
    pub(super) fn role(&self) -> String {
        self.server
            .as_ref()
            .map(|server| quote_identifier(&server.role))
            .unwrap_or_default()
    }

    /// Returns whether a new slot is synchronized to standbys.
    pub fn can_fail_over(&self, source: &Source) -> bool {
        source.failover
            && self
                .server
                .as_ref()
                .is_some_and(|server| server.version >= FAILOVER_VERSION)
    }

    /// Verifies that no failover has replaced the inspected server: the slot that it lacks may be
    /// on the new primary.
    pub fn verify_not_replaced(&self, stored: Option<&StoredCheckpoint>) -> Result<()> {
        match self.server.as_ref().and_then(Server::lineage).zip(stored) {
            Some((found, stored)) => lineage::verify_not_replaced(found, stored.checkpoint.lineage),
            None => Ok(()),
        }
    }

    /// Fails with all findings that setup cannot fix.
    pub fn accept(&self) -> Result<()> {
        let findings = self.findings.iter();
        refuse(
            findings
                .filter(|finding| finding.blocks_setup)
                .cloned()
                .collect(),
        )
    }

    /// Fails with the first finding because of which the WAL lacks what all events need. Returns
    /// those that concern only some tables.
    pub fn accept_for_streaming(&self) -> Result<Vec<Finding>> {
        let (mut confined, others): (Vec<&Finding>, Vec<&Finding>) = self
            .findings
            .iter()
            .filter(|finding| finding.stops_streaming())
            .partition(|finding| finding.is_confined());
        if let Some(finding) = others.first() {
            return Err(PrimaryError::Drift(Box::new((*finding).clone())));
        }

        // A table that was dropped and created again is neither published nor has its replica
        // identity. The former comes first, because none of its changes are in the stream.
        confined.sort_by_key(|finding| finding.condition != Condition::PublishedTables);
        Ok(confined.into_iter().cloned().collect())
    }

    /// Returns the failures because of which triggers may not have captured changes, as one clause
    /// each.
    pub fn trigger_losses(&self) -> Vec<String> {
        self.failures(|condition| {
            matches!(
                condition,
                Condition::Triggers(_)
                    | Condition::TriggerFunction(_)
                    | Condition::GeneratedColumns(_)
                    | Condition::OutboxTrigger
            )
        })
    }

    /// Returns the failures that an operator has to fix and that have lost no change by themselves:
    /// nothing is written to a table that is missing, a trigger that lacks a column counts its
    /// failures, and a table without rows has none to lose.
    pub fn trigger_obstacles(&self) -> Vec<String> {
        self.failures(|condition| match condition {
            Condition::Table(table) => table.is_captured(),
            Condition::Columns(_) | Condition::TriggersOfEmpty(_) => true,
            _ => false,
        })
    }

    fn failures(&self, is_meant: impl Fn(Condition) -> bool) -> Vec<String> {
        let failed = self
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Fail);
        let meant = failed.filter(|finding| is_meant(finding.condition));
        meant
            .map(|finding| format!("{}: {}", finding.subject, finding.state))
            .collect()
    }

    /// Returns lines for setup's output about what it does not change.
    pub fn notes(&self) -> Vec<String> {
        let missing = self.findings.iter().filter(|finding| {
            finding.severity == Severity::Warn
                && matches!(
                    finding.condition,
                    Condition::Table(_) | Condition::Triggers(_)
                )
        });

        missing
            .map(|finding| format!("note: {}", finding.message()))
            .collect()
    }
}
