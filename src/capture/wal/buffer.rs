//! Collects changes of the stream until they are sent as a batch.

use super::decode::weight;
use crate::domain::change::{Batch, Change};
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::{Checkpoint, Progress, Through};

/// A batch is sent at the latest with this many changes, or values of this many bytes.
const MAX_CHANGES: usize = 4_000;
const MAX_WEIGHT: usize = 4 << 20;

/// Changes that are not sent yet, and their positions.
#[derive(Debug, Default)]
pub(super) struct BatchBuffer {
    changes: Vec<Change>,
    weight: usize,
    /// The transaction of the last change.
    xid: Option<u32>,
    /// The end of the last whole transaction that was received.
    pub end: Lsn,
    /// The commit of that transaction.
    pub commit: Lsn,
    /// Part of the open transaction has been sent.
    sent_part: bool,
    /// The buffer has changes of the open transaction.
    has_open: bool,
    /// A transaction of which a part was sent has ended: its end must be sent even without changes.
    owes_end: bool,
}

impl BatchBuffer {
    pub fn starting_at(resume: Lsn) -> BatchBuffer {
        BatchBuffer {
            end: resume,
            ..BatchBuffer::default()
        }
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.owes_end
    }

    pub fn is_full(&self) -> bool {
        self.changes.len() >= MAX_CHANGES || self.weight >= MAX_WEIGHT
    }

    /// Returns the list to which the decoder adds changes. Call [`Self::added`] afterwards, with
    /// the length before.
    pub fn changes(&mut self) -> &mut Vec<Change> {
        &mut self.changes
    }

    /// Accounts for the changes of the open transaction that were added after the first `before`.
    pub fn added(&mut self, before: usize, xid: Option<u32>) {
        if self.changes.len() > before {
            self.weight += self.changes[before..].iter().map(weight).sum::<usize>();
            (self.has_open, self.xid) = (true, xid);
        }
    }

    /// Ends the open transaction.
    pub fn end_transaction(&mut self, commit: Lsn, end: Lsn) {
        (self.commit, self.end) = (commit, end);
        self.owes_end |= self.sent_part;
        (self.sent_part, self.has_open) = (false, false);
    }

    /// Takes everything as one batch. `open` is the commit of the open transaction and the ordinal
    /// up to which it was received.
    pub fn take(&mut self, lineage: Lineage, open: Option<(Lsn, u64)>) -> Batch {
        let (commit, through) = match open {
            Some((commit, ordinal)) if self.has_open => (commit, Through::Ordinal(ordinal)),
            _ => (self.commit, Through::End),
        };

        self.sent_part |= self.has_open;
        (self.owes_end, self.has_open, self.weight) = (false, false, 0);

        let progress = Progress::Wal {
            commit,
            through,
            resume: self.end,
        };

        let checkpoint = Checkpoint { lineage, progress };
        Batch {
            changes: std::mem::take(&mut self.changes),
            derived: Vec::new(),
            checkpoint,
            transaction: self.xid,
            reader: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::domain::change::Operation;
    use crate::domain::position::Position;
    use crate::domain::table::Table;

    const LINEAGE: Lineage = Lineage {
        system_identifier: 7,
        timeline: 1,
    };

    fn add(buffer: &mut BatchBuffer, commit: u64, ordinal: u64) {
        let before = buffer.changes.len();
        buffer.changes().push(Change {
            position: Position::Wal {
                timeline: 1,
                commit: Lsn(commit),
                ordinal,
            },
            committed_at: Timestamp::UNIX_EPOCH,
            muted: false,
            table: Table::Release,
            operation: Operation::Truncate,
        });

        buffer.added(before, Some(commit as u32));
    }

    fn progress(commit: u64, through: Through, resume: u64) -> Progress {
        Progress::Wal {
            commit: Lsn(commit),
            through,
            resume: Lsn(resume),
        }
    }

    #[test]
    fn whole_transactions_are_sent_with_their_end() {
        let mut buffer = BatchBuffer::starting_at(Lsn(5));
        add(&mut buffer, 10, 1);
        buffer.end_transaction(Lsn(10), Lsn(12));
        let batch = buffer.take(LINEAGE, None);
        assert_eq!(batch.checkpoint.progress, progress(10, Through::End, 12));
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_part_of_a_transaction_resumes_before_it_and_owes_its_end() {
        let mut buffer = BatchBuffer::starting_at(Lsn(5));
        add(&mut buffer, 8, 1);
        buffer.end_transaction(Lsn(8), Lsn(9));
        add(&mut buffer, 10, 1);

        let first = buffer.take(LINEAGE, Some((Lsn(10), 1)));
        assert_eq!(
            first.checkpoint.progress,
            progress(10, Through::Ordinal(1), 9)
        );

        // It has no further changes. Without its end, a part in flight could not be distinguished
        // from a stored one.
        assert!(buffer.is_empty());
        buffer.end_transaction(Lsn(10), Lsn(12));
        assert!(!buffer.is_empty());

        let last = buffer.take(LINEAGE, None);
        assert_eq!(last.checkpoint.progress, progress(10, Through::End, 12));
        assert_eq!((last.changes.len(), last.transaction), (0, Some(10)));
        assert!(buffer.is_empty());
    }

    #[test]
    fn an_open_transaction_without_captured_changes_is_not_sent_in_part() {
        let mut buffer = BatchBuffer::default();
        add(&mut buffer, 8, 1);
        buffer.end_transaction(Lsn(8), Lsn(9));

        let batch = buffer.take(LINEAGE, Some((Lsn(10), 4)));
        assert_eq!(batch.checkpoint.progress, progress(8, Through::End, 9));
        buffer.end_transaction(Lsn(10), Lsn(12));
        assert!(
            buffer.is_empty(),
            "nothing of it was sent, so no end is owed"
        );
    }
}
