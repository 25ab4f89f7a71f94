//! Remembers the rows that the open transaction has deleted. If it then inserts a row with the same
//! key, that is the same row, moved to another partition or rewritten.
//!
//! The pairs depend only on the transaction's changes and their order, not on batches. After a
//! restart, the stream begins with the transaction's first change, so the same rows are paired.

use std::collections::HashSet;

use lru::LruCache;

use crate::domain::change::{Datum, Tuple};
use crate::domain::table::{ID, Table};
use crate::telemetry::recurring;

/// Bounds the memory of one transaction's deleted rows: enough for over a hundred thousand. The
/// oldest are forgotten first, because an update that moves a row inserts it right after the
/// deletion.
const MAX_WEIGHT: usize = 32 << 20;
/// The estimated overhead of one remembered row, in bytes.
const ENTRY_OVERHEAD: usize = 256;

/// The values of the watched columns and those that the primary has, in the order of
/// [`Table::watched`].
type WatchedValues = Box<[(Datum, Datum)]>;

/// A deleted row.
struct DeletedRow {
    watched: WatchedValues,
    is_outside: bool,
}

pub(super) struct DeletedRows {
    rows: LruCache<(Table, Box<str>), DeletedRow>,
    /// The estimated size of the rows, in bytes.
    weight: usize,
    limit: usize,
    /// Tables with rows that were forgotten.
    forgotten: HashSet<Table>,
}

impl Default for DeletedRows {
    fn default() -> Self {
        DeletedRows {
            rows: LruCache::unbounded(),
            weight: 0,
            limit: MAX_WEIGHT,
            forgotten: HashSet::new(),
        }
    }
}

impl DeletedRows {
    #[cfg(test)]
    pub fn with_limit(limit: usize) -> Self {
        DeletedRows {
            limit,
            ..DeletedRows::default()
        }
    }

    /// Forgets everything: another transaction begins.
    pub fn clear(&mut self) {
        if !self.rows.is_empty() || !self.forgotten.is_empty() {
            *self = DeletedRows {
                limit: self.limit,
                ..DeletedRows::default()
            };
        }
    }

    /// Remembers a deleted row of a table that raises events. Forgets the oldest rows beyond the
    /// limit.
    pub fn add(&mut self, table: Table, old: &Tuple) {
        let Some(id) = old.text(ID).filter(|_| table.is_captured()) else {
            return;
        };

        let watched = table
            .watched_columns()
            .map(|column| (old.get(column).clone(), old.original(column).clone()));
        let row = DeletedRow {
            watched: watched.collect(),
            is_outside: old.is_outside,
        };

        self.weight += weight(id, &row.watched);

        if let Some(replaced) = self.rows.put((table, id.into()), row) {
            self.weight -= weight(id, &replaced.watched);
        }

        while self.weight > self.limit
            && let Some(((table, id), row)) = self.rows.pop_lru()
        {
            self.weight -= weight(&id, &row.watched);
            self.forgotten.insert(table);
        }
    }

    /// Removes and returns the deleted row that has the key of `new`. Only its key and its watched
    /// columns are known.
    pub fn take(&mut self, table: Table, new: &Tuple) -> Option<Tuple> {
        if self.rows.is_empty() && self.forgotten.is_empty() {
            return None;
        }

        let id = new.text(ID)?;
        let Some(row) = self.rows.pop(&(table, Box::from(id))) else {
            if self.forgotten.contains(&table) {
                recurring!(
                    warn,
                    table = table.name(),
                    "a transaction deleted more rows than can be remembered and then inserted rows: rows that it deleted first and inserted \
                     again count as new"
                );
            }

            return None;
        };

        self.weight -= weight(id, &row.watched);
        let mut old = Tuple::absent(table);
        old.set(ID, Datum::text(id));
        old.is_outside = row.is_outside;

        for (column, (value, original)) in table.watched_columns().zip(row.watched) {
            old.set_mapped(column, value, original);
        }

        Some(old)
    }
}

fn weight(id: &str, values: &[(Datum, Datum)]) -> usize {
    let length = |datum: &Datum| datum.as_str().map_or(0, str::len);
    let lengths = values
        .iter()
        .map(|(value, original)| length(value) + length(original));

    ENTRY_OVERHEAD + id.len() + lengths.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::table::distro_queue;

    const TABLE: Table = Table::DistroQueue;

    fn row(id: &str, status: &str) -> Tuple {
        let mut row = Tuple::absent(TABLE);
        row.set(distro_queue::id, Datum::text(id));
        row.set(distro_queue::status, Datum::text(status));
        row.set(distro_queue::message, Datum::text("long"));
        row
    }

    #[test]
    fn a_row_is_paired_once_by_its_key() {
        let mut deleted = DeletedRows::default();
        deleted.add(TABLE, &row("1", "complete"));
        deleted.add(Table::Outlet, &Tuple::absent(Table::Outlet));
        assert_eq!(deleted.take(Table::Payment, &row("1", "")), None);
        assert_eq!(deleted.take(TABLE, &row("2", "")), None);

        let old = deleted
            .take(TABLE, &row("1", "batched"))
            .expect("it was deleted");
        assert_eq!(
            (old.text(distro_queue::id), old.text(distro_queue::status)),
            (Some("1"), Some("complete"))
        );
        assert_eq!(*old.get(distro_queue::message), Datum::Absent);
        assert_eq!(deleted.take(TABLE, &row("1", "")), None);
        assert!(deleted.rows.is_empty());
    }

    #[test]
    fn the_last_of_several_deletions_counts_and_transactions_do_not_share_rows() {
        let mut deleted = DeletedRows::default();
        deleted.add(TABLE, &row("1", "a"));
        deleted.add(TABLE, &row("1", "b"));
        deleted.add(TABLE, &row("2", "c"));

        assert_eq!(
            deleted
                .take(TABLE, &row("1", ""))
                .unwrap()
                .text(distro_queue::status),
            Some("b")
        );

        deleted.clear();
        assert_eq!(deleted.take(TABLE, &row("2", "")), None);
        assert!(deleted.rows.is_empty());
    }

    #[test]
    fn the_oldest_rows_are_forgotten_and_memory_stays_bounded() {
        let mut deleted = DeletedRows::with_limit(10 * (ENTRY_OVERHEAD + 10));

        for id in 0..1_000 {
            deleted.add(TABLE, &row(&id.to_string(), "complete"));
        }

        let remembered =
            (0..1_000).filter(|id: &i32| deleted.take(TABLE, &row(&id.to_string(), "")).is_some());
        assert_eq!(
            remembered.collect::<Vec<_>>(),
            (991..1_000).collect::<Vec<_>>()
        );

        // A row that is larger than the limit.
        deleted.add(TABLE, &row("1000", &"x".repeat(10_000)));
        assert!(deleted.rows.is_empty());
    }
}
