//! Positions of changes in the WAL or in the outbox, of events in a log, and checkpoints.
//!
//! Capture can switch between the WAL and the outbox. Window numbers continue from the WAL position
//! at the switch and grow more slowly than the WAL does, so positions of the two compare by number
//! across a switch. A position in a log is the number of an event, on a scale of its own.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::lsn::{Lineage, Lsn};
use super::read_pages::ReadPages;
use super::window::Window;

/// The position of a change in the WAL or in the outbox, or of an event in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Transactions arrive in commit order. Inside a transaction an ordinal is used, because the
    /// LSNs of single records do not follow the order in which transactions arrive.
    Wal {
        /// The timeline on which the commit was written.
        timeline: u32,
        /// The LSN of the transaction's commit record.
        commit: Lsn,
        /// The number of the row change in its transaction, counted from one.
        ordinal: u64,
    },
    Outbox {
        /// The number of the window in which the row was read.
        window: u64,
        /// The full transaction id (`xid8`) of the transaction that wrote the row.
        transaction: u64,
        /// The row's sequence number in the outbox.
        ordinal: u64,
    },
    Log {
        /// The number of the event in the log.
        number: u64,
        /// The commit that raised it, as far as the log knows it.
        commit: Option<Lsn>,
    },
}

impl Position {
    /// Returns the LSN of the commit record. None for a row of the outbox, whose LSN is unknown.
    pub const fn commit(&self) -> Option<Lsn> {
        match self {
            Position::Wal { commit, .. } => Some(*commit),
            Position::Outbox { .. } => None,
            Position::Log { commit, .. } => *commit,
        }
    }

    /// Returns the ordinal. For an event of a log, its number there.
    pub const fn ordinal(&self) -> u64 {
        let (Position::Wal {
            ordinal: number, ..
        }
        | Position::Outbox {
            ordinal: number, ..
        }
        | Position::Log { number, .. }) = self;
        *number
    }

    /// Returns the sort key. The timeline and the transaction are not part of it: they follow from
    /// the other two.
    const fn key(&self) -> (u64, Through) {
        match self {
            Position::Wal {
                commit, ordinal, ..
            } => (commit.0, Through::Ordinal(*ordinal)),
            Position::Outbox {
                window, ordinal, ..
            } => (*window, Through::Ordinal(*ordinal)),
            Position::Log { number, .. } => (*number, Through::End),
        }
    }
}

/// How much of a transaction or of a window is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Through {
    /// Up to and including this ordinal. Zero is the beginning: ordinals start at one.
    Ordinal(u64),
    /// All of it.
    End,
}

/// How far changes are stored, and where a restart reads from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Wal {
        /// The commit of the transaction that was stored last.
        commit: Lsn,
        through: Through,
        /// The end of the last transaction that is completely stored. Streaming restarts there.
        resume: Lsn,
    },
    Outbox {
        /// The window that was read last.
        window: Window,
        through: Through,
        /// The highest sequence number that was read.
        last_row: u64,
        /// The pages that were read last.
        read: Arc<ReadPages>,
    },
    Log(LogProgress),
}

/// How far a log is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProgress {
    /// The id of the store that has the log.
    pub store: Uuid,
    /// The number of the event that was stored last. Zero is the beginning.
    pub number: u64,
    /// That event's id. None at the beginning, and if the log no longer had it.
    pub event: Option<Uuid>,
}

impl Progress {
    /// Returns whether the change at `position` is stored.
    pub fn includes(&self, position: &Position) -> bool {
        position.key() <= self.key()
    }

    /// Returns whether everything up to `other` is stored.
    pub fn has_reached(&self, other: &Progress) -> bool {
        self.key() >= other.key()
    }

    /// Returns the LSN from which streaming restarts. None while the outbox or a log is read.
    pub const fn resume(&self) -> Option<Lsn> {
        match self {
            Progress::Wal { resume, .. } => Some(*resume),
            Progress::Outbox { .. } | Progress::Log(_) => None,
        }
    }

    /// Returns the progress in a window before whose end no page is remembered.
    pub fn in_window(window: Window, through: Through, last_row: u64) -> Progress {
        let read = Arc::new(ReadPages::after_window(window.number));
        Progress::Outbox {
            window,
            through,
            last_row,
            read,
        }
    }

    pub const fn is_outbox(&self) -> bool {
        matches!(self, Progress::Outbox { .. })
    }

    /// Returns the progress in a log. None if none is read.
    pub const fn log(&self) -> Option<LogProgress> {
        match self {
            Progress::Log(log) => Some(*log),
            Progress::Wal { .. } | Progress::Outbox { .. } => None,
        }
    }

    /// Returns the number of the commit or of the window, on the scale that both share, or of the
    /// event.
    pub const fn number(&self) -> u64 {
        match self {
            Progress::Wal { commit, .. } => commit.0,
            Progress::Outbox { window, .. } => window.number,
            Progress::Log(log) => log.number,
        }
    }

    /// Returns how much of the last transaction or window is stored. An event is stored whole.
    pub const fn through(&self) -> Through {
        match self {
            Progress::Wal { through, .. } | Progress::Outbox { through, .. } => *through,
            Progress::Log(_) => Through::End,
        }
    }

    const fn key(&self) -> (u64, Through) {
        (self.number(), self.through())
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Wal { resume, .. } => resume.fmt(f),
            Progress::Outbox { last_row, .. } => write!(f, "outbox row {last_row}"),
            Progress::Log(log) => write!(f, "event {} of the log", log.number),
        }
    }
}

/// How far the store has progressed, and on which timeline of which cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub lineage: Lineage,
    pub progress: Progress,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wal(timeline: u32, commit: u64, ordinal: u64) -> Position {
        Position::Wal {
            timeline,
            commit: Lsn(commit),
            ordinal,
        }
    }

    fn stored(commit: u64, through: Through) -> Progress {
        Progress::Wal {
            commit: Lsn(commit),
            through,
            resume: Lsn(1),
        }
    }

    #[test]
    fn every_change_of_a_transaction_is_before_its_end_and_after_earlier_commits() {
        let change = wal(1, 7, 1_000_000);
        assert!(stored(7, Through::End).includes(&change));
        assert!(!stored(6, Through::End).includes(&change));
    }

    #[test]
    fn part_of_a_transaction_includes_its_changes_up_to_the_ordinal() {
        let part = stored(7, Through::Ordinal(2));
        assert_eq!(
            [1, 2, 3].map(|ordinal| part.includes(&wal(1, 7, ordinal))),
            [true, true, false]
        );
        assert!(part.includes(&wal(9, 7, 2)), "the timeline does not count");
        assert!(
            !stored(7, Through::Ordinal(0)).includes(&wal(1, 7, 1)),
            "nothing of it is stored"
        );
        assert!(
            stored(7, Through::End).has_reached(&part)
                && !part.has_reached(&stored(7, Through::End))
        );
    }

    #[test]
    fn positions_grow_across_both_switches() {
        let window = |number| Progress::in_window(Window::empty(number), Through::End, 3);
        let row = Position::Outbox {
            window: 8,
            transaction: 700,
            ordinal: 1,
        };

        assert!(window(8).has_reached(&stored(7, Through::End)));
        assert!(!stored(7, Through::End).includes(&row) && window(8).includes(&row));
        assert!(stored(20, Through::Ordinal(0)).has_reached(&window(8)));
    }
}
