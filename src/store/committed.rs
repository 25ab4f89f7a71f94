//! Remembers the checkpoint that this process committed last. A store with an earlier one was
//! restored from a backup, or failed over without its last commits.

use std::sync::{Arc, Mutex};

use super::Store;
use crate::domain::position::Checkpoint;

/// The checkpoint that was committed last. Shared by the clones of a [`Store`].
#[derive(Clone, Default)]
pub(super) struct Committed(Arc<Mutex<Option<Checkpoint>>>);

impl Committed {
    fn set(&self, checkpoint: Option<Checkpoint>) {
        *self.0.lock().expect("no holder of this lock panics") = checkpoint;
    }

    /// Returns whether `found` is older than what was committed. Only positions in the WAL of one
    /// timeline compare.
    fn is_after(&self, found: &Checkpoint) -> bool {
        let committed = self.0.lock().expect("no holder of this lock panics");
        committed.as_ref().is_some_and(|committed| {
            let are_comparable = committed.lineage == found.lineage
                && !committed.progress.is_outbox()
                && !found.progress.is_outbox();
            are_comparable && !found.progress.has_reached(&committed.progress)
        })
    }
}

impl Store {
    /// Notes that this process has committed `checkpoint`.
    pub fn note_committed(&self, checkpoint: &Checkpoint) {
        self.committed.set(Some(checkpoint.clone()));
    }

    /// Returns whether the store has lost commits of this process: `found` is the checkpoint that
    /// it has now.
    pub fn has_lost_commits(&self, found: &Checkpoint) -> bool {
        self.committed.is_after(found)
    }

    /// Forgets what this process has committed, because it is read again.
    pub fn forget_committed(&self) {
        self.committed.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lsn::{Lineage, Lsn};
    use crate::domain::position::{Progress, Through};

    fn checkpoint(timeline: u32, commit: u64) -> Checkpoint {
        let progress = Progress::Wal {
            commit: Lsn(commit),
            through: Through::End,
            resume: Lsn(commit + 1),
        };

        Checkpoint {
            lineage: Lineage {
                system_identifier: 1,
                timeline,
            },
            progress,
        }
    }

    #[test]
    fn an_earlier_checkpoint_of_the_same_timeline_has_lost_commits() {
        let committed = Committed::default();
        assert!(
            !committed.is_after(&checkpoint(1, 5)),
            "nothing was committed"
        );
        committed.set(Some(checkpoint(1, 7)));
        assert!(committed.is_after(&checkpoint(1, 5)));
        assert!(!committed.is_after(&checkpoint(1, 7)) && !committed.is_after(&checkpoint(1, 9)));
        assert!(
            !committed.is_after(&checkpoint(2, 5)),
            "another timeline is compared by its history"
        );
        committed.set(None);
        assert!(!committed.is_after(&checkpoint(1, 5)));
    }
}
