//! Positions in the primary's write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A byte position in the write-ahead log, written `16/B374D848` as Postgres does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    pub const ZERO: Lsn = Lsn(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a log position (two hexadecimal numbers joined by a slash)")]
pub struct InvalidLsn(String);

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let halves = text.split_once('/').and_then(|(high, low)| {
            let high = u32::from_str_radix(high, 16).ok()?;
            let low = u32::from_str_radix(low, 16).ok()?;
            Some(Lsn((u64::from(high) << 32) | u64::from(low)))
        });
        halves.ok_or_else(|| InvalidLsn(text.to_owned()))
    }
}

/// Where one row change stands: the commit of its transaction, and its ordinal among that transaction's changes.
///
/// Transactions arrive in commit order, so positions only grow. Positions inside a transaction are ordinals because the
/// positions of single records say nothing about the order in which transactions arrive.
///
/// Where triggers capture, `commit` is the number of a [window](super::window), and `ordinal` the place in the outbox. Numbers
/// go on from the log's position at the switch, so that positions grow across it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub commit: Lsn,
    pub ordinal: u64,
}

impl Position {
    /// The position behind the last change of the transaction committed at `commit`.
    pub const fn end_of(commit: Lsn) -> Self {
        Position { commit, ordinal: i64::MAX as u64 }
    }
}

/// Which cluster, and which of its histories, positions belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    pub system_identifier: u64,
    pub timeline: u32,
}

/// A server's timeline and those it descends from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineHistory {
    current: u32,
    /// The oldest first, each with the position where the next one begins.
    ancestors: Vec<(u32, Lsn)>,
}

impl TimelineHistory {
    pub fn new(current: u32, ancestors: Vec<(u32, Lsn)>) -> Self {
        TimelineHistory { current, ancestors }
    }

    pub fn current(&self) -> u32 {
        self.current
    }

    /// The timeline that the WAL at `position` was written on. Which server it is read from makes no difference.
    pub fn timeline_at(&self, position: Lsn) -> u32 {
        let of_ancestor = self.ancestors.iter().find(|(_, end)| position < *end);
        of_ancestor.map_or(self.current, |(timeline, _)| *timeline)
    }

    /// Where an ancestor ended; none for a timeline that is not one.
    pub fn end_of(&self, ancestor: u32) -> Option<Lsn> {
        self.ancestors.iter().find(|(timeline, _)| *timeline == ancestor).map(|(_, end)| *end)
    }
}

/// How far the store has come: changes up to `position` are in it, and a restart reads from `resume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub lineage: Lineage,
    pub position: Position,
    /// The end of the last transaction that is wholly in the store: where streaming starts again. Where triggers capture, the
    /// last row of the outbox that was read.
    pub resume: Lsn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"] {
            assert_eq!(text.parse::<Lsn>().unwrap().to_string(), text);
        }
        for bad in ["", "16", "/", "G/0", "1/100000000", "-1/0"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn wal_belongs_to_the_timeline_that_was_current_when_it_was_written() {
        let history = TimelineHistory::new(4, vec![(1, Lsn(50)), (3, Lsn(100))]);
        let timelines = [0, 49, 50, 99, 100, 1_000].map(|position| history.timeline_at(Lsn(position)));
        assert_eq!(timelines, [1, 1, 3, 3, 4, 4]);
        assert_eq!((history.end_of(3), history.end_of(2), history.end_of(4)), (Some(Lsn(100)), None, None));
        assert_eq!(TimelineHistory::new(2, Vec::new()).timeline_at(Lsn(7)), 2, "a history that nobody has any more");
    }

    #[test]
    fn every_change_of_a_transaction_lies_before_its_end_and_behind_earlier_commits() {
        let change = Position { commit: Lsn(7), ordinal: 1_000_000 };
        assert!(change < Position::end_of(Lsn(7)));
        assert!(change > Position::end_of(Lsn(6)));
    }
}
