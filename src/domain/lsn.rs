//! LSNs and timelines of the primary's WAL.

use std::fmt;
use std::str::FromStr;

/// A log sequence number: a byte position in the WAL, in PostgreSQL's text form `16/B374D848`.
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
#[error("`{0}` is not an LSN (two hexadecimal numbers joined by a slash)")]
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

/// The cluster and the timeline that positions belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    pub system_identifier: u64,
    pub timeline: u32,
}

impl Lineage {
    /// Returns the lineage as the server's catalog shows it: the identifier as a signed number, the
    /// timeline in hexadecimal digits, or none on a standby.
    pub fn of_server(system_identifier: i64, timeline: Option<&str>) -> Option<Lineage> {
        Some(Lineage {
            system_identifier: system_identifier as u64,
            timeline: u32::from_str_radix(timeline?, 16).ok()?,
        })
    }
}

/// A server's timeline and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineHistory {
    current: u32,
    /// Oldest first, each with the LSN at which the next timeline begins.
    ancestors: Vec<(u32, Lsn)>,
}

impl TimelineHistory {
    pub fn new(current: u32, ancestors: Vec<(u32, Lsn)>) -> Self {
        TimelineHistory { current, ancestors }
    }

    pub fn current(&self) -> u32 {
        self.current
    }

    /// Returns the timeline on which the WAL at `position` was written. It is the same on every
    /// server.
    pub fn timeline_at(&self, position: Lsn) -> u32 {
        let ancestor = self.ancestors.iter().find(|(_, end)| position < *end);
        ancestor.map_or(self.current, |(timeline, _)| *timeline)
    }

    /// Returns where an ancestor ended. None if the timeline is not an ancestor.
    pub fn end_of(&self, ancestor: u32) -> Option<Lsn> {
        self.ancestors
            .iter()
            .find(|(timeline, _)| *timeline == ancestor)
            .map(|(_, end)| *end)
    }
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
        let timelines =
            [0, 49, 50, 99, 100, 1_000].map(|position| history.timeline_at(Lsn(position)));

        assert_eq!(timelines, [1, 1, 3, 3, 4, 4]);
        assert_eq!(
            (history.end_of(3), history.end_of(2), history.end_of(4)),
            (Some(Lsn(100)), None, None)
        );
        assert_eq!(
            TimelineHistory::new(2, Vec::new()).timeline_at(Lsn(7)),
            2,
            "an unknown history"
        );
    }
}
