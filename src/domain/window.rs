//! Windows, the parts in which the outbox is read.
//!
//! A window holds the rows that its snapshot sees and the previous window's snapshot did not. A
//! transaction that stays open across several windows belongs to the first one whose snapshot sees
//! its commit: no row is missed or read twice, and no window waits for a transaction.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The transactions that had ended at one moment, in PostgreSQL's text form `xmin:xmax:xip,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(Arc<str>);

impl Snapshot {
    /// Creates a snapshot that sees no transaction.
    pub fn empty() -> Self {
        Snapshot("1:1:".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the lowest id of a transaction that had not ended (`xmin`). None if the text is not
    /// a snapshot.
    pub fn oldest_running(&self) -> Option<u64> {
        self.0.split(':').next()?.parse().ok()
    }

    /// Returns the first transaction id that was not assigned yet (`xmax`). None if the text is not
    /// a snapshot.
    pub fn next_transaction(&self) -> Option<u64> {
        self.0.split(':').nth(1)?.parse().ok()
    }

    /// Returns whether a transaction had ended, given the lower 32 bits of its id. False if the
    /// text is not a snapshot.
    pub fn has_ended(&self, transaction: u32) -> bool {
        self.not_ended(&[transaction]).is_empty()
    }

    /// Returns those of the transactions that had not ended, given the lower 32 bits of their ids.
    /// All if the text is not a snapshot.
    pub fn not_ended(&self, transactions: &[u32]) -> Vec<u32> {
        // Ids that are in use at the same time differ by less than half of the 32 bits.
        let is_before =
            |next: u64, id: u32| matches!((next as u32).wrapping_sub(id), 1..=0x7FFF_FFFF);
        let running = self
            .0
            .rsplit(':')
            .next()
            .into_iter()
            .flat_map(|list| list.split(','));

        let running: HashSet<u32> = running
            .filter_map(|id| Some(id.parse::<u64>().ok()? as u32))
            .collect();
        let next = self.next_transaction();
        let has_ended =
            |id: u32| next.is_some_and(|next| is_before(next, id)) && !running.contains(&id);

        transactions
            .iter()
            .copied()
            .filter(|id| !has_ended(*id))
            .collect()
    }
}

impl From<&str> for Snapshot {
    /// The snapshot that a new slot exports may have an `xmin` above its `xmax`. It sees every
    /// transaction before `xmin`. Postgres prints it, but does not accept it as input.
    fn from(text: &str) -> Self {
        let mut bounds = text.splitn(3, ':').map(|bound| bound.parse::<u64>().ok());
        match (bounds.next().flatten(), bounds.next().flatten()) {
            (Some(xmin), Some(xmax)) if xmin > xmax => Snapshot(format!("{xmin}:{xmin}:").into()),
            _ => Snapshot(text.into()),
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The rows that `to` sees and `from` does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub number: u64,
    pub from: Snapshot,
    pub to: Snapshot,
}

impl Window {
    /// Creates a window without rows, before the first one that is read.
    pub fn empty(number: u64) -> Self {
        Window {
            number,
            from: Snapshot::empty(),
            to: Snapshot::empty(),
        }
    }

    /// Returns the next window: the rows that `to` sees and this window's `to` does not.
    pub fn next(&self, to: Snapshot) -> Self {
        Window {
            number: self.number + 1,
            from: self.to.clone(),
            to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_the_next_transaction() {
        assert_eq!(Snapshot::from("10:20:10,14").next_transaction(), Some(20));
        assert_eq!(Snapshot::from("10:20:").next_transaction(), Some(20));
        assert_eq!(Snapshot::from("ten").next_transaction(), None);
        assert_eq!(Snapshot::empty().next_transaction(), Some(1));
    }

    #[test]
    fn a_snapshot_shows_which_transactions_had_ended() {
        let snapshot = Snapshot::from("10:20:10,14");
        assert_eq!(
            [9, 10, 11, 14, 19, 20, 21].map(|id| snapshot.has_ended(id)),
            [true, false, true, false, true, false, false]
        );

        // After the 32 bits have wrapped around.
        let wrapped = Snapshot::from("4294967290:4294967300:4294967290,4294967297");
        let ended =
            [4_294_967_289, 4_294_967_290, 4_294_967_295, 1, 3, 4].map(|id| wrapped.has_ended(id));
        assert_eq!(ended, [true, false, true, false, true, false]);
        assert!(!Snapshot::from("ten").has_ended(1));
    }

    #[test]
    fn a_snapshot_shows_which_of_several_transactions_had_not_ended() {
        assert_eq!(
            Snapshot::from("10:20:10,14").not_ended(&[14, 9, 15, 20, 10]),
            [14, 20, 10]
        );
        assert!(Snapshot::from("20:20:").not_ended(&[9, 19]).is_empty());
        assert_eq!(Snapshot::from("ten").not_ended(&[1, 2]), [1, 2]);
    }

    #[test]
    fn a_snapshot_has_the_oldest_running_transaction() {
        assert_eq!(Snapshot::from("10:20:10,14").oldest_running(), Some(10));
        assert_eq!(Snapshot::empty().oldest_running(), Some(1));
        assert_eq!(Snapshot::from("ten").oldest_running(), None);
    }

    #[test]
    fn a_snapshot_whose_bounds_are_in_reverse_order_is_corrected() {
        assert_eq!(Snapshot::from("83401:83375:").as_str(), "83401:83401:");

        for text in ["83375:83401:83380,83390", "10:10:", "ten"] {
            assert_eq!(Snapshot::from(text).as_str(), text);
        }
    }

    #[test]
    fn a_window_begins_where_the_previous_one_ends() {
        let window = Window::empty(7).next("10:20:".into());
        assert_eq!(
            (window.number, &window.from, &window.to),
            (8, &Snapshot::empty(), &"10:20:".into())
        );
    }
}
