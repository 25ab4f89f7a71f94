//! Compares a server with the stored checkpoint: a connection can reach another cluster, or a
//! primary that a failover has replaced.

use super::error::{PrimaryError, Result};
use super::finding::Finding;
use crate::domain::lsn::Lineage;

/// Verifies that a server of lineage `found` can have what follows a checkpoint of lineage `known`.
pub(crate) fn verify(found: Lineage, known: Lineage) -> Result<()> {
    if found.system_identifier != known.system_identifier {
        let known = known.system_identifier;
        let found = found.system_identifier;
        return Err(PrimaryError::ForeignCluster { known, found });
    }

    verify_not_replaced(found, known)
}

/// Verifies that no failover has replaced the server. Servers of other clusters pass.
pub(crate) fn verify_not_replaced(found: Lineage, known: Lineage) -> Result<()> {
    match replaced(found, known) {
        Some(finding) => Err(PrimaryError::Replaced(Box::new(finding))),
        None => Ok(()),
    }
}

/// Returns a failure if the server is on an earlier timeline than the checkpoint. Each failover
/// starts a later timeline, and so does each recovery from an archive that has it.
///
/// This is no gap: the WAL after the checkpoint is on the server that was promoted. A server that
/// was reset to a copy of its disk from before the failover looks the same. Only the operator knows
/// which of the two it is.
pub(crate) fn replaced(found: Lineage, known: Lineage) -> Option<Finding> {
    let is_replaced =
        found.system_identifier == known.system_identifier && found.timeline < known.timeline;
    is_replaced.then(|| {
        Finding::fail(
            "primary timeline",
            format!(
                "source.url leads to a server on timeline {}, and the checkpoint is on the later timeline {}: the server was replaced \
                 by a failover, or restored to a time before one",
                found.timeline, known.timeline
            ),
            "stop the server, make it a standby or remove it from source.url: capture continues on the new primary; if the server is \
             the primary because it was restored, run `walhook repair --force`",
        )
        .blocking()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Lineage = Lineage {
        system_identifier: 7,
        timeline: 2,
    };

    fn verified(system_identifier: u64, timeline: u32) -> Result<()> {
        verify(
            Lineage {
                system_identifier,
                timeline,
            },
            KNOWN,
        )
    }

    #[test]
    fn an_earlier_timeline_is_that_of_a_replaced_server_and_no_gap() {
        let error = verified(7, 1).unwrap_err();
        assert!(
            matches!(error, PrimaryError::Replaced(_)) && error.is_transient(),
            "{error}"
        );
        assert!(verified(7, 2).is_ok());
        assert!(verified(7, 3).is_ok(), "compared by its history");
    }

    #[test]
    fn a_server_of_another_cluster_is_foreign_on_any_timeline() {
        for timeline in 1..4 {
            let error = verified(8, timeline).unwrap_err();
            assert!(
                matches!(error, PrimaryError::ForeignCluster { known: 7, found: 8 }),
                "{error}"
            );

            assert!(
                verify_not_replaced(
                    Lineage {
                        system_identifier: 8,
                        timeline
                    },
                    KNOWN
                )
                .is_ok()
            );
        }
    }
}
